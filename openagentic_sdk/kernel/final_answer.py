"""Hold a run to an answer that fits a schema: ask for it in the form the endpoint has, check it, have it repaired.

Every attempt is in the log: a call of the final tool with its result, or an answer and the message that sends it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..errors import OptionsError, StructuredOutputError, ToolInputError
from ..events import UserMessage
from ..providers.base import Provider
from ..providers.wrap import formatted
from ..tools.base import Tool, ToolContext
from .agent import FinalAnswer, Run
from .structured import FINAL_ANSWER, OutputSchema

OutputForm = Literal["auto", "response_format", "tool", "text"]


def final_answer_prompt(wanted: FinalAnswer) -> str:
    """What the system prompt says about the answer."""
    if wanted.form == "tool":
        return f"When everything else is done, give your final answer by calling the tool {FINAL_ANSWER}."
    return wanted.schema.instructions() if wanted.form == "text" else ""


def ask_for_final_answer(
    provider: Provider, schema: OutputSchema, form: OutputForm, repair_turns: int
) -> tuple[Provider, FinalAnswer]:
    """The provider to ask, and how: by its response format if it has one, else by a last tool. Raises `OptionsError`."""
    if form == "tool" or form == "text":
        return provider, FinalAnswer(schema, form, repair_turns)
    asked = formatted(provider, schema.response_format())
    if asked is not None:
        return asked, FinalAnswer(schema, "response_format", repair_turns)
    if form == "response_format":
        raise OptionsError(f"{provider.name} has no response format: use output_form 'tool' or 'text'")
    return provider, FinalAnswer(schema, "tool", repair_turns)


class FinalAnswerTool(Tool):
    """The tool whose call is the answer."""

    name = FINAL_ANSWER
    effect = "read"  # it changes nothing, so no gate has to ask about it
    allowed_callers = ("direct",)

    def __init__(self, schema: OutputSchema) -> None:
        function = schema.tool()["function"]
        self.description = function["description"]
        self.input_schema = function["parameters"]
        self._schema = schema

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        value = self._schema.read_value(dict(input))
        if ctx.accept_answer is not None:
            ctx.accept_answer(value)
        return "The answer was accepted."


async def accept_final_text(run: Run, text: str) -> bool:
    """Read the answer out of the model's last text. One that does not fit is sent back and False returned.

    Raises `StructuredOutputError` when it was sent back often enough.
    """
    wanted = run.agent.final_answer
    if wanted is None or run.answer.is_accepted:
        return True
    try:
        run.answer.accept(wanted.schema.read_text(text))
        return True
    except ToolInputError as error:
        if run.answer.repairs >= wanted.repair_turns:
            raise StructuredOutputError(
                f"the final answer does not fit output_schema after {run.answer.repairs} repair turns: {error}"
            ) from None
        run.answer.repairs += 1
        await run.record(UserMessage(wanted.schema.repair_prompt(error), origin="repair"))
        return False
