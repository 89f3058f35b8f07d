"""Recognize answers to questions, by one rule for every interface through which somebody may answer.

A permission is answered with yes, no (optionally with a reason), edit and the input to run instead, or with another of its
choices. Any other question with choices accepts one of them, several if `details["multi_select"]` is set, and free text only
if `details["free_text"]` is. A question without choices accepts any text. Case and surrounding whitespace are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import AnswerRefusedError, InvalidEventError
from ..events import UserQuestion
from ..serialization import loads_json

# Replaces a secret answer in the log.
HIDDEN_ANSWER = "[hidden]"

_ALSO = {"y": ("yes", "accept"), "yes": ("yes", "accept"), "n": ("no", "decline"), "no": ("no", "decline")}


def read_answer(question: UserQuestion, words: str | bool) -> str | None:
    """Return the answer in a text, with choices spelled as in the question; None if the text is not an answer.

    True means yes and False means no, as for a `user_answerer`.
    """
    if isinstance(words, bool):
        words = "yes" if words else "no"
    if not isinstance(words, str):
        return None
    reply = words.strip()
    word, _, rest = reply.partition(" ")
    word, rest = word.casefold().rstrip(",.:"), rest.strip()
    several = question.details.get("multi_select") is True
    picked = pick_choices(reply, question.choices, several=several)
    if picked:
        return ", ".join(picked)
    if question.kind == "permission":
        if word in ("y", "yes") and not rest:
            return "yes"
        if word == "edit":
            return reply if edited_input(question.details, rest) is not None else None
        return f"no {rest}".strip() if word in ("n", "no") else None
    if takes_own_words(question):
        return reply or ("" if question.details.get("optional") is True else None)
    if not reply and question.details.get("optional") is True:
        return ""
    # "no, because ..." is a refusal, while "yes, if ..." must not count as consent.
    also = _ALSO.get(word, ()) if word in ("n", "no") or not rest else ()
    return next((choice for choice in question.choices if choice in also), None)


def check_answer(question: UserQuestion, words: str | bool) -> str:
    """Like `read_answer`, but raise `AnswerRefusedError`, which names the choices, for an invalid answer."""
    answer = read_answer(question, words)
    if answer is None:
        raise AnswerRefusedError(question.question_id, words, answers_of(question))
    return answer


def answers_of(question: UserQuestion) -> tuple[str, ...]:
    """The valid answers, for a person who gave an invalid one."""
    if question.kind == "permission":
        return *question.choices, "no because ...", "edit ..."
    return *map(str, question.choices), *(["a text"] if takes_own_words(question) else [])


def takes_own_words(question: UserQuestion) -> bool:
    """Whether any text is a valid answer."""
    return question.kind != "permission" and (not question.choices or question.details.get("free_text") is True)


def pick_choices(
    answer_text: str, choices: Sequence[str], *, several: bool = False, numbered: bool = False
) -> list[str]:
    """The choices that a text names, several (if allowed) separated by commas; empty if any part of it names none.

    With `numbered`, the number of a choice, counted from 1, also names it.
    """
    by_text = {str(number): choice for number, choice in enumerate(choices, 1)} if numbered else {}
    # Reversed, so that of two choices that differ only in case the first one wins; exact spellings come last and win over
    # all.
    by_text |= {_folded(choice): choice for choice in reversed(choices)}
    by_text |= {choice: choice for choice in choices}
    if answer_text.strip() in by_text:
        return [by_text[answer_text.strip()]]  # also one that consists of commas
    parts = [part.strip() for part in answer_text.split(",") if part.strip()]
    picked: dict[str, None] = {}
    while parts:
        # A choice may contain a comma: the longest one that fits is meant.
        for end in range(len(parts), 0, -1):
            text = ", ".join(parts[:end])
            if text in by_text or _folded(text) in by_text:
                break
        else:
            return []
        picked[by_text.get(text) or by_text[_folded(text)]] = None
        parts = parts[end:]
        if parts and not several:
            return []
    return list(picked)


def ambiguous_choices(choices: Sequence[str]) -> list[str]:
    """The choices that, in an answer of several, could be read as others: "A, B" beside "A" and "B"."""
    parts = [_folded(choice).split(", ") for choice in choices]
    begins = {each[0] for each in parts}
    return [
        choice
        for choice, own in zip(choices, parts, strict=True)
        if any(own[: len(each)] == each and own[len(each)] in begins for each in parts if len(each) < len(own))
    ]


def _folded(text: str) -> str:
    return ", ".join(part.strip() for part in text.split(",") if part.strip()).casefold()


def edited_input(details: Mapping[str, Any], rest: str) -> dict[str, Any] | None:
    """The input that `edit` substitutes for the one in question: a JSON object or, for Bash, a command. None if invalid."""
    asked_input = details.get("input")
    if details.get("tool_name") == "Bash" and rest and not rest.startswith("{"):
        return {**(asked_input if isinstance(asked_input, Mapping) else {}), "command": rest}
    try:
        changed = loads_json(rest)
    except InvalidEventError:
        return None
    return changed if isinstance(changed, dict) else None
