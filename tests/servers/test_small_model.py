"""Ten turns of `run` and of `chat` with a real model of 135 million parameters, behind llama.cpp's server."""

from __future__ import annotations

import json
import unittest
from typing import ClassVar

from openagentic_sdk.cli.exits import FAILED, OK
from openagentic_sdk.events import AssistantMessage, Event, ModelResponse, Result, UserMessage
from openagentic_sdk.sessions.store import FileSessionStore
from tests.cli.test_main import CommandCase
from tests.size import LARGE

from . import peers

INSTALLED = peers.SMOLLM_WEIGHTS.exists() and (peers.LLAMA_SERVER.exists() or peers.SMOLLM_PYTHON.exists())
TURNS = 10


@unittest.skipUnless(LARGE, "a real model takes minutes: set OPENAGENTIC_TEST_LARGE=1")
@unittest.skipUnless(INSTALLED, "there are no weights: python3 -m tests.servers.peers smollm")
class SmallModel(CommandCase):
    peer: ClassVar[peers.Peer]

    @classmethod
    def setUpClass(cls) -> None:
        cls.peer = cls.enterClassContext(peers.smollm())

    def ask(self, *argv: str, stdin: str = "") -> str:
        flags = ["--base-url", f"{self.peer.url}/v1", "--model", "smollm2", "--cwd", str(self.folder)]
        code, out, err = self.command(*argv[:1], *flags, *argv[1:], stdin=stdin)
        # The server ends an answer after a few tokens, and a cut answer is no success.
        self.assertEqual(code, FAILED if "was cut off (length)" in err else OK, out + err)
        return out

    def check_log(self) -> None:
        """Check that each turn has its prompt, its answer with words and counted tokens, and its end."""
        (session,) = self.session_ids()
        events: list[Event] = list(FileSessionStore(self.store).read_events(session))
        kinds = {
            kind: [one for one in events if isinstance(one, kind)] for kind in (UserMessage, AssistantMessage, Result)
        }
        self.assertEqual([len(found) for found in kinds.values()], [TURNS] * 3)
        self.assertTrue(all(one.text.strip() for one in events if isinstance(one, AssistantMessage)))
        responses = [one for one in events if isinstance(one, ModelResponse)]
        self.assertEqual(len(responses), TURNS)
        self.assertTrue(all(one.usage and one.usage["output_tokens"] <= peers.SMOLLM_TOKENS for one in responses))
        self.assertEqual([one.stop_reason for one in events if isinstance(one, Result)], ["end"] * TURNS)

    def test_ten_turns_of_run_continue_in_one_session(self) -> None:
        for turn in range(TURNS):
            told = json.loads(
                self.ask("run", "--json-result", *(["--continue"] if turn else []), f"Name the number {turn}.")
            )
            self.assertTrue(told["final_text"].strip())
        self.check_log()

    def test_ten_turns_of_chat(self) -> None:
        self.ask("chat", stdin="".join(f"Name the number {turn}.\n" for turn in range(TURNS)))
        self.check_log()


if __name__ == "__main__":
    unittest.main()
