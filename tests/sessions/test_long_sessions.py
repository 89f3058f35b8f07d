"""A view that drops summarised events folds later ones exactly as a view of the whole log does."""

import gc
import json
import random
import sys
import unittest

from openagentic_sdk.events import (
    AssistantMessage,
    ModelContext,
    ModelRequest,
    ModelResponse,
    PermissionDecision,
    Result,
    SessionCompacted,
    SessionRewound,
    SkillActivated,
    SkillDeactivated,
    SubagentFinished,
    SubagentStarted,
    SystemInit,
    SystemNotice,
    TodoUpdated,
    ToolResult,
    ToolStarted,
    ToolUse,
    UserAnswer,
    UserMessage,
    UserQuestion,
)
from openagentic_sdk.parts.record.folds.explain import origins
from openagentic_sdk.sessions.checkpoint import view_from_dict, view_to_dict
from openagentic_sdk.sessions.folds.compaction import ContextLimits, plan_compaction
from openagentic_sdk.sessions.folds.features.all import ALL_FOLDS, ObservedFilesFold, SubagentsFold
from openagentic_sdk.sessions.folds.features.skills import SkillsFold
from openagentic_sdk.sessions.folds.view import SessionView
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.sessions.resume import load_view
from openagentic_sdk.skills.activation import active_skills, skill_policy
from tests.size import full_size, sized

LIMITS = ContextLimits(max_bytes=2_000)


class RandomLog:
    """A random log with the traces of runs, people and crashes: turns, compactions at any place, rewinds, cuts."""

    def __init__(self, rng):
        self.rng = rng
        self.events = []
        self.step = 0
        self.asked = []
        self.children = []

    def add(self, *events):
        for event in events:
            seq = len(self.events) + 1
            self.events.append(event.__class__(**{**vars(event), "seq": seq, "ts": float(seq)}))

    def build(self, moves):
        self.add(SystemInit("s", "/w", "1", model="m", provider="p"), ModelContext("m", "p", "system", ()))
        choices = (self.turn, self.turn, self.turn, self.prompt, self.compaction, self.compaction, self.rewind)
        choices += (self.new_run, self.skills, self.person, self.child, self.bookkeeping, self.orphan)
        for _ in range(moves):
            self.rng.choice(choices)()
        return self.events

    def prompt(self):
        request_id = self.rng.choice([None, f"r{self.rng.randrange(4)}"])
        text = self.rng.choice(["hi", "", "x" * 60, "\ud800"])
        self.add(UserMessage(text, request_id=request_id, origin=self.rng.choice(["user", "user", "hook"])))

    def turn(self):
        self.step += 1
        calls = [self.rng.choice([f"c{self.step}_{i}", f"c{i}"]) for i in range(self.rng.randrange(4))]
        self.add(ModelRequest(self.step, 1, "0" * 64, 0))
        self.add(ModelResponse(self.step, 1, usage={"input_tokens": 5, "output_tokens": 2}, cost_usd=0.5))
        if self.rng.random() < 0.7 or not calls:
            self.add(AssistantMessage(self.rng.choice(["", f"text {self.step}"]), provider="p", extras={"e": 1}))
        self.add(*(ToolUse(call, "Read", {"n": self.step}) for call in calls))
        for call in calls:
            if self.rng.random() < 0.9:
                details = {"remembered": [f"Read({self.step})"]} if self.rng.random() < 0.1 else {}
                self.add(PermissionDecision(call, "Read", True, "default", "0" * 64, details=details))
                self.add(ToolStarted(call, "Read", "read", "0" * 64, f"key-{call}"))
            if self.rng.random() < 0.9:
                meta = {"files": {f"/f{self.step % 3}": str(self.step)}}
                self.add(ToolResult(call, {"content": call}, meta=meta))

    def compaction(self):
        self.add(SessionCompacted(self.rng.randrange(len(self.events) + 1), f"summary {len(self.events)}"))

    def rewind(self):
        if self.rng.random() < 0.3:
            self.add(SessionRewound(max(0, len(self.events) - self.rng.randrange(40))))

    def new_run(self):
        self.add(Result("done", "s", self.rng.choice(["end", "error", "waiting"])))
        first = self.rng.randrange(len(self.events)) if self.rng.random() < 0.3 else None
        self.add(SystemInit("s", "/w", "1", model="m", provider="p", messages_from_seq=first))

    def skills(self):
        name = self.rng.choice("abc")
        if self.rng.random() < 0.6:
            self.add(SkillActivated(name, "/skills", body="text", grants=[f"Bash({name})"], arguments="x"))
        else:
            self.add(SkillDeactivated(name))

    def person(self):
        uses = [event.tool_use_id for event in self.events if isinstance(event, ToolUse)]
        question = UserQuestion(f"q{len(self.events)}", "sure?", tool_use_id=uses[-1] if uses else None)
        self.add(question)
        if self.rng.random() < 0.5:
            self.add(UserAnswer(question.question_id, "yes"))

    def child(self):
        if self.children and self.rng.random() < 0.5:
            call, name = self.children.pop()
            self.add(SubagentFinished(call, "helper", name, "end", {"input_tokens": 3, "output_tokens": 1}, 0.25))
            return
        uses = [event.tool_use_id for event in self.events if isinstance(event, ToolUse)] or ["none"]
        self.children.append((uses[-1], f"child{len(self.events)}"))
        self.add(SubagentStarted(uses[-1], "helper", self.children[-1][1], "go"))

    def bookkeeping(self):
        self.add(TodoUpdated([{"content": f"do {len(self.events)}", "status": "pending"}]))
        self.add(SystemNotice("code", self.rng.choice(["one", "two"])))
        self.add(ModelContext("m", "p", f"system {self.rng.randrange(3)}", ()))

    def orphan(self):
        self.add(ToolResult(f"c{self.rng.randrange(4)}", "late"))


