"""`chat` on a real terminal: keys are sent through tmux, and the screen is compared."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from tests.size import full_size
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0  # bounds failures only
TMUX = shutil.which("tmux")

TURNS = [
    {
        "text": "I will **change** it.",
        "tool_calls": [{"name": "Edit", "arguments": {"file_path": "app.py", "old": "hello", "new": "good day"}}],
    },
    {"tool_calls": [{"name": "Bash", "arguments": {"command": "printf '%s\\n' 1 2 3 4 5 6 7; read -r x < go"}}]},
    {"text": "# Done\n\x1b[2J\x1b]0;evil\x07 and \u202eevil", "deltas": 3},
    {"tool_calls": [{"name": "Bash", "arguments": {"command": "read -r x < go"}}]},
    {"text": "never"},
]


@unittest.skipUnless(TMUX, "there is no tmux here, through which keys are typed")
class Typed(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = Path(folder.name)
        self.cwd = self.home / "work"
        self.cwd.mkdir()
        (self.cwd / "app.py").write_text("import sys\n\nprint('hello')\n")
        os.mkfifo(self.cwd / "go")
        self.tmux("kill-server", check=False)
        self.addCleanup(self.tmux, "kill-server", check=False)

    def tmux(self, *words: str, check: bool = True) -> str:
        command = [str(TMUX), "-S", str(self.home / "tmux"), "-f", os.devnull, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if check:
            self.assertEqual(done.returncode, 0, (words, done.stderr))
        return done.stdout

    def start(self, turns: object, *flags: str, width: int = 80) -> None:
        script = self.home / "script.json"
        script.write_text(json.dumps({"turns": turns}))
        words = [
            sys.executable,
            "-m",
            "openagentic_sdk",
            "chat",
            "--script",
            str(script),
            "--store",
            str(self.home / "store"),
        ]
        environ = {"PYTHONPATH": str(ROOT), "OPENAGENTIC_SDK_HOME": str(self.home / "sdk"), "HOME": str(self.home)}
        assigned = [f"{name}={shlex.quote(value)}" for name, value in environ.items()]
        command = f"{' '.join(assigned)} {shlex.join([*words, *flags])}"
        # A shell with job control, which records the chat's process id.
        (self.home / "chat").write_text(f"echo $$ > {shlex.quote(str(self.home / 'pid'))}; exec env {command}")
        (self.home / "rc").write_text(f"set -m; cd {shlex.quote(str(self.cwd))}; PROMPT_COMMAND='echo left with $?'\n")
        self.tmux("new-session", "-d", "-x", str(width), "-y", "40", f"bash --rcfile {self.home}/rc -i")
        self.until("left with 0")
        self.type(f"clear; sh {self.home}/chat")
        self.keys("Enter")
        self.until("\n>")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, wanted: str) -> str:
        """The screen once it contains this text."""
        return self.until_screen(lambda screen: wanted in screen, f"{wanted!r} is shown")

    def until_gone(self, unwanted: str) -> None:
        self.until_screen(lambda screen: unwanted not in screen, f"{unwanted!r} is gone")

    def until_screen(self, holds: Callable[[str], bool], what: str) -> str:
        def looked() -> str:
            return screen if holds(screen := self.screen()) else ""

        return until(looked, lambda: f"{what}; the screen is\n{self.screen()}", PATIENCE_S)

    def let_go(self) -> None:
        with open(self.cwd / "go", "w") as gate:
            gate.write("\n")

    @full_size
    def test_a_conversation_with_questions_steering_hostile_text_undo_and_leaving(self) -> None:
        self.start(TURNS)
        self.type("/hel")
        self.keys("Tab", "Enter")
        self.until("/undo")
        self.type("Change")
        self.keys("M-Enter")
        self.type("it")
        self.keys("Enter")
        seen = self.until("[y] yes")
        self.assertIn("print('hello')", seen)
        self.assertIn("print('good day')", seen)
        self.keys("y", "Enter")
        self.until("$ printf")
        seen = self.until("[y] yes")  # a key before that is not an answer
        self.assertIn("I will change it.", seen)
        self.assertIn("✓ Edit app.py", seen)
        self.type("why this?")
        self.keys("Enter")
        self.until("'why this?' is not an answer; the answers are yes, no")
        self.assertNotIn("● Bash", self.screen())
        self.keys("Escape")
        self.until_gone("why this?")
        self.keys("y", "Enter")
        self.until("● Bash")
        self.type("hurry up")
        self.keys("Enter")
        self.until("(read before the next step)")
        self.let_go()
        seen = self.until("Ended:")
        self.assertIn("2 lines above: /show 2", seen)
        self.assertIn("\\x1b[2J\\x1b]0;evil\\x07 and \\u202eevil", seen)
        self.type("/undo")
        self.keys("Enter")
        self.until("1. conversation and files")
        self.keys("1", "Enter")
        self.until("1 file was restored")
        self.assertEqual((self.cwd / "app.py").read_text(), "import sys\n\nprint('hello')\n")
        self.type("again")
        self.keys("Enter")
        self.until("[y] yes")
        self.keys("y", "Enter")
        self.until("● Bash")
        self.tmux("resize-window", "-x", "50")
        self.keys("C-c")
        self.until("Stopped (interrupted)")
        self.type("unsent")
        self.until("> unsent")
        self.keys("C-c")
        self.until_gone("> unsent")
        self.keys("C-c")
        self.until("ctrl-c again")
        self.keys("C-d")
        self.until("left with 0")

    @full_size
    def test_a_long_paste_is_kept_whole_and_shown_in_part(self) -> None:
        self.start([{"text": "read it", "expect": {"last": "row 1499"}}])
        text = "\n".join(f"row {number}" for number in range(1_500))
        (self.home / "paste").write_text(text)
        self.tmux("load-buffer", str(self.home / "paste"))
        self.tmux("paste-buffer", "-p")
        self.until("(1500 rows, 12,389 characters)")
        self.keys("Enter")
        self.until("read it")

    @full_size
    def test_keys_typed_before_a_question_do_not_answer_it_and_it_survives_sizes_ctrl_z_and_sigterm(self) -> None:
        commands = ("read -r x < go", "touch made", "touch late")
        turns = [{"tool_calls": [{"name": "Bash", "arguments": {"command": command}}]} for command in commands]
        self.start([*turns, "never"], width=20)
        self.type("go on")
        self.keys("Enter")
        self.until("[e] edit")
        self.keys("y", "Enter")
        self.until("● Bash")
        self.type("yes")
        self.until("» yes")
        self.let_go()
        self.until("touch made")
        self.until("[n] no")
        self.assertFalse((self.cwd / "made").exists())
        for width, height in ((60, 9), (30, 40), (100, 30)):
            self.tmux("resize-window", "-x", str(width), "-y", str(height))
            self.until("[y] yes  [n] no, because …  [a] always" if width > 50 else "[e] edit")
        self.keys("C-z")
        self.until("Stopped")
        self.type("fg")
        self.keys("Enter")
        # Not the question from before, which is still on the screen until the program draws it again.
        self.until_screen(
            lambda screen: (
                "Stopped" in screen
                and "touch made" in screen.rpartition("Stopped")[2]
                and "[y] yes  [n] no, because …  [a] always" in screen.rpartition("Stopped")[2]
            ),
            "the question is drawn again",
        )
        self.keys("y", "Enter")
        self.until("touch late")
        self.until("[y] yes")
        self.assertTrue((self.cwd / "made").exists())
        os.kill(int((self.home / "pid").read_text()), signal.SIGTERM)
        self.until("Continue with: openagentic-sdk chat --resume")
        self.until("left with 143")
        self.assertFalse((self.cwd / "late").exists())

    @full_size
    def test_plain_is_line_by_line(self) -> None:
        self.start(["**hello**"], "--plain")
        self.type("hi")
        self.keys("Enter")
        seen = self.until("Ended:")
        self.assertIn("**hello**", seen)
        self.type("/quit")
        self.keys("Enter")
        self.until("left with 0")


if __name__ == "__main__":
    unittest.main()
