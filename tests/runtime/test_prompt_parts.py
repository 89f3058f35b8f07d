"""Prompts with pictures, documents and sound: stored once beside the log, referenced in it, and sent in full."""

import base64
import struct
import tempfile
import unittest
from hashlib import sha256
from pathlib import Path

from openagentic_sdk.api import query, run
from openagentic_sdk.client import AgentClient
from openagentic_sdk.errors import OptionsError, RequestConflictError
from openagentic_sdk.parts.record.archive import archive_session, restore_session
from openagentic_sdk.parts.record.lifecycle import fork_session
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.prompts import read_prompt
from openagentic_sdk.runs.background import submit
from openagentic_sdk.runs.replay import replay_events
from openagentic_sdk.serialization import dumps_event
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.sqlite import SqliteSessionStore
from openagentic_sdk.sessions.store import FileSessionStore
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.tools.read import ReadTool

from .support import assert_closed, options_for

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + bytes(200)
PDF = b"%PDF-1.7\n" + bytes(300)
WAV = b"RIFF\0\0\0\0WAVEfmt " + bytes(100)


def data_part(data, kind="image", **more):
    return {"type": kind, "data": base64.b64encode(data).decode(), **more}


def sent_parts(provider):
    """The content of the user messages with parts, for each request."""
    messages = [message for request in provider.requests for message in request["messages"]]
    return [message["content"] for message in messages if isinstance(message["content"], list)]


class PartsTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()

    def provider(self, *turns):
        return ScriptedProvider(list(turns or ["Seen."]))

    async def test_bytes_are_stored_once_beside_the_log_and_sent_whole_in_every_store(self):
        stores = (
            MemorySessionStore(),
            FileSessionStore(self.root / "files"),
            SqliteSessionStore(self.root / "sessions.db"),
        )
        prompt = [
            {"type": "text", "text": "What is it?"},
            data_part(PNG, name="p.png"),
            data_part(PDF, "file"),
            data_part(WAV, "audio"),
        ]
        for store in stores:
            with self.subTest(type(store).__name__):
                provider = self.provider("A kettle.", "Still one.")
                result = await run(prompt=prompt, options=options_for(provider, session_store=store))
                self.assertEqual(result.final_text, "A kettle.", result.error_message)
                event = next(e for e in store.read_events(result.session_id) if e.type == "user.message")
                self.assertEqual(event.text, "What is it?")
                picture = {
                    "type": "image",
                    "media_type": "image/png",
                    "name": "p.png",
                    "size": len(PNG),
                    "sha256": sha256(PNG).hexdigest(),
                }
                self.assertEqual(event.attachments[0], picture)
                self.assertEqual(
                    [part["media_type"] for part in event.attachments], ["image/png", "application/pdf", "audio/wav"]
                )
                for stored in store.read_events(result.session_id):
                    self.assertNotIn(base64.b64encode(PNG).decode()[:60], dumps_event(stored))
                self.assertEqual(
                    sorted(store.list_blobs(result.session_id)), sorted(sha256(d).hexdigest() for d in (PNG, PDF, WAV))
                )
                again = options_for(provider, session_store=store, resume=result.session_id)
                await run(prompt="Sure?", options=again)
                for content in sent_parts(provider):
                    self.assertEqual(content[0], {"type": "text", "text": "What is it?"})
                    self.assertEqual([base64.b64decode(part["data"]) for part in content[1:]], [PNG, PDF, WAV])
                    self.assertEqual([part["type"] for part in content[1:]], ["image", "file", "audio"])
                self.assertEqual(len(sent_parts(provider)), 2)
                store.close()

    async def test_a_request_with_other_bytes_in_its_picture_is_another_prompt(self):
        store, provider = MemorySessionStore(), self.provider("Paid.")
        options = options_for(provider, session="s", session_store=store, request_id="r1")
        for prompt in ([data_part(PNG)], [data_part(PNG, name=None)]):
            self.assertEqual((await run(prompt=prompt, options=options)).final_text, "Paid.")
        for prompt in ([data_part(PNG + b"\0")], [data_part(PNG, name="p.png")]):
            with self.subTest(prompt=prompt), self.assertRaisesRegex(RequestConflictError, "r1.*another prompt"):
                await run(prompt=prompt, options=options)
        self.assertEqual(len(provider.requests), 1)

    async def test_a_session_with_parts_is_rebuilt_replayed_forked_and_archived(self):
        store = FileSessionStore(self.root / "a")
        result = await run(prompt=[data_part(PNG, name="p.png")], options=options_for(["Seen."], session_store=store))
        events = store.read_events(result.session_id)
        (message,) = [m for m in rebuild_messages(events) if m["role"] == "user"]
        self.assertEqual([part["sha256"] for part in message["content"]], [sha256(PNG).hexdigest()])
        report = await replay_events(events)
        self.assertTrue(report.ok, (report.error, report.differences))
        fork = fork_session(store, result.session_id)
        provider = self.provider("Still there.")
        await run(prompt="And now?", options=options_for(provider, session_store=store, resume=fork))
        self.assertEqual(base64.b64decode(sent_parts(provider)[0][0]["data"]), PNG)
        archive = self.root / "session.zip"
        archive_session(store, result.session_id, archive)
        other = FileSessionStore(self.root / "b")
        restore_session(other, archive)
        self.assertEqual(other.read_blob(result.session_id, sha256(PNG).hexdigest()), PNG)

    async def test_a_blob_that_is_gone_does_not_brick_the_session(self):
        store = FileSessionStore(self.root / "a")
        result = await run(prompt=[data_part(PNG, name="p.png")], options=options_for(["Seen."], session_store=store))
        for path in (self.root / "a").rglob(f"*{sha256(PNG).hexdigest()}*"):
            path.unlink()
        provider = self.provider("On we go.")
        again = await run(prompt="more", options=options_for(provider, session_store=store, resume=result.session_id))
        self.assertEqual(again.final_text, "On we go.")
        self.assertIn("p.png was here and is no longer stored", str(sent_parts(provider)))

    async def test_a_part_that_was_refused_does_not_refuse_every_later_prompt(self):
        store = FileSessionStore(self.root / "a")
        for error_type, stays in (("http", False), ("connection", True)):
            error = {"type": error_type, "status": 400, "message": "no pictures here"}
            failed = await run(
                prompt=[{"type": "text", "text": "Look."}, data_part(PNG, name="p.png")],
                options=options_for([{"error": error}], session_store=store),
            )
            self.assertEqual(failed.stop_reason, "error")
            provider = self.provider("On we go.")
            again = await run(
                prompt="more", options=options_for(provider, session_store=store, resume=failed.session_id)
            )
            with self.subTest(error_type=error_type):
                self.assertEqual(again.final_text, "On we go.")
                self.assertEqual("p.png" in str(sent_parts(provider)), stays)
                texts = [m["content"] for m in provider.requests[-1]["messages"] if isinstance(m["content"], str)]
                self.assertEqual(any("was refused and is left out" in text for text in texts), not stays)
                self.assertTrue((await replay_events(store.read_events(again.session_id))).ok)

    async def test_a_path_passes_the_gate_as_a_read(self):
        (self.root / "p.png").write_bytes(PNG)
        (self.root / "notes.txt").write_text("tea at five")
        prompt = [
            {"type": "text", "text": "Look."},
            {"type": "image", "path": "p.png"},
            {"type": "file", "path": "notes.txt"},
        ]
        provider = self.provider()
        result = await run(prompt=prompt, options=options_for(provider, cwd=str(self.root), project_dir=str(self.root)))
        (content,) = sent_parts(provider)
        self.assertEqual(base64.b64decode(content[1]["data"]), PNG)
        self.assertIn("The file notes.txt:\ntea at five", content[0]["text"])
        decisions = [event for event in result.events if event.type == "permission.decision"]
        self.assertEqual([(d.name, d.allowed) for d in decisions], [("Read", True)] * 2)
        gate = PermissionGate(permission_mode="bypass", deny=["Read(p.png)"], cwd=str(self.root))
        provider = self.provider()
        options = options_for(provider, cwd=str(self.root), project_dir=str(self.root), permission_gate=gate)
        result = await run(prompt=prompt, options=options)
        self.assertEqual((result.stop_reason, provider.requests), ("error", []))
        self.assertIn("p.png is not sent", result.error_message)
        assert_closed(self, options.session_store, result.session_id)

    async def test_a_pdf_that_a_tool_gives_is_stored_beside_the_log_and_sent_whole(self):
        pdf = PDF + bytes(400_000)
        (self.root / "a.pdf").write_bytes(pdf)
        provider = self.provider({"tool_calls": [{"name": "Read", "arguments": {"file_path": "a.pdf"}}]}, "Read it.")
        options = options_for(provider, tools=[ReadTool()], cwd=str(self.root), project_dir=str(self.root))
        result = await run(prompt="read", options=options)
        output = next(event.output for event in result.events if event.type == "tool.result")
        self.assertEqual(
            (output["sha256"], output["size"], "data" in output), (sha256(pdf).hexdigest(), len(pdf), False)
        )
        (content,) = sent_parts(provider)
        self.assertEqual((content[0]["type"], content[0]["name"]), ("file", "a.pdf"))
        self.assertEqual(base64.b64decode(content[0]["data"]), pdf)
        self.assertTrue((await replay_events(options.session_store.read_events(result.session_id))).ok)

    async def test_a_url_is_passed_on_and_not_stored(self):
        provider = self.provider()
        part = {"type": "image", "url": "https://example.com/p.png"}
        result = await run(prompt=[part], options=options_for(provider))
        self.assertEqual(sent_parts(provider), [[part]])
        self.assertEqual(result.final_text, "Seen.")

    async def test_an_unsupported_part_is_refused_by_name_before_anything_is_stored(self):
        wide = PNG[:16] + struct.pack(">II", 9000, 10) + PNG[24:]
        cases = [
            ([], "a non-empty list of parts"),
            ([{"type": "image"}], "part 1 of the prompt .* needs exactly one of path, data"),
            ([{"type": "text", "text": "x"}, {"type": "video", "data": "x"}], "part 2"),
            ([{"type": "image", "data": "no base64!"}], "not base64"),
            ([{"type": "image", "data": "", "path": "x"}], "needs exactly one of"),
            ([data_part(PDF)], "application/pdf is sent as file"),
            ([data_part(PNG, media_type="image/gif")], "its bytes are image/png"),
            ([data_part(b"??")], "give its media_type"),
            ([data_part(wide)], "9,000 x 10 pixels"),
            ([data_part(PNG + bytes(6 << 20))], "bytes, and the limit is 5,242,880"),
            (b"bytes", "a prompt must be"),
        ]
        for prompt, text in cases:
            with self.subTest(text):
                options = options_for(["never"])
                with self.assertRaisesRegex(OptionsError, text):
                    async for _ in query(prompt=prompt, options=options):
                        self.fail("an event was yielded")
                self.assertEqual(options.session_store.list_sessions(), [])
        with self.assertRaisesRegex(OptionsError, "only local code may"):
            read_prompt([{"type": "image", "path": "p.png"}], paths=False)

    async def test_every_front_door_takes_parts(self):
        provider = self.provider("one", "two", "three")
        result = await submit([data_part(PNG)], options_for(provider)).wait()
        self.assertEqual(result.data, "one")
        async with AgentClient(options_for(provider)) as client:
            await client.send([{"type": "text", "text": "look"}, data_part(PNG)])
            self.assertEqual([e.final_text async for e in client.receive() if e.type == "result"], ["two"])
            with self.assertRaises(OptionsError):
                await client.send([{"type": "image"}])

        async def prompts():
            yield {"content": [{"type": "text", "text": "look"}, data_part(PNG)]}

        result = await run(prompt=prompts(), options=options_for(provider))
        self.assertEqual(result.final_text, "three")
        self.assertEqual([content[-1]["type"] for content in sent_parts(provider)], ["image"] * 3)


if __name__ == "__main__":
    unittest.main()