def plain(value):
    return json.loads(json.dumps(value, default=lambda event: {**vars(event), "type": event.type}))


def state_of(view):
    """Everything that a run reads from a view."""
    waiting = view.open_calls()
    asked = [UserQuestion("new", "sure?", tool_use_id=record.use.tool_use_id) for record in waiting]
    visible = {call["id"] for m in view.conversation.messages() for call in m.get("tool_calls") or ()}
    plan = plan_compaction(view.events, LIMITS, conversation=view.conversation)
    return plain(
        {
            "messages": view.conversation.messages(),
            "origins": [vars(origin) for origin in origins(view.conversation)],
            "cut": view.conversation.cut_seq(7, None),
            "size": view.conversation.size_bytes(),
            "plan": None if plan is None else vars(plan),
            "waiting": [vars(record) for record in waiting],
            "calls": {name: vars(view.calls[name]) for name in visible},
            "context": view.context,
            "steps": view.steps,
            "spent": [view.usage, view.cost_usd, view.tokens],
            "last_text": view.last_text,
            "files": view.fold(ObservedFilesFold).digests,
            "questions": view.open_questions(),
            "answers": [view.answer_to(question) for question in asked],
            "has_asked": [view.has_asked(record.use.tool_use_id) for record in waiting],
            "children": view.fold(SubagentsFold).open,
            "requests": [{name: vars(request) for name, request in view.requests.items()}, view.requests.asked],
            "skills": active_skills(view.fold(SkillsFold).events),
            "policy": vars(skill_policy(view.fold(SkillsFold).events)),
            "remembered": [e.details for e in view.events if e.type == "permission.decision" and e.details],
            "notices": sorted({(e.code, e.message) for e in view.events if isinstance(e, SystemNotice)}),
            "request": view.last_request_tokens,
        }
    )


class KeepingStore(MemorySessionStore):
    """A store with its log in a list, and a kept view that makes a round trip through JSON."""

    def __init__(self):
        super().__init__()
        self.log, self.kept = [], None

    def iter_events(self, session_id, *, after_seq=0, limit=None):
        return iter(self.log[after_seq:])

    def read_kept_view(self, session_id):
        if self.kept is None:
            return None, iter(self.log)
        kept = view_from_dict(json.loads(json.dumps(view_to_dict(self.kept))))
        return kept, iter(self.log[kept.horizon :])


class GarbageTest(unittest.TestCase):
    @full_size
    @unittest.skipUnless(sys.implementation.name == "cpython", "the subject is the garbage collector of CPython")
    def test_the_garbage_collector_has_nothing_to_look_at_in_a_session_that_was_resumed(self) -> None:
        store, count = MemorySessionStore(), 6 * 400
        store.create_session(session_id="s")
        for number in range(count // 6):
            step = f"c{number}"
            store.append_events(
                "s",
                [
                    UserMessage("a", attachments=[{"type": "image", "sha256": "0" * 64}]),
                    ModelRequest(number + 1, 1, "0" * 64, 1),
                    ToolUse(step, "Read", {"file_path": "x", "more": [{"a": 1}]}),
                    ToolStarted(step, "Read", "read", "0" * 64, step),
                    ToolResult(step, {"text": ["b"]}),
                    AssistantMessage("c"),
                ],
            )
        gc.collect()
        before = len(gc.get_objects())
        view, _ = load_view(store, "s")
        gc.collect()
        after = len(gc.get_objects())
        # The collector scans only objects created since the last freeze.
        self.assertLess(after - before, 6_000)
        self.assertEqual(len(view.events), count)


class CompactedViewsTest(unittest.TestCase):
    @full_size
    def test_the_view_after_compactions_equals_the_fold_of_the_whole_log_at_every_event(self):
        let_go = 0
        for seed in range(sized(10, 30, 2000)):
            rng = random.Random(seed)
            events = RandomLog(rng).build(rng.randrange(5, 40))
            whole, store = SessionView(ALL_FOLDS, provider="p"), KeepingStore()
            lean = SessionView(ALL_FOLDS, provider="p")
            for number, event in enumerate(events, 1):
                whole.apply(event)
                store.log.append(event)
                if isinstance(event, SessionRewound) and event.to_seq < lean.conversation.horizon:
                    lean, store.kept = load_view(store, "s", ALL_FOLDS, provider="p")
                else:
                    lean.apply(event)
                    if isinstance(event, SessionCompacted):
                        store.kept = lean.kept()
                        lean.forget(store.kept)
                if rng.random() < 0.06 or number == len(events):
                    with self.subTest(seed=seed, seq=number):
                        expected = state_of(whole)
                        loaded, _ = load_view(store, "s", ALL_FOLDS, provider="p")
                        for view in (lean, loaded):
                            found = state_of(view)
                            self.assertEqual([key for key in found if found[key] != expected[key]], [])
                        self.assertEqual(plain(rebuild_messages(events[:number], provider="p")), expected["messages"])
            let_go += len(lean.events) < len(whole.events) // 2
        self.assertGreater(let_go, 10, "no view dropped anything, so the test shows nothing")
