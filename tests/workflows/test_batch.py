"""Many documents, twenty at a time, in a process that dies repeatedly: each is read once and noted once."""

from __future__ import annotations

import unittest
from hashlib import sha256

from openagentic_sdk import Agent, Flow, OpenAgenticOptions, ToolContext, WorkflowResult, workflow
from openagentic_sdk.events import ModelResponse
from openagentic_sdk.testing import ScriptedProvider
from openagentic_sdk.testing.crash import Build, CrashOutcome, Life, crash_everywhere
from tests.size import LARGE, full_size

Result = WorkflowResult[list[str]]


def batch(documents: int) -> Build[Result]:
    """The work of a process that reads the documents, or resumes that."""

    def start(life: Life) -> object:
        kept = life.folder / "kept"
        kept.mkdir(exist_ok=True)
        reader = Agent(ScriptedProvider(["A note."], resumable=True), name="reader")

        def keep(document: int, note: str, ctx: ToolContext) -> str:
            place = kept / sha256(str(ctx.idempotency_key).encode()).hexdigest()
            life.do(f"keep {document}", lambda: place.write_text(str(document), encoding="utf-8"))
            return f"{document}: {note}"

        async def read(flow: Flow, document: int) -> str:
            return await flow.step(keep, document, await flow.agent(reader, f"Read document {document}."))

        @workflow
        async def notes(flow: Flow) -> list[str]:
            return await flow.map(lambda document: read(flow, document), range(documents), limit=20)

        return notes.run(options=OpenAgenticOptions(session_store=life.store), session="s")

    return start


class Batch(unittest.TestCase):
    def check(self, documents: int, outcome: CrashOutcome[Result]) -> None:
        self.assertEqual(outcome.result.output, [f"{number}: A note." for number in range(documents)])
        assert outcome.folder is not None
        kept = [int(place.read_text(encoding="utf-8")) for place in (outcome.folder / "kept").iterdir()]
        self.assertEqual(sorted(kept), list(range(documents)))
        answers = [
            e for events in outcome.events.values() for e in events if isinstance(e, ModelResponse) and e.complete
        ]
        self.assertEqual(len(answers), documents)

    @full_size
    def test_each_document_is_read_once_and_noted_once_however_often_the_process_dies(self) -> None:
        crash_everywhere(batch(25), lambda outcome: self.check(25, outcome), deaths=6, points=1)

    @unittest.skipUnless(LARGE, "500 documents and 30 kills of real processes: OPENAGENTIC_TEST_LARGE=1")
    def test_five_hundred_documents_and_thirty_kills(self) -> None:
        crash_everywhere(batch(500), lambda outcome: self.check(500, outcome), deaths=30, points=1, real=True)


if __name__ == "__main__":
    unittest.main()
