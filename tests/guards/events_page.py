"""The reference of all events in `docs/events.md`."""

from __future__ import annotations

import dataclasses
import inspect

from openagentic_sdk import events

from .source import ROOT

PAGE = ROOT / "docs" / "events.md"
HEAD = """# Events

Everything that happens in a run is one of these frozen values, defined in [events.py](../openagentic_sdk/events.py).
This page is generated from that file by `python3 -m tests.guards.generated`, and a test compares the two.
`AnyEvent` is the union of their classes: after `if event.type == "tool.result"`, or in a `match` on classes, type
checkers infer the fields. An event of an unknown type is an `UnknownEvent`, which can be matched by its class.

In the log and on the wire an event is a JSON object with its `type`, its own fields and these common ones:

- `seq`, its number in the session's log, from 1 without gaps; None until it is stored,
- `ts`, seconds since the epoch, for information only,
- `parent_tool_use_id`, the id of the `Task` call that started the subagent to which the event belongs (or of the call
  that runs the code, for calls made by code), and `agent_name`, that subagent's name,
- `mac`, on events that could later authorize something: a digest that only this installation can compute, see
  [permissions](permissions.md).

A reader ignores fields that it does not know, and keeps events of unknown types unchanged.

```python
from openagentic_sdk.events import UserMessage
from openagentic_sdk.serialization import dumps_event, loads_event

line = dumps_event(UserMessage("Is the tea ready?"))
assert loads_event(line) == UserMessage("Is the tea ready?")
```
"""


def page() -> str:
    """The whole page."""
    common = {known.name for known in dataclasses.fields(events.Event)}
    parts = [HEAD]
    for kind in vars(events).values():
        if not (isinstance(kind, type) and issubclass(kind, events.Event) and vars(kind).get("type")):
            continue
        parts.append(f"## {kind.type}\n\n`{kind.__name__}`. {inspect.cleandoc(kind.__doc__ or '')}\n")
        rows = [_row(known) for known in dataclasses.fields(kind) if known.name not in common]
        if rows:
            parts.append("| field | type | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(known: dataclasses.Field[object]) -> str:
    default = ""
    if known.default_factory is not dataclasses.MISSING:
        default = f"`{known.default_factory()!r}`"
    elif known.default is not dataclasses.MISSING:
        default = f"`{known.default!r}`"
    kind = str(known.type).replace("|", "\\|")
    return f"| `{known.name}` | `{kind}` | {default} |"
