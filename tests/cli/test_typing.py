"""Keys, the line editor and the boxes of questions, without a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from openagentic_sdk.cli.commands.chat import _History, _LiveChat
from openagentic_sdk.cli.output.diffs import diff_rows
from openagentic_sdk.cli.output.palette import TRUE_COLOUR, codes, colour_depth
from openagentic_sdk.cli.output.terminal import Screen
from openagentic_sdk.cli.screen.boxes import ChoiceBox, PermissionBox, box_for
from openagentic_sdk.cli.screen.editor import LineEditor
from openagentic_sdk.cli.screen.keys import Key, KeyParser
from openagentic_sdk.cli.screen.live import text_of
from openagentic_sdk.events import UserQuestion
from openagentic_sdk.tools.session.ask_user_question import SEVERAL_ANSWERS
from tests.size import full_size

ROOT = Path(__file__).resolve().parents[2]

TYPED = "a\x1b[A漢\r\x1b\r\x1b[200~x\r\ny\x1b[31m\x1b[201~\x1b[1;5C\x03\x1bOD\x7f"
KEYS = [
    Key("text", "a"),
    Key("up"),
    Key("text", "漢"),
    Key("enter"),
    Key("newline"),
    Key("paste", "x\ny\x1b[31m"),
    Key("word-right"),
    Key("left"),
    Key("backspace"),
]


def typed(editor: LineEditor, *keys: str) -> list[str]:
    """Press keys (names in brackets are keys, everything else is text); return the submitted lines."""
    submitted = []
    for key in keys:
        said = editor.press(Key(key[1:-1]) if key.startswith("[") else Key("text", key))
        submitted += [said] if said is not None else []
    return submitted


class LineEditing(unittest.TestCase):
    def test_an_undelivered_message_is_restored_before_the_text_being_typed(self) -> None:
        editor = LineEditor()
        typed(editor, "more")
        editor.take_back("unheard")
        editor.take_back("")
        self.assertEqual((editor.text, editor.cursor), ("unheard\nmore", 12))


class Diffs(unittest.TestCase):
    def test_only_differences_are_shown_even_in_files_that_are_too_big_to_compare(self) -> None:
        big = ["same"] * 40_000
        old, new = "\n".join([*big, "a", *big]), "\n".join([*big, "b", *big])
        changed = [row for row in diff_rows(old, new) if row[0] != " "]
        self.assertEqual(changed, [("-", 40_001, "a"), ("+", 40_001, "b")])
        old, new = "\n".join(["x", *big, "y"]), "\n".join(["z", *big, "w"])
        signs = [sign for sign, _, _ in diff_rows(old, new)]
        self.assertEqual(signs, ["-"] * 40_002 + ["+"] * 40_002)

    def test_a_path_that_no_file_system_can_hold_has_no_text(self) -> None:
        self.assertEqual([text_of("/tmp/a\0b"), text_of("/tmp/\ud800")], [None, None])


class Keys(unittest.TestCase):
    def test_sequences_letters_and_pastes_are_distinguished_at_every_split_of_the_input(self) -> None:
        data = TYPED.encode()
        for size in range(1, len(data) + 1):
            parser, keys = KeyParser(), []
            for at in range(0, len(data), size):
                keys += parser.feed(data[at : at + size])
            text = "".join(key.text for key in keys)
            self.assertEqual(text, "a漢x\ny\x1b[31m", size)
            self.assertEqual(
                [key for key in keys if key.name != "text"], [key for key in KEYS if key.name != "text"], size
            )

    def test_a_lone_escape_is_a_key_once_nothing_follows(self) -> None:
        parser = KeyParser()
        self.assertEqual(parser.feed(b"\x1b"), [])
        self.assertEqual(parser.flush(), [Key("escape")])

    def test_invalid_sequences_are_dropped_and_the_input_after_them_is_kept(self) -> None:
        parser = KeyParser()
        keys = parser.feed(b"\x1b[" + b"1;" * 100 + b"\xff\xfeq") + parser.flush()
        self.assertTrue("".join(key.text for key in keys).endswith("q"))


# Runs children on a terminal of their own that die by signals, and prints whether each left the terminal as it was.
_DYING = """
import asyncio, fcntl, os, pty, resource, signal, sys, termios
from openagentic_sdk.cli.output.turn import on_stop_signals
from openagentic_sdk.cli.screen.keys import Keyboard

