"""The rules by which vendors refuse a request, as data with source and date, and the code that applies them.

A rule in `rules.json` applies to one protocol, and only to some hosts if it names them. `path` leads to values in the
request (`*` is every item of a list, `type=text` the objects of that type, `!key` and `+key` those without and with that
key): each must match `match`, or none may exist (`absent`). `returns` leads to values in the answer, which must all be
among those at `path`. This is checked only if the request has fewer values there than the answer, because an endpoint may
return the same item again under another id. With `when`, the rule applies only to answers with a value at one of those
paths. Results must follow directly after the answer that made the calls; `_PAIRS` has the paths of both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...ground.packaged import read_packaged
from .plain import WireProtocol

RULES: Sequence[Mapping[str, Any]] = json.loads(read_packaged(__spec__, "rules.json"))
# The paths of the turns in a request, and of the calls and the results in a turn.
_PAIRS: Mapping[str, tuple[str, str, str]] = {
    "chat": ("messages.*", "tool_calls.*.id", "tool_call_id"),
    "responses": ("input.*", "type=*_call.call_id", "type=*_output.call_id"),
    "messages": ("messages.*", "content.*.type=tool_use.id", "content.*.type=tool_result.tool_use_id"),
    "gemini": ("contents.*", "parts.*.functionCall.name", "parts.*.functionResponse.name"),
    "converse": ("messages.*", "content.*.toolUse.toolUseId", "content.*.toolResult.toolUseId"),
}


def find_broken_rules(
    protocol: WireProtocol, host: str, request: Mapping[str, Any], answer: Sequence[Any]
) -> Iterator[str]:
    """Yield the reasons why an endpoint at `host` would refuse a request with this answer, and the source of each rule."""
    for rule in RULES:
        if rule["protocol"] != protocol or not host.endswith(tuple(rule.get("hosts", [""]))):
            continue
        source = f"({rule['source']}, {rule['since']})"
        if "when" in rule and not any(one for path in rule["when"] for c in answer for one in values_at(path, c)):
            continue
        request_values = list(values_at(rule["path"], request))
        if rule.get("absent") and request_values:
            yield f"{rule['path']} is sent {source}"
        if "match" in rule:
            for value in request_values:
                if not isinstance(value, str) or not re.fullmatch(rule["match"], value, re.S):
                    yield f"{rule['path']} is {value!r:.100} {source}"
        answer_values = [
            value for path in rule.get("returns", ()) for chunk in answer for value in values_at(path, chunk)
        ]
        for value in answer_values if len(request_values) < len(answer_values) else ():
            if value and value not in request_values:
                yield f"{rule['path']} lacks {value!r:.60} of the answer {source}"
    yield from _unanswered(protocol, request)


def values_at(path: str, value: Any) -> Iterator[Any]:
    """Yield the values to which a path, in the notation of `rules.json`, leads."""
    step, _, rest = path.partition(".")
    if not path:
        yield value
    elif step == "*":
        for item in value if isinstance(value, list) else ():
            yield from values_at(rest, item)
    elif isinstance(value, Mapping):
        name, _, pattern = step.partition("=")
        if step[0] in "!+":
            yield from values_at(rest, value) if (value.get(step[1:]) is not None) == (step[0] == "+") else ()
        elif pattern and fnmatchcase(str(value.get(name)), pattern):
            yield from values_at(rest, value)
        elif not pattern and value.get(name) is not None:
            yield from values_at(rest, value[name])


def _unanswered(protocol: WireProtocol, request: Mapping[str, Any]) -> Iterator[str]:
    turns, call_at, result_at = _PAIRS[protocol]
    waiting = list[Any]()
    for turn in values_at(turns, request):
        calls, results = list(values_at(call_at, turn)), list(values_at(result_at, turn))
        waiting += calls  # a vendor's own tool is answered in the same turn
        for one in results:
            if one in waiting:
                waiting.remove(one)
            else:
                yield f"{one!r} is answered without having been asked, or is answered twice"
        if waiting and not calls and not results and turn.get("type") in (None, "message"):
            yield f"the result of {waiting[0]!r} does not directly follow its call"
            waiting.clear()
    if waiting:
        yield f"{waiting[0]!r} has no result"
