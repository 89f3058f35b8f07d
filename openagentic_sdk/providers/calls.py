"""Decide which calls of an answer may run: those that the model completed, in an answer that it completed.

One rule for all protocols. A protocol reports the pieces of each call and whether it saw the call's end; `finish_calls`
turns them into tool calls. A call without an end, or in an answer cut off by a limit, a filter, a pause or a refusal, keeps
its text as `raw_arguments`: it never runs, and the model gets an error that explains why.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..ground.frozen import mutable
from ..ground.loose import as_mapping, as_mappings
from ..ground.schemas import is_bounded
from ..serialization import MAX_DEPTH, refuse_constant
from .base import ToolCall, is_unfinished

# The maximum number of values in one call's arguments, far more than a model writes. A string of any length is one value.
MAX_ARGUMENT_VALUES = 100_000
# The tool with which a model finds tools that are not defined at the start.
TOOL_SEARCH = "ToolSearch"


@mutable
class HeardCall:
    """One call as received. `ended` is true if the endpoint declared it complete; `text` is its arguments as JSON."""

    id: str = ""
    name: str = ""
    text: str = ""
    ended: bool = False
    extras: Mapping[str, Any] | None = None
    caller: Mapping[str, Any] | None = None


def finish_calls(
    heard_calls: Sequence[HeardCall],
    *,
    finish_reason: str | None,
    refusal: bool = False,
    used_ids: Collection[str] = (),
) -> list[ToolCall]:
    """Return the calls, each with a unique id; one that must not run, or has no name, has `raw_arguments`."""
    ids, calls = set(used_ids), []
    cut = refusal or is_unfinished(finish_reason)
    for call in heard_calls:
        # Results refer to calls by id, so an id must be unique in the whole conversation.
        call_id = call.id if call.id and call.id not in ids else f"call_{os.urandom(12).hex()}"
        ids.add(call_id)
        arguments, raw = ({}, call.text) if cut or not (call.ended and call.name) else read_arguments(call.text)
        calls.append(ToolCall(call_id, call.name, arguments, raw, call.extras, call.caller))
    return calls


def vendor_caller(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The Messages or Responses API's description of the vendor code that made a call; None if the model made it."""
    caller = item.get("caller")
    return caller if isinstance(caller, Mapping) and caller.get("type") not in (None, "direct") else None


def allowed_callers(tool: Mapping[str, Any], *callers: str) -> dict[str, Any]:
    """The `allowed_callers` field of a tool's definition: `direct` and names that begin with one of `callers`.

    Empty if no such name is left besides `direct`, the default.
    """
    names = [name for name in tool.get("allowed_callers") or () if name == "direct" or name.startswith(callers)]
    return {} if set(names) <= {"direct"} else {"allowed_callers": names}


def tool_names_in(content: Any) -> list[str]:
    """The names of the tools in a result of the tool `TOOL_SEARCH`, in order; empty if the result is not its JSON."""
    try:
        tools = as_mappings(as_mapping(json.loads(str(content))).get("tools"))
    except (ValueError, RecursionError):
        return []
    return [name for tool in tools if isinstance(name := tool.get("name"), str)]


def _finite(text: str) -> float:
    number = float(text)  # infinity for 1e999, which JSON cannot represent again
    return number if math.isfinite(number) else refuse_constant(text)


_ARGUMENTS = json.JSONDecoder(parse_constant=refuse_constant, parse_float=_finite)


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return a call's arguments and None, or {} and the text if it is not a JSON object, too large or nested too deeply.

    Empty text and `null` mean no arguments.
    """
    if not text.strip():
        return {}, None
    try:
        value = _ARGUMENTS.decode(text)
        if isinstance(value, str):  # some models encode twice
            value = _ARGUMENTS.decode(value) if value.strip() else {}
    except (ValueError, RecursionError):
        return {}, text
    if value is None:
        return {}, None
    # Arguments too deep for the log would end the run. Half of its limit leaves room for the events that wrap them.
    fits = is_bounded(value, max_values=MAX_ARGUMENT_VALUES, max_levels=MAX_DEPTH // 2)
    return (value, None) if isinstance(value, dict) and fits else ({}, text)
