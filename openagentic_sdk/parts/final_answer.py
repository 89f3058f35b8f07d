"""Require a final answer that matches a schema: request it in the best form for the endpoint, check it, have it repaired.

Every attempt is in the log: a call of the final tool with its result, or an answer and the message that rejects it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from ..errors import OptionsError, StructuredOutputError, ToolInputError
from ..events import AssistantMessage, Event, ModelResponse, Result, SessionCompacted, ToolResult, ToolUse, UserMessage
from ..ground.frozen import frozen
from ..ground.words import plural
from ..kernel.agent import Run
from ..kernel.model_step import Reply
from ..kernel.part import IncomingPrompt, Part
from ..kernel.tool import ToolContext
from ..providers.base import Provider
from ..providers.wrappers.wrap import formatted
from ..serialization import dumps_json
from ..sessions.folds.requests import REFUSED
from ..sessions.rebuild import newest_standing
from ..tools.base import Tool
from .structured import FINAL_ANSWER, OutputSchema

OutputForm = Literal["auto", "response_format", "tool", "text"]


@frozen
class FinalAnswer:
    """The schema of the final answer, the form in which it is requested, and the maximum number of repairs."""

    schema: OutputSchema
    form: Literal["response_format", "tool", "text"]
    repair_turns: int


def final_answer_prompt(answer: FinalAnswer) -> str:
    """The part of the system prompt about the final answer; "" if none is needed."""
    if answer.form == "tool":
        return f"When everything else is done, give your final answer by calling the tool {FINAL_ANSWER}."
    return answer.schema.instructions() if answer.form == "text" else ""


def ask_for_final_answer(
    provider: Provider, schema: OutputSchema, form: OutputForm, repair_turns: int
) -> tuple[Provider, FinalAnswer]:
    """Choose the form of the final answer: "auto" is the endpoint's response format if it has one, else a final tool.

    Returns the provider to use and the requirements. Raises `OptionsError` if the provider does not support `form`.
    """
    if form == "tool" or form == "text":
        return provider, FinalAnswer(schema, form, repair_turns)
    formatted_provider = formatted(provider, schema.response_format())
    if formatted_provider is not None:
        return formatted_provider, FinalAnswer(schema, "response_format", repair_turns)
    if form == "response_format":
        raise OptionsError(f"{provider.name} does not support response formats: use output_form 'tool' or 'text'")
    return provider, FinalAnswer(schema, "tool", repair_turns)


class FinalAnswerTool(Tool):
    """The tool whose call is the final answer."""

    name = FINAL_ANSWER
    effect = "read"
    is_answer = True
    allowed_callers = ("direct",)

    def __init__(self, schema: OutputSchema) -> None:
        function = schema.tool()["function"]
        self.description = function["description"]
        self.input_schema = function["parameters"]
        self._schema = schema

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> Any:
        value = self._schema.read_value(dict(input))
        output = ctx.services.find(StructuredOutput)
        if output is not None:
            output.accept(value)
        return "The answer was accepted."


class Repairs:
    """A counter of a run's rejected answers, whatever the reason; `most` is the limit."""

    def __init__(self, run: Run, most: int) -> None:
        self._run, self._most, self.count = run, most, 0

    def count_one(self, verdict: str, reason: str) -> None:
        """Count an answer that the model must repair. Raises `StructuredOutputError` above the limit."""
        if self.count >= self._most:
            raise StructuredOutputError(
                f"the final answer {verdict} after {plural(self.count, 'repair turn')}: {reason}"
            )
        self.count += 1

    async def send_back(self, prompt: str, verdict: str, reason: str) -> None:
        """Count a rejected answer, and send `prompt` to have it repaired. Raises `StructuredOutputError` above the limit."""
        self.count_one(verdict, reason)
        await self._run.record(UserMessage(prompt, origin="repair"))


_MISFIT = "does not fit output_schema"


class StructuredOutput(Part):
    """A part that enforces a run's output schema: it reads the answer, and rejects one that does not match."""

    def __init__(self, run: Run, answer: FinalAnswer) -> None:
        super().__init__(run)
        self._answer_form = answer
        self._value: Any = None
        self._is_given = False
        self._taken: str | None = None
        self._text_beside = ""  # what the model wrote with the call that gave the answer of an earlier run
        self._misfit: str | None = None
        self.repairs = Repairs(run, answer.repair_turns)

    def services(self) -> Mapping[type, object]:
        return {StructuredOutput: self}

    @property
    def value(self) -> Any:
        """The answer that matches the schema, or None before there is one."""
        return self._value

    async def begin(self) -> None:
        """Take the answer that the last call of an earlier run gave, if that run did not end with it."""
        is_called = False
        for event in newest_standing(self.run.view.events):
            is_over = isinstance(event, Result) and event.stop_reason in ("end", *REFUSED)
            if is_over or isinstance(event, UserMessage | ModelResponse | SessionCompacted):
                return
            is_called = is_called or (isinstance(event, ToolUse) and event.name == FINAL_ANSWER)
            if isinstance(event, AssistantMessage) and is_called:
                self._text_beside = event.text
            if self._is_given or not isinstance(event, ToolResult) or event.outcome != "ok":
                continue
            record = self.run.view.calls.get(event.tool_use_id)
            if record is not None and record.use.name == FINAL_ANSWER:
                with suppress(ToolInputError):  # the schema has changed since: the model is asked for another answer
                    self.accept(self._answer_form.schema.read_value(dict(record.use.input)))

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        self._value, self._is_given, self._misfit, self._text_beside = None, False, None, ""
        self.repairs.count = 0

    def stored(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ToolResult) and event.error_type == "ToolInputError":
                record = self.run.view.calls.get(event.tool_use_id)
                if record is not None and record.use.name == FINAL_ANSWER:
                    self._misfit = event.error_message or ""

    async def before_step(self) -> None:
        misfit, self._misfit, self._taken = self._misfit, None, None
        if misfit is not None:  # the model has already read the error in the call's result
            self.repairs.count_one(_MISFIT, misfit)

    def accept(self, value: Any) -> None:
        """Accept a value that matches the schema as the run's answer."""
        self._value, self._is_given = value, True

    def replace(self, value: Any) -> None:
        """Store another value as the run's answer than the one that the model gave."""
        self._value = value

    def take_answer(self) -> str | None:
        is_given, self._is_given = self._is_given, False
        if is_given and self._text_beside:
            self.run.view.last_text = self._text_beside
        self._taken = dumps_json(self._value) if is_given else None
        return self._taken

    async def may_end(self, reply: Reply) -> bool:
        """Read the answer from the model's last text, and reject one that does not match.

        Raises `StructuredOutputError` if the repair turns are used up.
        """
        if reply.text == self._taken:  # the answer was given by a call, and matches
            return True
        try:
            self._value = self._answer_form.schema.read_text(reply.text)
            return True
        except ToolInputError as error:
            await self.repairs.send_back(self._answer_form.schema.repair_prompt(error), _MISFIT, str(error))
            return False

    def complete_result(self, result: Result) -> Result:
        return replace(result, structured_output=self._value) if result.stop_reason == "end" else result
