"""The prefix of a session's requests stays the same, in every protocol, even if oversized content has to be refused."""

from __future__ import annotations

import asyncio
import random
import tempfile
import unittest
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from openagentic_sdk.api import RunResult, run
from openagentic_sdk.events import (
    Event,
    ModelContext,
    ModelRequest,
    ModelRetry,
    SessionCompacted,
    SessionRewound,
    SystemInit,
    UserMessage,
)
from openagentic_sdk.hooks.engine import HookEngine
from openagentic_sdk.hooks.models import HookDecision, HookMatcher
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.providers.anthropic import AnthropicProvider
from openagentic_sdk.providers.clouds.gemini import GeminiProvider
from openagentic_sdk.providers.endpoint import EndpointProvider
from openagentic_sdk.providers.openai_compatible import OpenAICompatibleProvider
from openagentic_sdk.providers.openai_responses import OpenAIResponsesProvider
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.testing.endpoint import Answer, Asked, CachingEndpoint
from openagentic_sdk.testing.validity import CachedPiece
from openagentic_sdk.tools.shell.sandbox_plan import probe_sandbox
from tests.size import LARGE, full_size

PROVIDERS: dict[str, Callable[..., EndpointProvider]] = {
    "messages": AnthropicProvider,
    "responses": OpenAIResponsesProvider,
    "chat": OpenAICompatibleProvider,
    "gemini": GeminiProvider,
}
MODELS = {
    "messages": ("claude-opus-5-5", "claude-fable-5-1"),
    "responses": ("gpt-5", "gpt-6"),
    "chat": ("anthropic/claude-sonnet-5-5", "anthropic/claude-opus-5-5"),
    "gemini": ("gemini-3-pro", "gemini-4"),
}
SUMMARY = b"will be replaced by your summary"


def call(name: str, /, **arguments: Any) -> Answer:
    return Answer("I see.", [{"name": name, "arguments": arguments}], thinking=f"I need {name}.")


class ContextTestCase(unittest.TestCase):
    """Give each test a project with two skills, a rule for Python files and CLAUDE.md, and a store in memory."""

    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve()
        for name in ("deploy", "review"):
            self.write(f".claude/skills/{name}/SKILL.md", f"---\nname: {name}\ndescription: To {name}.\n---\nDo it.\n")
        self.write(".claude/rules/py.md", '---\npaths: "*.py"\n---\nType everything.\n')
        self.write("CLAUDE.md", "Whisper.")
        self.write("a.py", "print(1)\n" * 40)
        self.write("b.txt", "words\n" * 60)
        self.store = MemorySessionStore()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def provider(self, protocol: str, endpoint: CachingEndpoint) -> EndpointProvider:
        provider = PROVIDERS[protocol](base_url=endpoint.url, api_key="none")
        self.addCleanup(provider.http.close)
        return provider

    def options(self, protocol: str, endpoint: CachingEndpoint, **changes: Any) -> OpenAgenticOptions:
        settings: dict[str, Any] = {
            "provider": self.provider(protocol, endpoint),
            "model": MODELS[protocol][0],
            "cwd": self.folder,
            "project_dir": self.folder,
            "home": self.folder / "home",
            "setting_sources": ("project",),
            "session_store": self.store,
            "permission_gate": PermissionGate(permission_mode="bypass"),
        }
        return OpenAgenticOptions(**{**settings, **changes})

    def run_in(self, options: OpenAgenticOptions, prompt: Any) -> RunResult:
        result = asyncio.run(run(prompt=prompt, options=options))
        self.assertEqual((result.stop_reason, result.error_message), ("end", None))
        return result

    def events(self) -> list[Event]:
        (session_id,) = self.store.list_sessions()
        return self.store.read_events(session_id)


def script_of(answers: Sequence[Answer]) -> Callable[[Asked], Answer]:
    """Return the answers one after another, then `Done.`; a request for a summary gets a summary."""
    left = list(answers)

    def answer(asked: Asked) -> Answer:
        if SUMMARY in asked.parts[-1].data:
            return Answer("Summary: go on.", thinking="Short.")
        return left.pop(0) if left else Answer("Done.", thinking="It is done.")

    return answer


def breaks_of(events: Sequence[Event]) -> list[str]:
    """For each request of a log, the recorded reason why its prefix may differ from the request before; '' if it may not."""
    found, cause, seen = [], "", False
    for event in events:
        if isinstance(event, ModelContext) and seen:
            cause = event.cause
        elif isinstance(event, SessionCompacted | SessionRewound):
            cause = event.type
        elif isinstance(event, SystemInit) and event.messages_from_seq is not None:
            cause = "cut"
        elif isinstance(event, ModelRequest):
            is_apart = event.purpose == "compaction" and event.messages is not None
            found.append("own messages" if event.messages is not None else cause)
            cause, seen = ("own messages" if is_apart else ""), True
            if event.appended is not None:
                cause = "appended"
    return found


