"""Parse a SKILL.md in either of its two formats.

The early format is a `# title`, a first paragraph and a `## Checklist`; the published one (agentskills.io/specification)
has YAML frontmatter before the body. Both may be mixed. Nothing is refused: a violation produces a diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ..ground.diagnostic import Diagnostic
from ..ground.frozen import frozen
from ..ground.text import one_line
from .fields import Fields
from .frontmatter import read_frontmatter
from .ledger import words
from .names import name_diagnostics
from .outline import Outline, read_outline

MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500


@frozen
class SkillDoc:
    """One SKILL.md.

    `name` is the declared one, otherwise the title, otherwise the folder; `summary` the description (then `described` is
    true), otherwise the first paragraph. `raw` is the whole text, `body` the part below the frontmatter, which starts at
    `body_line`. `allowed_tools` and `disallowed_tools` are permission rules as written. `argument_hint` is the text as
    written in the file. `metadata` keeps the parsed values, `extra` every unknown key. `lines` has the line of each key,
    `rung` how much of the frontmatter could be read, see `Frontmatter`.
    """

    name: str
    summary: str
    checklist: list[str]
    raw: str
    body: str = ""
    body_line: int = 1
    title: str = ""
    declared_name: str = ""
    described: bool = False
    allowed_tools: tuple[str, ...] = ()
    disallowed_tools: tuple[str, ...] = ()
    license: str = ""
    compatibility: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    model: str = ""
    when_to_use: str = ""
    argument_hint: str = ""
    arguments: tuple[str, ...] = ()
    disable_model_invocation: bool = False
    user_invocable: bool = True
    context: str = ""
    agent: str = ""
    paths: tuple[str, ...] = ()
    hooks: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    rung: str = "none"
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def runs_apart(self) -> bool:
        """Whether the skill requests its own subagent (`context: fork`)."""
        return self.context.casefold() == "fork"


def parse_skill_markdown(text: str, *, folder: str = "", head_only: bool = False) -> SkillDoc:
    """Parse the text of a SKILL.md; `folder` is the name of its folder, if known.

    With `head_only` the result contains only what an index needs: the body is only searched for a name or summary missing
    in the frontmatter, and fields that are not needed before the skill is used are omitted.
    """
    front = read_frontmatter(text)
    fields = Fields(front)
    declared = fields.text("name")
    description = fields.text("description")
    outline = Outline() if head_only and declared and description else read_outline(front.body)
    doc = SkillDoc(
        name=one_line(declared or outline.title or folder),
        summary=one_line(description or outline.paragraph),
        checklist=outline.checklist,
        raw=text,
        body=front.body,
        body_line=front.body_line,
        title=outline.title,
        declared_name=declared,
        described=bool(description),
        allowed_tools=fields.rules("allowed-tools"),
        when_to_use=fields.text("when_to_use"),
        argument_hint=fields.source("argument-hint"),
        disable_model_invocation=fields.flag("disable-model-invocation", False),
        user_invocable=fields.flag("user-invocable", fields.flag("user-invokable", True)),
        paths=fields.globs("paths"),
        hooks=front.data.get("hooks"),
        rung=front.rung,
    )
    if not head_only:
        field_names = words("skill", "does", "narrower", "nothing", "ours")
        doc = replace(
            doc,
            disallowed_tools=fields.rules("disallowed-tools"),
            license=fields.text("license"),
            compatibility=fields.text("compatibility"),
            metadata=fields.map("metadata"),
            version=fields.text("version"),
            model=fields.text("model"),
            arguments=fields.words("arguments"),
            context=fields.text("context"),
            agent=fields.text("agent"),
            extra={key: value for key, value in front.data.items() if key not in field_names},
            lines={key: source.line for key, source in front.sources.items()},
        )
    notes = (*front.diagnostics, *fields.diagnostics, *name_diagnostics(declared, folder, fields.line("name")))
    return replace(doc, diagnostics=notes) if notes else doc
