"""What the tests of the runtime share: an agent with a scripted model, everything allowed, sessions in memory."""

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
    """Options for a scripted model; `changes` are any options."""
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
    """All events of a run."""
    return [event async for event in query(prompt=prompt, options=options)]


def result_of(events):
    """The result that ends a run; fails when it is not the last event."""
    assert isinstance(events[-1], Result), events[-1]
    return events[-1]


def types_of(events, *left_out):
    """The types of the events, without deltas and the types that a test does not care for."""
    skipped = {"assistant.delta", "model.context", "model.request", "model.response", *left_out}
    return [event.type for event in events if event.type not in skipped]


def assert_closed(test, store, session_id):
    """The log is whole: numbered without a hole, ended by a result, sendable, and every request can be rebuilt."""
    events = store.read_events(session_id)
    test.assertEqual([event.seq for event in events], list(range(1, len(events) + 1)))
    test.assertEqual(events[-1].type, "result")
    test.assertIsNone(find_fault(rebuild_messages(events)))
    test.assertEqual(find_mismatches(events), [])
    asked = {event.tool_use_id for event in events if event.type == "tool.use"}
    answered = [event.tool_use_id for event in events if event.type == "tool.result"]
    test.assertEqual(sorted(answered), sorted(asked), "each call has exactly one result")
    return events