def is_beginning(before: Sequence[CachedPiece], now: Sequence[CachedPiece]) -> bool:
    """Whether one prompt as a whole is a byte-for-byte prefix of another."""
    return [part.data for part in before] == [part.data for part in now[: len(before)]]


class AppendOnlyTest(ContextTestCase):
    def check(self, endpoint: CachingEndpoint, protocol: str) -> None:
        """Check that no request was refused, that each extends the one before unless an event says why not, and that all of
        them can be rebuilt.
        """
        self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
        events = self.events()
        self.assertEqual(find_mismatches(events), [])
        causes = breaks_of(events)
        self.assertEqual(len(causes), len(endpoint.requests))
        for number, cause in enumerate(causes[1:], 1):
            before, now = endpoint.requests[number - 1], endpoint.requests[number]
            if not cause:
                self.assertTrue(
                    is_beginning(before.parts, now.parts), f"{protocol}: request {number} has a different prefix"
                )

    @full_size
    def test_random_runs_begin_each_request_with_the_one_before(self) -> None:
        for seed in range(40 if LARGE else 1):
            for protocol in PROVIDERS:
                with self.subTest(protocol=protocol, seed=seed):
                    self.setUp()
                    self.walk(protocol, random.Random(f"{seed} {protocol}"))
                    self.doCleanups()

    def walk(self, protocol: str, rng: random.Random) -> None:
        actions = [
            lambda: call("Read", file_path=rng.choice(["a.py", "b.txt", "missing"])),
            lambda: call("SkillActivate", name=rng.choice(["deploy", "review"]), arguments=rng.choice(["", "x"])),
            lambda: call("SkillDeactivate", name=rng.choice(["deploy", "review"])),
            lambda: call("Glob", pattern="*"),
            lambda: replace(call("Read", file_path="a.py"), text="", thinking=None),
            lambda: Answer("Enough.", thinking="Enough."),
            *([lambda: call("Code", code="print(await Read(file_path='a.py'))")] if LARGE else []),
        ]
        answers = [rng.choice(actions)() for _ in range(30)]
        with CachingEndpoint(script_of(answers)) as endpoint:
            session_id = None
            for _ in range(4 if LARGE else 3):
                prompts = [
                    rng.choice(["Go.", "/deploy the beta", "/review", "Again."]) for _ in range(rng.randint(1, 2))
                ]
                window = rng.choice([None, None, 30_000])
                options = self.options(protocol, endpoint, resume=session_id, max_context_bytes=window, code=LARGE)
                session_id = self.run_in(options, self.prompts(prompts)).session_id
                if rng.random() < 0.4:
                    self.write("CLAUDE.md", f"Whisper {rng.random()}.")
                if rng.random() < 0.3:
                    last = max(e.seq or 0 for e in self.events() if isinstance(e, UserMessage))
                    self.store.append_event(session_id, SessionRewound(last - 1))
            self.check(endpoint, protocol)

    @full_size
    def test_calls_of_code_are_in_no_request_and_a_session_with_them_continues_anywhere(self) -> None:
        if probe_sandbox().level == "none":
            self.skipTest("code runs only in a sandbox, which this machine lacks")
        code = "for name in ('a.py', 'b.txt'):\n    await Read(file_path=name)\nprint('both are read')"
        answers = [call("Code", code=code), call("Glob", pattern="*"), Answer("Enough.", thinking="Enough.")]
        for protocol in PROVIDERS if LARGE else ("messages", "responses"):
            self.setUp()
            with self.subTest(protocol), CachingEndpoint(script_of(answers)) as endpoint:
                options = self.options(protocol, endpoint, code=True)
                session_id = self.run_in(options, "Go.").session_id
                other = replace(options, model=MODELS[protocol][1], resume=session_id)
                self.run_in(other, "And now?")
                self.check(endpoint, protocol)
                sent = b"".join(part.data for asked in endpoint.requests for part in asked.parts if part.kind != "tool")
                self.assertIn(b"both are read", sent)
                self.assertNotIn(b"words\\nwords", sent)
        events = self.events()
        begun = next(n for n, event in enumerate(events) if event.type == "tool.started")
        ended = next(n for n, e in enumerate(events) if e.type == "tool.result" and not e.parent_tool_use_id)
        for end in range(begun, ended + 2):
            with self.subTest(end=end), CachingEndpoint(script_of([])) as endpoint:
                self.store = MemorySessionStore()
                self.store.import_session("s", [replace(event, mac=None) for event in events[:end]])
                self.run_in(self.options("gemini", endpoint, code=True, resume="s"), "Go on.")
                self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
                resumed = self.store.read_events("s")
                self.assertEqual(find_mismatches(resumed), [])
                asked = [event.tool_use_id for event in resumed if event.type == "tool.use"]
                answered = [event.tool_use_id for event in resumed if event.type == "tool.result"]
                self.assertEqual(sorted(asked), sorted(answered))

    @full_size
    def test_an_active_skill_is_repeated_after_a_compaction_in_the_same_run(self) -> None:
        answers = [call("SkillActivate", name="deploy"), *(call("Read", file_path="b.txt") for _ in range(12))]
        for protocol in PROVIDERS if LARGE else ("messages",):
            with self.subTest(protocol), CachingEndpoint(script_of(answers)) as endpoint:
                self.setUp()
                self.run_in(self.options(protocol, endpoint, max_context_bytes=24_000), "Go.")
                self.check(endpoint, protocol)
                events = self.events()
                compacted = [n for n, event in enumerate(events) if isinstance(event, SessionCompacted)]
                self.assertTrue(compacted)
                for n in compacted:
                    behind = events[n : next(m for m in range(n, len(events)) if isinstance(events[m], ModelRequest))]
                    contexts = [
                        e.text for e in behind if isinstance(e, UserMessage) and (e.about or "").startswith("skill:")
                    ]
                    self.assertEqual(len(contexts), 1, contexts)
                    self.assertIn("Do it.", contexts[0])
                last = endpoint.requests[-1]
                self.assertEqual(sum(b"Do it." in part.data for part in last.parts), 1)

    async def prompts(self, texts: Sequence[str]) -> AsyncIterator[str]:
        for text in texts:
            yield text

    @full_size
    def test_a_changed_project_is_announced_once_and_the_system_prompt_stays(self) -> None:
        for protocol in PROVIDERS:
            with self.subTest(protocol), CachingEndpoint(script_of([])) as endpoint:
                self.setUp()
                first = self.run_in(self.options(protocol, endpoint), "Go.")
                self.write("CLAUDE.md", "Shout.")
                self.write(".claude/skills/new/SKILL.md", "---\nname: new\ndescription: New.\n---\nNew.\n")
                for _ in range(2):
                    self.run_in(self.options(protocol, endpoint, resume=first.session_id), "And now?")
                (self.folder / "CLAUDE.md").unlink()
                self.run_in(self.options(protocol, endpoint, resume=first.session_id), "And now?")
                self.check(endpoint, protocol)
                self.assertEqual(
                    [c.cause for c in self.events() if isinstance(c, ModelContext)], ["the session begins"]
                )
                contexts = [e for e in self.events() if isinstance(e, UserMessage) and e.about]
                kinds = [(event.about or "").partition(":")[0] for event in contexts]
                self.assertEqual(kinds, ["memory", "skill-index", "memory"])
                self.assertIn("Shout.", contexts[0].text)
                self.assertIn("not in force", contexts[2].text)

    @full_size
    def test_another_model_is_sent_no_reasoning_of_the_first_and_the_first_one_its_own_again(self) -> None:
        for protocol in PROVIDERS:
            with self.subTest(protocol), CachingEndpoint(script_of([call("Read", file_path="b.txt")])) as endpoint:
                self.setUp()
                first = self.run_in(self.options(protocol, endpoint), "Go.")
                for model in (MODELS[protocol][1], MODELS[protocol][0]):
                    options = self.options(protocol, endpoint, model=model, resume=first.session_id)
                    self.run_in(options, "And now?")
                self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
                bound = [[part.bound for part in asked.parts if part.bound] for asked in endpoint.requests]
                self.assertEqual([len(signatures) for signatures in bound], [0, 1, 0, 2])

    @full_size
    def test_a_message_rewritten_by_a_hook_loses_the_reasoning_bound_to_the_original(self) -> None:
        def rewrite(payload: dict[str, Any]) -> HookDecision | None:
            messages = payload["messages"]
            if len(messages) < 4:
                return None
            return HookDecision(override_messages=[*messages[:1], {"role": "user", "content": "Other."}, *messages[2:]])

        hooks = HookEngine(before_model_call=[HookMatcher("other", hook=rewrite)], enable_message_rewrite_hooks=True)
        answers = [call("Read", file_path="b.txt"), call("Glob", pattern="*"), call("Glob", pattern="*.py")]
        for protocol in PROVIDERS:
            with self.subTest(protocol), CachingEndpoint(script_of(answers)) as endpoint:
                self.setUp()
                self.run_in(self.options(protocol, endpoint, hooks=hooks), "Go.")
                self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])

    @full_size
    def test_a_session_continues_from_between_any_two_of_its_events(self) -> None:
        answers = [
            call("Read", file_path="a.py"),
            call("SkillActivate", name="deploy"),
            Answer("Both.", [call("Glob", pattern="*").calls[0], call("Read", file_path="b.txt").calls[0]], "Two."),
            Answer("Enough.", thinking="Enough."),
            call("Read", file_path="b.txt"),
        ]
        for protocol in PROVIDERS:
            self.setUp()
            with CachingEndpoint(script_of(answers)) as endpoint:
                first = self.run_in(self.options(protocol, endpoint), "Go.")
                options = self.options(protocol, endpoint, resume=first.session_id, max_context_bytes=24_000)
                self.run_in(options, "/review all")
                events = self.events()
                self.assertIn("session.compacted", [event.type for event in events])
            step = 1 if LARGE else 29
            for end in range(1, len(events), step):
                with self.subTest(protocol, end=end), CachingEndpoint(script_of([])) as endpoint:
                    self.store = MemorySessionStore()
                    self.store.import_session("s", [replace(event, mac=None) for event in events[:end]])
                    self.run_in(self.options(protocol, endpoint, resume="s"), "Go on.")
                    self.assertEqual([asked.fault for asked in endpoint.requests if asked.fault], [])
                    self.assertEqual(find_mismatches(self.store.read_events("s")), [])