async def listen(number):
    with on_stop_signals(lambda number: None), Keyboard(lambda key: None).listening():
        for _ in range(2):  # a second SIGTERM ends the process at once
            os.kill(os.getpid(), getattr(signal, number))

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in sys.argv[1:]:
    keys, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    child = os.fork()
    if not child:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for stream in range(3):
            os.dup2(terminal, stream)
        os.closerange(3, 64)
        signal.signal(getattr(signal, number), signal.SIG_DFL)  # a shell's background job ignores SIGQUIT
        asyncio.run(listen(number))
        os._exit(0)
    died_by = -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    marks = os.read(keys, 4096)
    is_restored = termios.tcgetattr(terminal) == before and marks.endswith(b"[?2004l\\x1b[?25h")
    print(signal.Signals(died_by).name, is_restored)
"""


class Dying(unittest.TestCase):
    @full_size
    @unittest.skipIf(sys.platform == "win32", "Windows has no such terminals")
    def test_a_signal_that_ends_the_process_restores_the_terminal(self) -> None:
        numbers = ["SIGQUIT", "SIGXCPU", "SIGTERM", "SIGHUP"]
        done = subprocess.run([sys.executable, "-c", _DYING, *numbers], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.stdout.splitlines(), [f"{number} True" for number in numbers], done.stderr)


class Editing(unittest.TestCase):
    def test_text_is_typed_changed_and_submitted(self) -> None:
        editor = LineEditor()
        said = typed(editor, "helo world", "[word-left]", "[left]", "[left]", "l", "[end]", "!", "[enter]")
        self.assertEqual(said, ["hello world!"])
        self.assertEqual(editor.text, "")

    def test_lines_are_added_by_a_backslash_and_by_alt_enter_and_a_paste_stays_whole(self) -> None:
        editor = LineEditor()
        self.assertEqual(typed(editor, "one\\", "[enter]", "two", "[newline]"), [])
        editor.press(Key("paste", "three\nfour"))
        self.assertEqual(typed(editor, "[enter]"), ["one\ntwo\nthree\nfour"])

    def test_history_is_walked_and_the_draft_comes_back(self) -> None:
        editor = LineEditor(history=["first", "second"])
        typed(editor, "draft", "[up]")
        self.assertEqual(editor.text, "second")
        typed(editor, "[up]", "[up]")
        self.assertEqual(editor.text, "first")
        typed(editor, "[down]", "[down]")
        self.assertEqual(editor.text, "draft")

    def test_up_and_down_move_within_several_lines_first(self) -> None:
        editor = LineEditor(history=["old"])
        editor.press(Key("paste", "abc\nde"))
        typed(editor, "[up]")
        self.assertEqual((editor.text, editor.cursor), ("abc\nde", 2))
        typed(editor, "[down]", "[kill-start]", "[yank]", "[yank]")
        self.assertEqual(editor.text, "abc\ndede")

    def test_tab_completes_as_far_as_it_is_clear_and_then_offers(self) -> None:
        names = ("/help", "/helm", "@src/")

        def complete(word: str, is_first: bool) -> Sequence[str]:
            return [name for name in names if name.startswith(word) and (is_first or name[0] == "@")]

        editor = LineEditor(complete=complete)
        typed(editor, "/h", "[tab]")
        self.assertEqual((editor.text, editor.offers), ("/hel", ()))
        typed(editor, "[tab]")
        self.assertEqual(editor.offers, ["/help", "/helm"])
        typed(editor, "p", "[tab]", "@s", "[tab]")
        self.assertEqual(editor.text, "/help @src/")

    def test_ten_thousand_pasted_letters_show_the_rows_around_the_cursor(self) -> None:
        editor = LineEditor()
        editor.press(Key("paste", "\n".join(f"line {number}" for number in range(1_500))))
        rows = editor.rows("> ", 40, lambda letter: f"[{letter}]")
        self.assertLessEqual(len(rows), 14)
        self.assertIn("line 1499[ ]", rows[-2])
        self.assertIn("1500 rows", rows[-1])

    def test_letters_that_could_command_the_terminal_are_shown_as_escapes(self) -> None:
        editor = LineEditor()
        editor.press(Key("paste", "a\x1b[2Jb\u202e"))
        self.assertEqual(editor.rows("> ", 40, str), ["> a\\x1b[2Jb\\u202e "])


class Boxes(unittest.TestCase):
    def pressed(self, question: UserQuestion, *keys: str) -> list[str]:
        box = box_for(question)
        said = []
        for key in keys:
            answer = box.press(Key(key[1:-1]) if key.startswith("[") else Key("text", key))
            self.assertTrue(box.rows(60, lambda text, style: text))
            said += [answer] if answer is not None else []
        return said

    def permission(self, **details: object) -> UserQuestion:
        return UserQuestion("q", "Allow Bash?", ("yes", "no", "always"), "permission", details=details)

    def test_keys_answer_a_permission_question_with_enter_and_never_without(self) -> None:
        question = self.permission(tool_name="Bash", input={"command": "ls"})
        for key, answer in (("y", "yes"), ("n", "no"), ("a", "always"), ("YES", "yes"), (" Always ", "always")):
            self.assertEqual(self.pressed(question, key), [])
            self.assertEqual(self.pressed(question, key, "[enter]"), [answer])
        self.assertEqual(self.pressed(question, "[escape]"), ["no"])
        self.assertEqual(self.pressed(question, "no because too early", "[enter]"), ["no because too early"])
        self.assertEqual(self.pressed(question, "n", "[escape]", "y", "[enter]"), ["yes"])
        self.assertEqual(self.pressed(question, "e", "[enter]", " -l", "[enter]"), ["edit ls -l"])
        self.assertIsInstance(box_for(question), PermissionBox)

    def test_words_that_are_not_an_answer_stay_in_the_box_and_answer_nothing(self) -> None:
        question = self.permission(tool_name="Bash", input={"command": "ls"})
        for words in ("why this?", "explain", "sure", "ok", "s", "1", "yes please", "edit"):
            with self.subTest(words):
                self.assertEqual(self.pressed(question, *words, "[enter]", "[enter]", "[up]"), [])
                self.assertEqual(self.pressed(question, *words, "[enter]", "[escape]", "y", "[enter]"), ["yes"])
        box = box_for(question)
        for letter in "why?":
            box.press(Key("text", letter))
        box.press(Key("enter"))
        self.assertIn(
            "'why?' is not an answer; the answers are yes, no, always", box.rows(60, lambda text, style: text)[0]
        )

    def test_pasted_text_never_answers_a_permission_question(self) -> None:
        box = box_for(self.permission())
        self.assertIsNone(box.press(Key("paste", "y")))

    def test_choices_are_picked_with_arrows_and_numbers_or_an_own_answer(self) -> None:
        question = UserQuestion("q", "Which?\nred: like a rose", ("red", "blue"), details={"free_text": True})
        self.assertIsInstance(box_for(question), ChoiceBox)
        self.assertIn("like a rose", box_for(question).rows(60, lambda text, style: text)[0])
        self.assertEqual(self.pressed(question, "[down]", "[enter]"), ["blue"])
        self.assertEqual(self.pressed(question, "2"), [])
        self.assertEqual(self.pressed(question, "2", "[enter]"), ["blue"])
        self.assertEqual(self.pressed(question, "2", "1", "[enter]"), ["red"])
        self.assertEqual(self.pressed(question, "2", " of each", "[enter]"), ["2 of each"])
        self.assertEqual(self.pressed(question, "1", "2", " cups", "[enter]"), ["12 cups"])
        self.assertEqual(self.pressed(question, "Blue", "[enter]"), ["blue"])
        self.assertEqual(self.pressed(question, "green", "[enter]"), ["green"])
        self.assertEqual(self.pressed(question, "[escape]"), [""])

    def test_a_question_of_choices_alone_takes_no_other_words(self) -> None:
        question = UserQuestion("q", "Which?", ("red", "blue"))
        self.assertEqual(self.pressed(question, "green", "[enter]", "[enter]"), [])
        self.assertEqual(self.pressed(question, "green", "[enter]", "[escape]", "RED", "[enter]"), ["red"])

    def test_several_answers_are_marked(self) -> None:
        question = UserQuestion("q", f"Which?\n{SEVERAL_ANSWERS}", ("red", "blue", "green"))
        self.assertEqual(self.pressed(question, " ", "[down]", "[down]", " ", "[enter]"), ["red, green"])
        self.assertEqual(self.pressed(question, "1", "2", "1", "[enter]"), ["blue"])

    def test_a_question_without_choices_is_a_line(self) -> None:
        self.assertEqual(self.pressed(UserQuestion("q", "Why?"), "because", "[enter]"), ["because"])


class Questions(unittest.TestCase):
    def test_keys_that_come_at_once_answer_as_keys_one_by_one(self) -> None:
        async def answered(*keys: Key) -> str:
            chat = _LiveChat(Screen(io.StringIO()))
            details = {"tool_name": "Bash", "input": {"command": "ls"}}
            asking = asyncio.ensure_future(
                chat.asker(UserQuestion("q", "Allow Bash?", ("yes", "no"), "permission", None, details))
            )
            await asyncio.sleep(0)
            self.assertIsNotNone(chat.asker._box, "the question is shown")
            for key in keys:
                chat.asker._press(key)
            return await asking

        self.assertEqual(asyncio.run(answered(Key("text", "n too slow"), Key("enter"))), "no too slow")
        self.assertEqual(asyncio.run(answered(Key("text", "y"), Key("enter"), Key("text", "n"))), "yes")


class History(unittest.TestCase):
    def test_the_file_keeps_the_newest_inputs_up_to_a_size_and_none_that_is_too_long(self) -> None:
        home = self.enterContext(tempfile.TemporaryDirectory())
        before = os.environ.get("OPENAGENTIC_SDK_HOME")
        os.environ["OPENAGENTIC_SDK_HOME"] = home
        try:
            history = _History("work")
        finally:
            del os.environ["OPENAGENTIC_SDK_HOME"]
            if before is not None:
                os.environ["OPENAGENTIC_SDK_HOME"] = before
        texts = [f"{number} é" + "x" * 60_000 for number in range(20)]
        for text in [*texts, "y" * 100_000]:
            history.add(text)
        self.assertEqual(history.read(), texts[-17:])
        (path,) = Path(home, "history").iterdir()
        self.assertLess(path.stat().st_size, 1 << 20)
        path.write_bytes(path.read_bytes() * 3)
        self.assertEqual(history.read()[-17:], texts[-17:])


class Leaving(unittest.TestCase):
    def test_ctrl_c_clears_the_line_and_twice_on_an_empty_one_leaves(self) -> None:
        async def press_three_times() -> list[int]:
            chat = _LiveChat(Screen(io.StringIO()))
            chat.asker.editor.press(Key("text", "half a line"))
            waiting = []
            for _ in range(3):
                chat._clear_or_leave()
                waiting.append(chat.asker._lines.qsize())
            self.assertIsNone(await chat.asker.read_line())
            return waiting

        self.assertEqual(asyncio.run(press_three_times()), [0, 0, 1])


class Rows(unittest.TestCase):
    def screen(self) -> tuple[Screen, io.StringIO]:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        out = Terminal()
        return Screen(out, environ={"TERM": "xterm", "COLORTERM": "truecolor"}), out

    def test_colours_are_those_that_the_terminal_has(self) -> None:
        for environ, depth in (
            ({"TERM": "xterm"}, 16),
            ({"TERM": "xterm-256color"}, 256),
            ({"TERM": "x", "COLORTERM": "24bit"}, TRUE_COLOUR),
            ({"TERM": "dumb"}, 0),
            ({"TERM": "xterm", "NO_COLOR": "1"}, 0),
        ):
            self.assertEqual(colour_depth(environ), depth)
        self.assertEqual(len({codes("added", depth) for depth in (16, 256, TRUE_COLOUR)}), 3)

    def test_rows_below_are_taken_away_before_text_and_drawn_after_it_in_one_write(self) -> None:
        screen, out = self.screen()
        screen.show_below(["status"])
        out.truncate(0)
        out.seek(0)
        screen.write("text")
        written = out.getvalue()
        self.assertLess(written.index("\x1b[J"), written.index("text"))
        self.assertLess(written.index("text"), written.index("status"))
        self.assertTrue(written.startswith("\x1b[?2026h") and written.endswith("\x1b[?2026l"))

    def test_an_open_line_is_gone_on_with_where_it_ended(self) -> None:
        screen, out = self.screen()
        screen.show_below(["status"])
        screen.write("some ")
        out.truncate(0)
        out.seek(0)
        screen.write("text")
        self.assertIn("\r\x1b[1A\x1b[Jsome text\nstatus", out.getvalue())

    def test_no_code_but_those_of_styles_passes_even_where_somebody_forgot_to_make_it_safe(self) -> None:
        screen, out = self.screen()
        screen.show_below(["\x1b[2Jevil\x1b[8m"])
        screen.write("\x1b]0;title\x07")
        self.assertNotIn("\x1b[2J", out.getvalue())
        self.assertNotIn("\x1b[8m", out.getvalue())
        self.assertNotIn("\x07", out.getvalue())

    def test_plain_rewrites_nothing_and_has_no_colours(self) -> None:
        screen = Screen(self.screen()[1], plain=True, environ={"TERM": "xterm", "COLORTERM": "truecolor"})
        self.assertEqual((screen.can_rewrite, screen.has_colours), (False, False))


if __name__ == "__main__":
    unittest.main()
