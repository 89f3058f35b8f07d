"""Ask the person behind the session one or more questions.

An answer is one of the choices or free text. If nobody can be asked, the model reads an error, never an empty answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ToolError, ToolInputError
from ...ground.frozen import frozen
from ...kernel.tool import Questions, ToolContext
from ...sessions.answers import ambiguous_choices, pick_choices
from ..base import Tool
from ..labels import OWN_SESSION
from ..schema import array, boolean, object_schema, string

MAX_QUESTIONS = 4
# The last line of a question to which several choices may be the answer.
SEVERAL_ANSWERS = "(several answers: separate them by commas)"
MAX_CHOICES = 12

_CHOICES_SCHEMA = array(
    "Answers to choose from; the person may always answer in their own words.",
    maxItems=MAX_CHOICES,
    items={
        "anyOf": [
            {"type": "string"},
            object_schema({"label": {"type": "string"}, "description": {"type": "string"}}, required=["label"]),
        ]
    },
)
_QUESTION_FIELDS = {
    "question": string("The question, whole and ending with a question mark.", minLength=1),
    "choices": _CHOICES_SCHEMA,
    "multi_select": boolean("Whether several choices may be picked, separated by commas."),
    # The names in Claude Code's tool, which models have learned.
    "options": {**_CHOICES_SCHEMA, "description": "Another name for choices."},
    "multiSelect": boolean("Another name for multi_select."),
    "header": string("A few words above the question."),
}


@frozen
class Question:
    """One question to ask. `text` begins with the header; each of `descriptions` is a choice and its meaning."""

    text: str
    choices: tuple[str, ...] = ()
    multi_select: bool = False
    descriptions: tuple[str, ...] = ()
    header: str = ""

    @property
    def prompt(self) -> str:
        """The text for the person: the question, the meaning of each choice, and how to choose several."""
        lines = [self.text, *self.descriptions]
        if self.multi_select:
            lines.append(SEVERAL_ANSWERS)
        return "\n".join(lines)


class AskUserQuestionTool(Tool):
    """A tool that asks the user and returns the answer: `{"question", "answer", "is_choice"}`.

    For `questions`, it returns `{"answers": [...]}`, a list of such answers.
    """

    name = "AskUserQuestion"
    labels = OWN_SESSION
    description = (
        "Ask the user when the work cannot go on sensibly without their decision. Give choices where you can; the user "
        "may answer in their own words. Ask related questions in one call."
    )
    input_schema = object_schema(
        {
            **_QUESTION_FIELDS,
            "questions": array(
                "Several questions, instead of `question` and `choices`.",
                minItems=1,
                maxItems=MAX_QUESTIONS,
                items=object_schema(_QUESTION_FIELDS, required=["question"]),
            ),
        },
        required=[],
    )
    effect = "idempotent"  # use a logged answer, so that a repeated call asks nobody twice
    allowed_callers = ("direct",)

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> dict[str, Any]:
        items: Sequence[Mapping[str, Any]] = input.get("questions") or ([input] if "question" in input else [])
        if not items:
            raise ToolInputError("the question is missing: give `question`, or several in `questions`", path="question")
        questions = [_question(item) for item in items]
        answers, stopped = [], None
        for question in questions:
            try:
                answers.append(await _ask(question, ctx))
            except ToolError:
                raise
            except Exception as error:  # noqa: BLE001 - the run parks: ask the other questions, too, to be answered together
                stopped = stopped or error
        if stopped is not None:
            raise stopped
        return {"answers": answers} if "questions" in input else answers[0]


def _question(item: Mapping[str, Any]) -> Question:
    raw_choices = item.get("choices", item.get("options", ()))
    choices = [{"label": choice} if isinstance(choice, str) else choice for choice in raw_choices]
    header = f"{item['header']}: " if item.get("header") else ""
    labels = tuple(choice["label"] for choice in choices)
    several = item.get("multi_select", item.get("multiSelect", False))
    if several and (unclear := ambiguous_choices(labels)):
        raise ToolInputError(
            f"the choice {unclear[0]!r:.200} could be an answer of several choices: word it without a comma",
            path="choices",
        )
    return Question(
        text=header + item["question"],
        choices=labels,
        multi_select=several,
        descriptions=tuple(f"{c['label']}: {c['description']}" for c in choices if c.get("description")),
        header=item.get("header", ""),
    )


async def _ask(question: Question, ctx: ToolContext) -> dict[str, Any]:
    details = {"free_text": True, "multi_select": question.multi_select, "header": question.header}
    reply = (await ctx.services.get(Questions).ask(ctx, question.prompt, question.choices, details)).strip()
    picked = pick_choices(reply, question.choices, several=question.multi_select, numbered=True)
    answer = ", ".join(picked) if picked else reply
    return {"question": question.text, "answer": answer, "is_choice": bool(picked)}
