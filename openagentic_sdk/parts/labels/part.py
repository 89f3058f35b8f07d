"""Labels at the permission gate: the origin of each result, and limits on what untrusted text may decide.

Each stored result has its label in `meta["label"]` and, if untrusted, its source in `meta["untrusted"]`. Before a call that
changes or sends something, each of its control arguments is searched for in the content that the session may trust (see
`fold`); the gate receives those that are in no trusted text, and the secrets that the call may disclose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ...errors import ToolError
from ...events import PartState, TextCommandStarted, ToolResult, UserMessage
from ...ground.frozen import changed
from ...ground.threads import run_in_thread
from ...kernel.agent import Run
from ...kernel.gate import CallContext, Objection
from ...kernel.part import IncomingPrompt, Part
from ...kernel.tool import BareTool
from ...sessions.folds.features.untrusted import LABELS_STATE, UntrustedFold, short_source, untrusted_command
from ...tools.base import Tool
from ...tools.bash import BashTool
from ...tools.labels import ToolLabels
from ...tools.shell.file_policy import CommandRules
from ...tools.shell.sandbox_plan import probe_sandbox
from ..servers import ServerTools
from .carried import CarriedLabels
from .fold import LabelsFold
from .judgement import ActingTool, object_to
from .marks import ProjectPlace, label_result
from .rules import LabelRule

# A command without network access sends nothing, and the sandbox confines its changes.
_CLOSED_SHELL = ToolLabels("derived", control=(), sink=False)
_ATTACHED = "what was attached to a prompt"
_NAMED_SOURCES = "files and commands that a prompt names"


class Labels(Part):
    """A part that labels a run's results and objects to its calls. `is_trusted` is true if the project's files are trusted.

    `has_guidance` is true if the model also reads texts of the project or its user: memory, skills, commands, agents.
    """

    def __init__(
        self, run: Run, rules: Sequence[LabelRule], is_trusted: bool = False, has_guidance: bool = False
    ) -> None:
        super().__init__(run)
        self._rules, self._has_guidance = rules, has_guidance
        agent = run.agent
        self._place = ProjectPlace((agent.cwd, *(agent.workspace_roots or (agent.cwd,))), is_trusted)
        self._acting: dict[str, tuple[BareTool, ToolLabels | None, ActingTool]] = {}
        self._told_tools: dict[str, Any] = {}
        self._has_begun = False

    def services(self) -> Mapping[type, object]:
        return {Labels: self}

    # --- content that does not come from results ---------------------------------------------------------------------------

    async def before_step(self) -> None:
        """Record the untrusted sources that the model is about to read, and the declarations of its tools."""
        tools = {tool.name: self._acting_tool(tool).record() for tool in self.run.agent.tools}
        labels = (tool.labels for tool in self.run.agent.tools if isinstance(tool, Tool))
        sources = [each.described_by for each in labels if each is not None and each.described_by]
        if self._has_guidance and not self._place.is_trusted:
            sources.append("texts of a project that nobody trusts")
        servers = self.run.parts.services.find(ServerTools)
        sources += [] if servers is None else servers.told_sources()
        if not self._has_begun:
            self._has_begun = True
            sources += self._unlabelled_sources()
        known_sources = self.run.view.fold(UntrustedFold).sources
        noted: dict[str, Any] = {}
        if new := [each for each in dict.fromkeys(map(short_source, sources)) if each not in known_sources]:
            noted["untrusted"] = new
        if changes := {name: record for name, record in tools.items() if self._told_tools.get(name) != record}:
            noted["tools"] = changes
            self._told_tools.update(changes)
        if noted:
            await self._note(noted)

    async def fill_prompt(self, prompt: IncomingPrompt) -> None:
        """Record which text of a prompt a person typed, and the sources of what was attached to it or fetched for it."""
        message, fold = prompt.said, self.run.view.fold(LabelsFold)
        is_more = prompt.text != message.text or prompt.behind != "" or bool(message.parts)
        is_relayed = (message.typed is not None and not message.sources) or bool(message.attachments)
        if is_relayed or any(part.path is None or not self._place.holds(part.path) for part in message.parts):
            prompt.sources.append(_ATTACHED)
        elif is_more and (not self._place.is_trusted or fold.written or fold.shell_source is not None):
            prompt.sources.append(_NAMED_SOURCES)
        prompt.sources += self._fetched()
        if prompt.sources:
            prompt.events.append(
                PartState(LABELS_STATE, 1, {"typed": message.text if message.typed is None else message.typed})
            )

    def _fetched(self) -> list[str]:
        """The untrusted sources read by the commands in the text of this prompt."""
        sources: list[str] = []
        for event in reversed(self.run.view.events):
            if isinstance(event, UserMessage):
                break
            if isinstance(event, TextCommandStarted):
                source = untrusted_command(event.command, self._place.folders[0], self._place.folders)
                sources += [] if source is None else [source]
        return sources

    async def _note(self, noted: Mapping[str, Any]) -> None:
        await self.run.record(PartState(LABELS_STATE, 1, noted))

    # --- calls -------------------------------------------------------------------------------------------------------------

    def tell_gate(self, context: CallContext, tool: str | None) -> CallContext:
        if tool is None or tool not in self.run.agent.tools:
            return context
        record = self.run.view.calls.get(context.tool_use_id or "")
        carried = None if record is None else CarriedLabels.of(record.use)
        return changed(context, objection=partial(self._objection, carried, context.objection))

    def _objection(
        self,
        carried: CarriedLabels | None,
        other: Callable[[str, Mapping[str, Any]], Objection | None] | None,
        name: str,
        input: Mapping[str, Any],
    ) -> Objection | None:
        """The stricter of two objections, that of the rules and that of another part; None if there is neither."""
        tool = self.run.agent.tools.get(name)
        views = [self.run.view]
        run = self.run.parent
        while run is not None:  # a subagent may use its starter's trusted content
            views.append(run.view)
            run = run.parent
        own = object_to(self._rules, self._acting_tool(tool), tool.rule_names, input, views, carried)
        both = [each for each in (own, None if other is None else other(name, input)) if each is not None]
        return max(both, key=lambda each: ("watch", "ask", "deny").index(each.outcome), default=None)

    def _acting_tool(self, tool: BareTool) -> ActingTool:
        labels = self._labels_of(tool)
        entry = self._acting.get(tool.name)
        if entry is None or entry[0] is not tool or entry[1] is not labels:
            entry = self._acting[tool.name] = tool, labels, ActingTool.of(tool, labels)
        return entry[2]

    def _labels_of(self, tool: BareTool) -> ToolLabels | None:
        if isinstance(tool, BashTool):
            sandbox = tool.sandbox_under(self.run.parts.services.find(CommandRules) or CommandRules())
            reaches_others = sandbox.mode == "off" or sandbox.has_network or sandbox.unix_sockets
            with suppress(ToolError):  # then it is not known to be closed
                if not reaches_others and probe_sandbox().is_mounted:
                    return _CLOSED_SHELL
        return tool.labels if isinstance(tool, Tool) else None

    async def store_result(self, result: ToolResult) -> ToolResult:
        """Label the result; in a subagent, also record its source and readers in the runs that started the subagent."""
        run = self.run
        record = run.view.calls.get(result.tool_use_id)
        if record is None:
            return result
        name, started = record.use.name, record.started
        tool = run.agent.tools.get(name) if name in run.agent.tools else None
        input = record.use.input if started is None or started.input is None else started.input
        effect = "unsafe" if tool is None else tool.effect
        labels = None if tool is None else self._labels_of(tool)
        if labels is not None and labels.source == "files" and (effect == "read" or result.is_error):
            # In a thread, since a folder may be on a server that does not answer.
            work = partial(self._place.with_target, result, input)
            result = await run_in_thread(work, name="openagentic-labels")
        fold, is_started = run.view.fold(LabelsFold), started is not None
        labelled = label_result(result, name, input, effect, labels, fold, self._place, is_started)
        if run.parent is not None:
            await self._tell_starters(labelled)
        return labelled

    def _unlabelled_sources(self) -> Iterator[str]:
        """Yield the sources of results that earlier runs stored without labels, or whose calls were cut off."""
        for name in self.run.view.fold(LabelsFold).unlabelled:
            tool = self.run.agent.tools.get(name) if name in self.run.agent.tools else None
            declared = (None if tool is None else self._labels_of(tool)) or ToolLabels()
            is_projects = declared.source == "files" and self._place.is_trusted
            if not is_projects and declared.source not in ("derived", "trusted"):
                yield f"tool {name}, in a result without a label"

    async def _tell_starters(self, result: ToolResult) -> None:
        """Record the source and readers of a subagent's result in the runs that started the subagent.

        The subagent's answer, which those runs receive, may derive from the result.
        """
        meta, facts = result.meta or {}, dict[str, Any]()
        label = meta["label"]
        if isinstance(source := meta.get("untrusted"), str):
            facts["untrusted"] = [source]
        if "readers" in label:
            facts["secrets"] = {label["name"]: label["readers"]}
        run = self.run.parent if facts else None
        while run is not None:
            known_sources, fold = run.view.fold(UntrustedFold).sources, run.view.fold(LabelsFold)
            is_new = any(each not in known_sources for each in facts.get("untrusted", ())) or fold.shell_source is None
            if is_new or any(name not in fold.secrets for name in facts.get("secrets", ())):
                await run.record(PartState(LABELS_STATE, 1, {**facts, "agent": self.run.agent.name or "subagent"}))
            run = run.parent
