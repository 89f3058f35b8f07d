"""A system prompt with the origin of each slice, as `model.context` records it."""

from __future__ import annotations

from ..ground.frozen import frozen


@frozen
class PromptPart:
    """A slice of the prompt, `text[start:end]`, and its origin.

    `kind` is `base`, `output-style`, `memory`, `rules`, `mcp-server`, `skill-index` or, in older sessions, `active-skill`;
    `source` is the path of the file or the skill, or the name of the server.
    """

    kind: str
    source: str
    start: int
    end: int


@frozen
class SystemPrompt:
    """The text, and the origin of each part; the parts cover all of it except the blank lines between them."""

    text: str
    parts: tuple[PromptPart, ...]

    def facts(self) -> dict[str, str]:
        """The parts that may change during a session, by subject."""
        return {
            f"{part.kind}:{part.source}": self.text[part.start : part.end]
            for part in self.parts
            if part.kind in _CHANGING
        }

    def begins_like(self, other: SystemPrompt) -> bool:
        """Whether the two differ at most in what may change. A prompt with unknown parts differs from all others."""
        fixed, theirs = (
            [(part.kind, one.text[part.start : part.end]) for part in one.parts if part.kind not in _CHANGING]
            for one in (self, other)
        )
        return bool(fixed) and fixed == theirs


_CHANGING = ("memory", "rules", "mcp-server", "skill-index")
