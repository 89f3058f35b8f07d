"""Code: the model writes Python that calls its other tools, and sees only what the program prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import OptionsError, ToolError
from ...ground.text import without_hidden
from ...kernel.tool import Blobs, Secrets, ToolContext, ToolOutput
from ..base import Tool
from ..inner_calls import InnerCalls
from ..labels import OWN_SESSION
from ..schema import object_schema, string
from .place import CodeLimits
from .program import run_program

# 10,000 tokens of 3.6 bytes, as they are estimated everywhere here.
MAX_SHOWN_BYTES = 36_000
MAX_CODE_CHARS = 200_000


class CodeTool(Tool):
    """A tool that runs Python: `{"code"}` returns the output of the code. `limits` are those of one call.

    The code runs in a sandbox without network and files; each call that it makes is a call like any other, with its own
    decision and result in the log. Without a sandbox, a call fails with `ToolError`. Raises `OptionsError` for a limit that
    is not above 0.
    """

    name = "Code"
    labels = OWN_SESSION
    description = (
        "Run Python that calls your other tools: loop over many calls, keep what matters of long results, compute. "
        "Each tool is an async function of its name (`tools[name]` where a name is none in Python) that takes the same "
        "arguments by name and returns the tool's result as a value; one that fails raises ToolError. `await` works at the "
        "top level, asyncio.gather runs calls side by side, help(name) shows a function. You see only what the code prints, "
        "at most about 10,000 tokens. It runs in a sandbox: the standard library, no network, no files but an empty folder, "
        "no other programs; nothing is kept from one call to the next. A call that a person has to allow may be refused "
        "here: make it directly then."
    )
    input_schema = object_schema(
        {
            "code": string("The Python code.", minLength=1, maxLength=MAX_CODE_CHARS),
        },
        required=["code"],
        additionalProperties=False,
    )
    effect = "unsafe"
    allowed_callers = ("direct",)

    def __init__(self, limits: CodeLimits | None = None) -> None:
        self._limits = limits or CodeLimits()
        if min(vars(self._limits).values()) <= 0:
            raise OptionsError(f"the limits of Code must be above 0, not {self._limits}")

    async def run(self, input: Mapping[str, Any], ctx: ToolContext) -> ToolOutput:
        calls = ctx.services.find(InnerCalls)
        if calls is None:
            raise ToolError("code calls the tools of a run, and no run is active here")
        code = input["code"]
        if "\0" in code:
            raise ToolError("the code contains a NUL character: remove it")
        inside = calls.inside(ctx)
        ended = await run_program(code, inside.tools(), inside.make, self._limits)
        # The text for the model, and the digest of the whole output if that is longer. Invisible characters are removed
        # first: within a secret, they would keep it from being recognized.
        text = without_hidden(ended.output.decode("utf-8", "replace"))
        redact = ctx.services.get(Secrets).redact
        text = text if redact is None else redact(text)
        data, blob = text.encode("utf-8", "replace"), None
        if len(data) > MAX_SHOWN_BYTES:
            head, tail = data[: MAX_SHOWN_BYTES * 3 // 4], data[-MAX_SHOWN_BYTES // 4 :]
            blob = await ctx.services.get(Blobs).keep(data)
            where = f'Read {{"file_path": "blob:{blob}", "offset": ..., "limit": ...}} gives any part of it'
            note = f"[... {len(data) - MAX_SHOWN_BYTES} of {ended.total_bytes} bytes are left out here; {where} ...]"
            text = f"{head.decode('utf-8', 'ignore')}\n{note}\n{tail.decode('utf-8', 'ignore')}"
        ending = (
            f"[{ended.reason}]" if ended.reason else f"[exit code {ended.exit_code}]" if ended.exit_code > 1 else ""
        )
        text = "\n".join(part for part in (text.rstrip("\n"), ending) if part) or "(the code printed nothing)"
        meta: dict[str, Any] = {"calls": ended.calls, "exit_code": ended.exit_code, **({"blob": blob} if blob else {})}
        return ToolOutput(text, meta, is_error=bool(ended.reason) or ended.exit_code != 0)