class RefusedTest(ContextTestCase):
    """An endpoint that rejects a session's reasoning for a reason that the rules do not cover."""

    def go_on_elsewhere(self, protocol: str, **endpoint: Any) -> tuple[CachingEndpoint, RunResult]:
        with CachingEndpoint(script_of([call("Read", file_path="b.txt")] * 4), **endpoint) as server:
            first = self.run_in(self.options(protocol, server), "Go.")
            server.account = "another"
            options = self.options(protocol, server, resume=first.session_id)
            return server, self.run_in(options, "Go on.")

    def controls(self) -> list[str]:
        return [e.control.partition(" ")[0] for e in self.events() if isinstance(e, ModelRetry) and e.control]

    def test_the_vendors_own_control_is_asked_for_once_and_kept_for_the_session(self) -> None:
        server, second = self.go_on_elsewhere("messages")
        refused = [asked for asked in server.requests if asked.fault]
        self.assertEqual((len(refused), self.controls()), (1, ["drop_block"]))
        self.assertIn("bound to a different conversation", refused[0].fault or "")
        after = server.requests[server.requests.index(refused[0]) + 1 :]
        wanted = {"prefix_mismatch_behavior": "drop_block"}
        self.assertEqual([asked.body["thinking"]["block_binding"] for asked in after], [wanted] * len(after))
        self.assertTrue(after and all("thinking-binding" in asked.headers["anthropic-beta"] for asked in after))
        with CachingEndpoint(script_of([]), account="a third") as third:
            self.run_in(self.options("messages", third, resume=second.session_id), "Go on.")
        # The control applies to the endpoint that required it; this one, at another address, has to reject a request first.
        self.assertEqual(self.controls(), ["drop_block"])
        self.assertEqual(find_mismatches(self.events()), [])

    def test_a_resumed_session_asks_so_from_its_first_request_on(self) -> None:
        with CachingEndpoint(script_of([call("Read", file_path="b.txt")] * 2)) as server:
            first = self.run_in(self.options("messages", server), "Go.")
            for account in ("b", "c"):
                server.account = account
                self.run_in(self.options("messages", server, resume=first.session_id), "Go on.")
        self.assertEqual(sum(asked.fault is not None for asked in server.requests), 1)
        self.assertEqual(self.controls(), ["drop_block"])

    @full_size
    def test_without_such_a_control_the_request_goes_out_without_reasoning(self) -> None:
        for protocol in ("messages", "responses", "chat", "gemini"):
            with self.subTest(protocol):
                self.setUp()
                server, _ = self.go_on_elsewhere(protocol, knows_drop_block=False)
                expected = ["drop_block", "no_reasoning"] if protocol == "messages" else ["no_reasoning"]
                self.assertEqual(self.controls(), expected)
                self.assertEqual([part for part in server.requests[-1].parts if part.bound], [])

    def test_a_fallback_needed_by_one_session_does_not_affect_another(self) -> None:
        with CachingEndpoint(script_of([call("Read", file_path="b.txt")] * 2)) as server:
            options = self.options("messages", server)
            first = self.run_in(options, "Go.")
            server.account = "another"
            self.run_in(replace(options, resume=first.session_id), "Go on.")
            self.run_in(options, "Go.")
        self.assertNotIn("thinking", server.requests[-1].body)


if __name__ == "__main__":
    unittest.main()
