"""Shared helpers of the runtime tests: an agent with a scripted model, all calls allowed, sessions in memory."""

from openagentic_sdk.api import query
from openagentic_sdk.events import Result
from openagentic_sdk.options import OpenAgenticOptions
from openagentic_sdk.parts.record.folds.audit import find_mismatches
from openagentic_sdk.permissions.gate import PermissionGate
from openagentic_sdk.sessions.memory import MemorySessionStore
from openagentic_sdk.sessions.rebuild import rebuild_messages
from openagentic_sdk.testing.scripted import ScriptedProvider
from openagentic_sdk.testing.validity import find_fault
from openagentic_sdk.tools.function import tool


@tool(effect="read")
async def echo(text: str) -> str:
    """Give the text back."""
    return text


@tool
def fail(text: str = "it broke") -> str:
    """Fail."""
    raise RuntimeError(text)


def options_for(turns, **changes):
    """Options for a scripted model; `changes` overrides any of them."""
    provider = turns if isinstance(turns, ScriptedProvider) else ScriptedProvider(turns)
    settings = {
        "provider": provider,
        "model": "scripted-1",
        "tools": [echo, fail],
        "permission_gate": PermissionGate(permission_mode="bypass"),
        "session_store": MemorySessionStore(),
        "system_prompt": "You are a test.",
    }
    return OpenAgenticOptions(**{**settings, **changes})


async def events_of(prompt, options):
    """Run the prompt and return all events."""
    return [event async for event in query(prompt=prompt, options=options)]


def result_of(events):
    """The final result of a run; fails if the last event is something else."""
    assert isinstance(events[-1], Result), events[-1]
    return events[-1]


def types_of(events, *left_out):
    """The types of the events, without deltas, model events and the types in `left_out`."""
    skipped = {"assistant.delta", "model.context", "model.request", "model.response", *left_out}
    return [event.type for event in events if event.type not in skipped]


def assert_closed(test, store, session_id):
    """Check that the log is complete: no gap in `seq`, a final result, sendable messages, every request rebuildable."""
    events = store.read_events(session_id)
    test.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
    test.assertEqual(events[-1].type, "result")
    test.assertIsNone(find_fault(rebuild_messages(events)))
    test.assertEqual(find_mismatches(events), [])
    asked = {event.tool_use_id for event in events if event.type == "tool.use"}
    answered = [event.tool_use_id for event in events if event.type == "tool.result"]
    test.assertEqual(sorted(answered), sorted(asked), "each call needs exactly one result")
    return events
