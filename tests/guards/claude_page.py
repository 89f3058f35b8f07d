"""The table of documented keywords in `docs/claude.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from openagentic_sdk.skills.ledger import DocumentedWord, rows, version_read

from .source import ROOT

PAGE = ROOT / "docs" / "claude.md"
STATES: Mapping[str, str] = {
    "does": "yes",
    "narrower": "partly",
    "no": "no",
    "nothing": "no effect in either",
    "ours": "only here",
}
# The kinds in the order of the page, each with its heading.
KINDS: Mapping[str, str] = {
    "setting": "Settings",
    "mode": "Permission modes",
    "edit-command": "Commands that mode acceptEdits allows",
    "rule": "Permission rules",
    "hook-event": "Hook events",
    "hook-type": "Hook types",
    "hook": "Keys of a hook",
    "hook-input": "Input of hooks",
    "hook-output": "Output of hooks",
    "skill": "Frontmatter of skills",
    "command": "Frontmatter of commands",
    "agent": "Frontmatter of agents",
    "built-in-agent": "Built-in agents",
    "skill-name": "Names of skills in prompts",
    "style": "Frontmatter of output styles",
    "rule-file": "Frontmatter of rules",
    "variable": "Variables",
    "environment": "Environment variables",
    "memory": "Memory",
    "plugin": "Manifests of plugins",
    "plugin-file": "Folders of plugins",
    "marketplace": "Marketplaces",
    "marketplace-plugin": "Plugins of a marketplace",
    "plugin-source": "Sources of plugins",
    "tool": "Tools",
}
# The part of the page above this line is written by hand.
MARK = "## Every documented word\n"
HEAD = """
This table is generated from [ledger.json](../openagentic_sdk/skills/ledger.json) by `python3 -m tests.guards.generated`;
one test compares the two, and another checks the rows. It is based on the documentation of Claude Code {version}; each
section links to its pages. When a run starts, a notice lists the words in your files that have no effect here, one line for
each reason; `openagentic-sdk doctor --project` reports those that do not concern runs. A word that Claude Code does not
document is reported only if it looks like a misspelling.

{counts}
"""


def page() -> str:
    """The text of `docs/claude.md`."""
    found = rows()
    assert found.keys() == KINDS.keys(), "each kind needs a heading"
    states = [row.state for kind in found.values() for row in kind.values()]
    counts = [
        "| Effect here | Words |",
        "|---|---|",
        *(f"| {cell} | {states.count(key)} |" for key, cell in STATES.items()),
    ]
    own, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    parts = [own + mark + HEAD.format(version=version_read(), counts="\n".join(counts))]
    parts += ["\n".join(_section(heading, list(found[kind].values()))) for kind, heading in KINDS.items()]
    return "\n".join(parts)


def _section(heading: str, found: list[DocumentedWord]) -> Iterator[str]:
    pages = dict.fromkeys(row.page for row in found if row.page)
    yield f"### {heading}\n"
    yield f"{', '.join(f'[{name}](https://code.claude.com/docs/en/{name})' for name in pages)}\n"
    yield "| Word | In Claude Code | Here | Difference, or what to do instead |\n|---|---|---|---|"
    for row in found:
        yield f"| {_code(row.word)} | {_cell(row.fact)} | {STATES[row.state]} | {_cell(row.how)} |"
    yield ""


def _code(word: str) -> str:
    mark = "``" if "`" in word else "`"
    return f"{mark}{word.replace('|', chr(92) + '|')}{mark}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
