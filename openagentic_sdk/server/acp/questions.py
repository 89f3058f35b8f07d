"""Present a run's questions in an editor: permissions as buttons below the diff, others as a form or as buttons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...events import UserQuestion
from ...ground.jsonrpc import Json
from ...ground.loose import as_mapping
from ...ground.text import on_one_line
from ...sessions.answers import read_answer, takes_own_words
from .buffers import saved_text
from .calls import content, describe_call, diffs, fenced
from .view import MAX_OLD_BYTES, ShownCall

STOP = "stop"
NO_ANSWER = "(The person did not answer.)"
# The field for free text in a form that also has choices.
_OTHER = "other"


def permission_params(question: UserQuestion, call: ShownCall | None, cwd: str) -> Json:
    """The parameters of `session/request_permission` except the session: the call to be run, and the options."""
    details = question.details
    name, input = details.get("tool_name"), details.get("input")
    fields = describe_call(name if isinstance(name, str) else question.prompt, as_mapping(input), cwd)
    if fields["kind"] == "edit" and "locations" in fields and isinstance(input, Mapping):
        path = fields["locations"][0]["path"]
        fields["content"] = diffs(str(name), input, path, saved_text(path, MAX_OLD_BYTES))
    if "content" not in fields:
        lines = details.get("preview")
        text = "\n".join(map(str, lines)) if isinstance(lines, Sequence) and not isinstance(lines, str) else ""
        fields["content"] = [content(fenced(text))] if text else []
    if details.get("reason"):
        fields["content"] = [*fields["content"], content(on_one_line(str(details["reason"]), 1000))]
    wire_id = call.id if call is not None else f"question.{question.question_id}"
    options = [("yes", "Allow", "allow_once")]
    if "always" in question.choices:
        offers = question.details.get("offers")
        rules = ", ".join(map(str, offers)) if isinstance(offers, Sequence) and not isinstance(offers, str) else ""
        options.append(("always", f"Allow in this session: {on_one_line(rules, 120)}", "allow_always"))
    options += [("no", "Reject", "reject_once"), (STOP, "Reject and stop", "reject_once")]
    return {
        "toolCall": {"toolCallId": wire_id, "status": "pending", **fields},
        "options": [{"optionId": name, "name": label, "kind": kind} for name, label, kind in options],
    }


def chosen(result: Any, options: Sequence[Json]) -> str | None:
    """The id of the option that the user chose; None if the question was dismissed or the result is invalid."""
    match result:
        case {"outcome": {"outcome": "selected", "optionId": str(option)}}:
            return option if any(option == each["optionId"] for each in options) else None
    return None


# --- questions from the model ----------------------------------------------------------------------------------------


def form_params(question: UserQuestion, call: ShownCall | None) -> Json:
    """The parameters of `elicitation/create` except the session: one question, its choices and a field for free text."""
    answer: Json = {"type": "string", "title": "Answer"}
    properties: Json = {_OTHER: answer}
    if question.choices:
        choices = [{"const": choice, "title": on_one_line(choice, 200)} for choice in question.choices]
        properties = {
            "answer": {"type": "string", "title": "Answer", "oneOf": choices},
            **({_OTHER: {"type": "string", "title": "Or in your own words"}} if takes_own_words(question) else {}),
        }
    schema = {"type": "object", "properties": properties, "required": [] if question.choices else [_OTHER]}
    tied = {} if call is None else {"toolCallId": call.id}
    return {"mode": "form", "message": question.prompt, "requestedSchema": schema, **tied}


def form_answer(result: Any, question: UserQuestion, words: Mapping[str, str]) -> str:
    """The answer in a submitted form; without one, the word in `words` for the user's action, or the action itself.

    An answer that the question does not permit counts as the action `cancel`.
    """
    action = result.get("action") if isinstance(result, Mapping) else None
    action = action if action in ("accept", "decline") else "cancel"
    content = result.get("content") if isinstance(result, Mapping) else None
    if action == "accept" and isinstance(content, Mapping):
        values = [content.get(name) for name in (_OTHER, "answer")]
        texts = [text.strip() for text in values if isinstance(text, str) and text.strip()]
        if texts:
            answer = read_answer(question, texts[0])
            return words.get("cancel", "cancel") if answer is None else answer
    return words.get(action, action)


def choice_params(question: UserQuestion, call: ShownCall | None) -> Json:
    """A multiple-choice question as a permission request, for editors without forms: one button per choice."""
    wire_id = call.id if call is not None else f"question.{question.question_id}"
    options = [
        {"optionId": str(number), "name": on_one_line(choice, 200), "kind": "allow_once"}
        for number, choice in enumerate(question.choices)
    ]
    options.append({"optionId": "none", "name": "None of these", "kind": "reject_once"})
    title = on_one_line(question.prompt, 200)
    call_fields = {"toolCallId": wire_id, "title": title, "kind": "other", "content": [content(question.prompt)]}
    return {"toolCall": call_fields, "options": options}
