"""What a SKILL.md says, whichever of its two formats it is written in.

The early format is a `# title`, a first paragraph and a `## Checklist`; the published one (agentskills.io/specification)
has YAML frontmatter before the body. Both may be mixed. Nothing is refused: what breaks a rule gets a diagnostic.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .frontmatter import Diagnostic, Frontmatter, read_frontmatter
from .yaml_subset import Value

MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1024
MAX_COMPATIBILITY_CHARS = 500
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class SkillDoc:
    """One SKILL.md.

    `name` is the declared one, else the title, else the folder; `summary` the description (`described` says that there is
    one), else the first paragraph. `raw` is the whole text, `body` the part below the frontmatter, which starts at
    `body_line`. `allowed_tools` and `disallowed_tools` are permission rules as they were written. `argument_hint` is the
    text as it stands in the file. `metadata` keeps the values as they were read, `extra` every key that is not known here.
    `lines` has the line of each key, `rung` how much of the frontmatter could be read, see `Frontmatter`.
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


def parse_skill_markdown(text: str, *, folder: str = "", head_only: bool = False) -> SkillDoc:
    """The text of a SKILL.md as a `SkillDoc`; `folder` is the name of the folder that it stands in, if it is known.

    With `head_only` the body is not looked at when the frontmatter names and describes the skill: no title, no checklist.
    """
    front = read_frontmatter(text)
    fields = Fields(front)
    declared = fields.text("name")
    description = fields.text("description")
    outline = Outline() if head_only and declared and description else read_outline(front.body)
    name = one_line(declared or outline.title or folder)
    return SkillDoc(
        name=name,
        summary=one_line(description or outline.paragraph),
        checklist=outline.checklist,
        raw=text,
        body=front.body,
        body_line=front.body_line,
        title=outline.title,
        declared_name=declared,
        described=bool(description),
        allowed_tools=fields.rules("allowed-tools"),
        disallowed_tools=fields.rules("disallowed-tools"),
        license=fields.text("license"),
        compatibility=fields.text("compatibility"),
        metadata=fields.map("metadata"),
        version=fields.text("version"),
        model=fields.text("model"),
        when_to_use=fields.text("when_to_use"),
        argument_hint=fields.source("argument-hint"),
        arguments=fields.words("arguments"),
        disable_model_invocation=fields.flag("disable-model-invocation", False),
        user_invocable=fields.flag("user-invocable", fields.flag("user-invokable", True)),
        context=fields.text("context"),
        agent=fields.text("agent"),
        paths=fields.globs("paths"),
        hooks=front.data.get("hooks"),
        extra={key: value for key, value in front.data.items() if key not in KNOWN_FIELDS},
        lines={key: source.line for key, source in front.sources.items()},
        rung=front.rung,
        diagnostics=(*front.diagnostics, *fields.diagnostics, *name_diagnostics(declared, folder, fields.line("name"))),
    )


KNOWN_FIELDS = frozenset({
    "name", "description", "allowed-tools", "disallowed-tools", "license", "compatibility", "metadata", "version", "model",
    "when_to_use", "argument-hint", "arguments", "disable-model-invocation", "user-invocable", "user-invokable", "context",
    "agent", "paths", "hooks",
})  # fmt: skip


class Fields:
    """Frontmatter values as the kinds that their keys call for; what does not fit leaves a diagnostic and its text."""

    def __init__(self, front: Frontmatter) -> None:
        self._front = front
        self.diagnostics: list[Diagnostic] = []

    def line(self, key: str) -> int:
        source = self._front.sources.get(key)
        return source.line if source else 0

    def text(self, key: str) -> str:
        """Text; of a list or map its source, since that is what the author wrote."""
        value = self._front.data.get(key)
        if not value:
            return ""
        if isinstance(value, str):
            return printable(value).strip()
        self._misfit(key, "text is expected here: put the value in quotes")
        return self.source(key)

    def source(self, key: str) -> str:
        """The value as it stands in the file: `[a] [b]` is no YAML, and `[a]` means the brackets."""
        source = self._front.sources.get(key)
        value = self._front.data.get(key)
        if isinstance(value, str) and not value.startswith("["):
            return one_line(value)
        return one_line(source.text) if source else ""

    def words(self, key: str) -> tuple[str, ...]:
        """A list, or text with spaces or commas between the words."""
        return self._parts(key, lambda text: [part for part in re.split(r"[\s,]+", text) if part])

    def globs(self, key: str) -> tuple[str, ...]:
        """A list, or text with commas between the patterns; a comma inside braces belongs to its pattern."""
        return self._parts(key, lambda text: _split_outside(text, "{", "}", ","))

    def rules(self, key: str) -> tuple[str, ...]:
        """Permission rules: a list, or text with spaces or commas, which do not count inside parentheses."""
        return self._parts(key, split_rules)

    def flag(self, key: str, default: bool) -> bool:
        """true/false, yes/no, on/off, 1/0 in any case."""
        value = self._front.data.get(key)
        word = value.strip().casefold() if isinstance(value, str) else None
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        if value not in (None, ""):
            self._misfit(key, f"{value!r} is neither true nor false: {str(default).lower()} is assumed")
        return default

    def map(self, key: str) -> Mapping[str, Any]:
        """A map; anything else is {}."""
        value = self._front.data.get(key)
        if isinstance(value, dict):
            return value
        if value:
            self._misfit(key, "a map of names to values is expected here")
        return {}

    def _parts(self, key: str, split: Any) -> tuple[str, ...]:
        value = self._front.data.get(key)
        if not value:
            return ()
        items: list[Value] = value if isinstance(value, list) else [value]
        parts: list[str] = []
        for item in items:
            if isinstance(item, str):
                parts.extend(split(printable(item)))
            else:
                self._misfit(key, "a list of texts is expected here; what is none was left out")
        return tuple(parts)

    def _misfit(self, key: str, reason: str) -> None:
        self.diagnostics.append(Diagnostic("field-kind", f"{key}: {reason}", self.line(key)))


