"""Score a run. A scorer that raises, hangs or ends its process yields a failed score with its message, nothing worse."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..errors import OpenAgentSdkError
from ..ground.globs import fits_name
from ..ground.text import on_one_line
from ..ground.threads import error_words
from ..serialization import event_to_dict
from ..sessions.request import json_sha256
from ..tools.find.search_files import is_linear
from .apart import Apart, ApartAnswer
from .played import MadeCall, Played
from .scorers import (
    CALL_LISTS,
    MAX_WORDS_CHARS,
    Call,
    Calls,
    Cost,
    Exact,
    Function,
    JsonSchema,
    Judge,
    Regex,
    Score,
    Scorer,
    Steps,
    as_call,
)

AskJudge = Callable[[Judge, str, Played], Awaitable[Score]]
_SHOWN_CHARS = 200


async def score_run(scorer: Scorer, name: str, run: Played, apart: Apart, ask_judge: AskJudge) -> Score:
    """Score a run with one scorer, which is called `name` in this suite."""
    try:
        match scorer:
            case Exact():
                expected_text, actual_text = scorer.text.strip(), run.final_text.strip()
                if scorer.ignore_case:
                    expected_text, actual_text = expected_text.casefold(), actual_text.casefold()
                return score(scorer, name, expected_text == actual_text, _about_text(run))
            case Regex():
                answer = await _search(apart, [(scorer.pattern, run.final_text)], scorer.timeout_s)
                return _judged(
                    scorer,
                    name,
                    answer,
                    lambda matches: score(scorer, name, matches[0] != scorer.absent, _about_text(run)),
                )
            case JsonSchema():
                return await _fits_schema(scorer, name, run, apart)
            case Calls():
                return await _calls(scorer, name, run, apart)
            case Cost():
                return _cost(scorer, name, run)
            case Steps():
                most = float("inf") if scorer.at_most is None else scorer.at_most
                return score(scorer, name, scorer.at_least <= run.steps <= most, f"{run.steps} steps")
            case Function():
                events = [event_to_dict(event) for event in run.events]
                answer = await apart.call(scorer.check, events, scorer.timeout_s)
                return _judged(scorer, name, answer, partial(_function_score, scorer, name))
            case Judge():
                return await ask_judge(scorer, name, run)
    except (OpenAgentSdkError, OSError, ValueError, TypeError, RecursionError) as error:
        return failed_score(scorer, name, *error_words(error))


def score(scorer: Scorer, name: str, passed: bool, words: str = "") -> Score:
    """Create a score of 1 if the run passed, else of 0."""
    return Score(name, scorer.type, passed, float(passed), words[:MAX_WORDS_CHARS])


def failed_score(scorer: Scorer, name: str, error_type: str, words: str) -> Score:
    """Create the score of a scorer that itself failed."""
    return Score(name, scorer.type, False, 0.0, f"{error_type}: {words}"[:MAX_WORDS_CHARS], error_type)


def _judged(scorer: Scorer, name: str, answer: ApartAnswer, judge: Callable[[Any], Score]) -> Score:
    """The score for the value of an answer; a failed one without a value."""
    if "value" not in answer:
        return failed_score(scorer, name, str(answer.get("error_type")), str(answer.get("error")))
    return judge(answer["value"])


def _about_text(run: Played) -> str:
    return (
        f"the final text is {on_one_line(run.final_text, _SHOWN_CHARS)!r}"
        if run.final_text
        else "there is no final text"
    )


async def _search(apart: Apart, pairs: Sequence[tuple[str, str]], timeout_s: float) -> ApartAnswer:
    """Search each text for its pattern: in this process if all patterns take linear time, otherwise in another."""
    if all(is_linear(pattern) for pattern, _ in pairs):
        return {"value": [re.search(pattern, text) is not None for pattern, text in pairs]}
    return await apart.ask({"kind": "patterns", "pairs": pairs}, timeout_s)


async def _fits_schema(scorer: JsonSchema, name: str, run: Played, apart: Apart) -> Score:
    value = run.structured_output
    if value is None:
        try:
            value = run.text_as_json()
        except (ValueError, RecursionError) as error:
            return score(scorer, name, False, f"the final text is not JSON: {error}")
    question = {"kind": "schema", "value": value, "schema": dict(scorer.schema)}
    answer = await apart.ask(question, scorer.timeout_s)
    words = str(answer.get("words", "it fits"))
    return _judged(scorer, name, answer, lambda fits: score(scorer, name, bool(fits), words))


def _cost(scorer: Cost, name: str, run: Played) -> Score:
    tokens = (
        None if run.usage is None else int(run.usage.get("input_tokens", 0)) + int(run.usage.get("output_tokens", 0))
    )
    problems = []
    if scorer.max_usd is not None and (run.cost_usd is None or run.cost_usd > scorer.max_usd):
        cost = "its cost is unknown" if run.cost_usd is None else f"it cost {run.cost_usd:.6g} USD"
        advice = ": add its model to `prices`" if run.cost_usd is None else ""
        problems.append(f"{cost}, and {scorer.max_usd:g} USD is the limit{advice}")
    if scorer.max_tokens is not None and (tokens is None or tokens > scorer.max_tokens):
        problems.append(
            f"it took {'an unknown number of' if tokens is None else tokens} tokens, and {scorer.max_tokens} is the limit"
        )
    figures = f"{'an unknown cost' if run.cost_usd is None else f'{run.cost_usd:.6g} USD'}, {tokens} tokens"
    return score(scorer, name, not problems, "; ".join(problems) or figures)


def _function_score(scorer: Function, name: str, answer: Any) -> Score:
    """The score for a function's result: True or False, a number from 0 to 1, or one of these with a message."""
    value, words = answer, ""
    if isinstance(value, list) and len(value) == 2:
        value, words = value[0], str(value[1])
    # First: True is an `int`, and would count as the number 1.
    if isinstance(value, bool):
        return score(scorer, name, value, words)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        excerpt = on_one_line(repr(answer), _SHOWN_CHARS)
        return failed_score(
            scorer, name, "ValueError", f"it returned {excerpt}, not True, False or a number from 0 to 1"
        )
    return Score(name, scorer.type, value >= scorer.pass_from, float(value), words[:MAX_WORDS_CHARS])


