"""Tab completion of the command line."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import unittest

from openagentic_sdk.cli.main import main


def script(shell: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["completion", shell])
    return out.getvalue()


class Completion(unittest.TestCase):
    @unittest.skipUnless(shutil.which("bash"), "there is no bash here")
    def test_bash_offers_commands_actions_flags_and_closed_words(self) -> None:
        cases = {
            "sess": "sessions",
            "sessions rew": "rewind",
            "sessions rewind --conf": "--conflicts",
            "completion z": "zsh",
            "sessions nothing-like-it": "",
        }
        lines = [script("bash")]
        for typed in cases:
            words = typed.split()
            lines.append(
                f"COMPREPLY=(); COMP_WORDS=(openagentic-sdk {typed}); COMP_CWORD={len(words)}; "
                '_openagentic_sdk; echo "${COMPREPLY[*]}"'
            )
        done = subprocess.run(["bash", "--norc", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split("\n")[:-1], list(cases.values()))

    def test_fish_and_zsh_get_their_own_form(self) -> None:
        self.assertIn("__fish_seen_subcommand_from sessions", script("fish"))
        self.assertTrue(script("zsh").startswith("#compdef openagentic-sdk\n"))


if __name__ == "__main__":
    unittest.main()