def split_rules(text: str) -> list[str]:
    """`Read, Bash(git add:*) Grep` as its three rules."""
    return _split_outside(text, "(", ")", ", \t\n")


def _split_outside(text: str, opener: str, closer: str, separators: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for i, char in enumerate(text):
        if char == opener:
            depth += 1
        elif char == closer:
            depth = max(depth - 1, 0)
        elif depth == 0 and char in separators:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


# --- names -----------------------------------------------------------------------------------------------------------


def name_key(name: str) -> str:
    """What two names are compared by: NFKC, then casefold, so that no look-alike of the same letters slips by."""
    if name.isascii():
        return name.strip().lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name.strip()).casefold())


def name_diagnostics(declared: str, folder: str, line: int = 0) -> tuple[Diagnostic, ...]:
    """Where a declared name departs from the specification (name field); such names are accepted all the same."""
    notes: list[Diagnostic] = []
    broken = broken_name_rule(declared) if declared else ""
    if broken:
        notes.append(Diagnostic("name-rule", f"the name {declared[:80]!r} {broken}", line))
    if declared and folder and name_key(declared) != name_key(folder):
        notes.append(
            Diagnostic(
                "name-differs-from-folder", f"the name {declared[:80]!r} differs from its folder {folder!r}", line
            )
        )
    return tuple(notes)


_USUAL_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*+")


def broken_name_rule(name: str) -> str:
    """Which rule of the specification a name breaks, as the end of a sentence; '' for none."""
    if _USUAL_NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS:
        return ""
    plain = unicodedata.normalize("NFKC", name)
    if len(plain) > MAX_NAME_CHARS:
        return f"has {len(plain)} characters: at most {MAX_NAME_CHARS} are allowed"
    if plain != plain.lower():
        return "has capital letters: use lower case"
    if not all(char.isalnum() or char == "-" for char in plain):
        return "has other characters than letters, digits and hyphens"
    if plain.startswith("-") or plain.endswith("-") or "--" in plain:
        return "has a hyphen at an end or two in a row"
    return ""


# --- text from files -------------------------------------------------------------------------------------------------

# Control characters, zero-width and directional marks, tag characters, lone surrogates: they show a person something else
# than the model reads. Tab and line feed stay, and a joiner between two letters of an emoji or of a script that needs it.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<![^\x00-\x7f\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f\u2000-\u206f])"
)
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SPACES = re.compile(r"\s+")


def printable(text: str) -> str:
    """Text without characters that a person cannot see; CRLF becomes LF."""
    if text.isascii() and text.isprintable():
        return text
    text = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _HIDDEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def one_line(text: str) -> str:
    """Visible text on one line."""
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    return _SPACES.sub(" ", printable(_SPACES.sub(" ", text))).strip()


# --- the body --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outline:
    """What a body's Markdown says about itself."""

    title: str = ""
    paragraph: str = ""
    checklist: list[str] = field(default_factory=list)


_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"[ ]{0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s+(.*)|$)")
_BOX = re.compile(r"\[[ xX]?\](?:\s+|$)")
_NO_TEXT = re.compile(r"\s*(?:[-*+]\s|[-*_=]{3,}\s*$|\d{1,9}[.)]\s|>|\||<!--|<[/a-zA-Z])")


def read_outline(body: str) -> Outline:
    """The first heading of level 1, the first paragraph outside of lists, tables and code, and the checklist."""
    title, paragraph = "", ""
    listed, boxes = _Items(), _Items()
    open_paragraph: list[str] = []
    checklist_level = 0
    for line in lines_outside_fences(body):
        heading = _HEADING.match(line)
        if heading:
            level, text = len(heading[1]), heading[2] or ""
            title = title or (one_line(text) if level == 1 else "")
            if not checklist_level or level <= checklist_level:
                checklist_level = level if "checklist" in text.casefold() else 0
            listed.close()
            boxes.close()
        elif checklist_level:
            listed.add(line, any_item=True)
        else:
            boxes.add(line, any_item=False)
        is_text = not heading and not checklist_level and bool(line.strip()) and not _NO_TEXT.match(line)
        if is_text and not paragraph and (open_paragraph or not line.startswith(("    ", "\t"))):
            open_paragraph.append(line)
        elif open_paragraph:
            paragraph, open_paragraph = paragraph or " ".join(open_paragraph), []
    return Outline(title, one_line(paragraph or " ".join(open_paragraph)), listed.texts() or boxes.texts())


class _Items:
    """List items as they come, line by line; an indented line behind an item goes on with it."""

    def __init__(self) -> None:
        self._items: list[list[str]] = []
        self._open = False

    def add(self, line: str, *, any_item: bool) -> None:
        item = _ITEM.match(line)
        text = (item[1] or "") if item else ""
        if item and (any_item or _BOX.match(text)):
            self._items.append([_BOX.sub("", text, count=1)])
            self._open = True
        elif item or not line.strip() or not line.startswith((" ", "\t")):
            self._open = False
        elif self._open:
            self._items[-1].append(line)

    def close(self) -> None:
        self._open = False

    def texts(self) -> list[str]:
        return [text for text in (one_line(" ".join(parts)) for parts in self._items) if text]


def lines_outside_fences(body: str) -> list[str]:
    """The body's lines, those of fenced code as blank ones."""
    kept: list[str] = []
    fence = ""
    for line in body.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            kept.append("")
        else:
            fence = mark[1] if mark else ""
            kept.append("" if mark else line)
    return kept