# --- calls -----------------------------------------------------------------------------------------------------------


async def _calls(scorer: Calls, name: str, run: Played, apart: Apart) -> Score:
    lists = {key: list(map(as_call, getattr(scorer, key) or ())) for key in CALL_LISTS}
    # By identity: two equal calls in a list are expected twice, and a dict in a call cannot be hashed.
    by_id = {id(call): call for calls in lists.values() for call in calls}
    texts = [
        (key, place, pattern, argument)
        for key, call in by_id.items()
        for place, made_call in enumerate(run.calls)
        if _fits_plainly(call, made_call)
        for argument, pattern in (call.matches or {}).items()
    ]
    values = [run.calls[place].input.get(argument) for _, place, _, argument in texts]
    value_texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    pairs = [(pattern, text) for (_, _, pattern, _), text in zip(texts, value_texts, strict=True)]
    answer = await _search(apart, pairs, scorer.timeout_s) if pairs else {"value": []}

    def judge(matches: Sequence[bool]) -> Score:
        missed = {(key, place) for (key, place, _, _), is_found in zip(texts, matches, strict=True) if not is_found}

        def fits(call: Call, place: int) -> bool:
            return _fits_plainly(call, run.calls[place]) and (id(call), place) not in missed

        problems = list(_problems(scorer, lists, len(run.calls), fits))
        call_names = ", ".join(call.tool for call in run.calls) or "nothing"
        words = "; ".join([*problems, f"it called {on_one_line(call_names, _SHOWN_CHARS)}"])
        return score(scorer, name, not problems, words)

    return _judged(scorer, name, answer, judge)


def _problems(
    scorer: Calls, lists: Mapping[str, Sequence[Call]], call_count: int, fits: Callable[[Call, int], bool]
) -> Sequence[str]:
    problems = []
    for call in lists["must"]:
        if not any(fits(call, place) for place in range(call_count)):
            problems.append(f"{describe_call(call)} was not called")
    for call in lists["must_not"]:
        if any(fits(call, place) for place in range(call_count)):
            problems.append(f"{describe_call(call)} was called")
    place = 0
    for call in lists["order"]:
        place = next((at + 1 for at in range(place, call_count) if fits(call, at)), call_count + 1)
        if place > call_count:
            problems.append(f"{describe_call(call)} was not called in the expected order")
            break
    exact = lists["exactly"]
    if scorer.exactly is not None and not (len(exact) == call_count and all(map(fits, exact, range(call_count)))):
        expected = f"the calls are not exactly {', '.join(map(describe_call, exact))}"
        problems.append(expected if exact else "calls were made, and none were expected")
    if scorer.at_most is not None and call_count > scorer.at_most:
        problems.append(f"{call_count} calls were made, and {scorer.at_most} is the limit")
    return problems


def describe_call(call: Call) -> str:
    """An expected call as one line, for messages."""
    parts = [json.dumps(dict(part), ensure_ascii=False) for part in (call.input, call.matches) if part]
    return on_one_line(" ".join([call.tool, *parts, *([f"({call.outcome})"] if call.outcome else [])]), _SHOWN_CHARS)


def _fits_plainly(call: Call, made_call: MadeCall) -> bool:
    """Whether a call that was made matches an expected one, apart from the patterns in `matches`."""
    return (
        fits_name(call.tool, made_call.tool)
        and call.outcome in (None, made_call.outcome)
        and _holds(made_call.input, call.input or {})
        and all(argument in made_call.input for argument in call.matches or {})
    )


def _holds(value: Any, expected: Any) -> bool:
    """Whether a value equals the expected one as JSON; an object may have additional members, unless it is in a list."""
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _holds(value[key], expected[key]) for key in expected
        )
    # As JSON: in Python, True equals 1, and a tuple differs from a list.
    return json_sha256(value) == json_sha256(expected)
