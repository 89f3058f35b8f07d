"""Names of skills: their equality, and violations of the specification (agentskills.io, `name`)."""

from __future__ import annotations

import unicodedata

from ..ground.diagnostic import Diagnostic
from ..ground.patterns import regex

MAX_NAME_CHARS = 64


def name_key(name: str) -> str:
    """The form in which names are compared: NFKC, then casefold, so that compatible forms of the same letters are equal."""
    if name.isascii():
        return name.strip().lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name.strip()).casefold())


def name_diagnostics(declared: str, folder: str, line: int = 0) -> tuple[Diagnostic, ...]:
    """Deviations of a declared name from the specification (name field); such names are accepted all the same."""
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


_USUAL_NAME = regex(r"[a-z0-9]+(?>(?:-[a-z0-9]+)*)")


def broken_name_rule(name: str) -> str:
    """The rule of the specification that a name violates, as the end of a sentence; '' for none."""
    if _USUAL_NAME.fullmatch(name) and len(name) <= MAX_NAME_CHARS:
        return ""
    plain = unicodedata.normalize("NFKC", name)
    if len(plain) > MAX_NAME_CHARS:
        return f"has {len(plain)} characters: at most {MAX_NAME_CHARS} are allowed"
    if plain != plain.lower():
        return "has capital letters: use lower case"
    if not all(char.isalnum() or char == "-" for char in plain):
        return "has characters other than letters, digits and hyphens"
    if plain.startswith("-") or plain.endswith("-") or "--" in plain:
        return "begins or ends with a hyphen, or has two in a row"
    return ""
