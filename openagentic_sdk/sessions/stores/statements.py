"""Read the SQL files of the stores: statements separated by blank lines, and `-- version N` before those of a version."""

from __future__ import annotations

from typing import Any

from ...ground.packaged import read_packaged

# The oldest schema whose processes may use tables of the newest. A version that only adds what earlier ones ignore keeps
# this number; a version that they would damage or misread sets its own.
OLDEST = 7
MAKE_OLDEST = "CREATE TABLE IF NOT EXISTS openagentic_oldest (version integer NOT NULL, oldest integer NOT NULL)"
READ_OLDEST = "SELECT version, oldest FROM openagentic_oldest"


def read_statements(module: Any, name: str) -> list[str]:
    """The statements of the file `name` in the folder of a module, which passes its `__spec__`."""
    return _statements(read_packaged(module, name))


def read_migrations(module: Any, **words: str) -> list[list[str]]:
    """The statements of `schema.sql` by version; a version without any has those of `fleet.sql`, with these words
    substituted.
    """
    _, *versions = read_packaged(module, "schema.sql").split("\n-- version ")
    fleet = [each.format(**words) for each in read_statements(__spec__, "fleet.sql")]
    return [_statements(f"-- {version}") or fleet for version in versions]


def _statements(text: str) -> list[str]:
    paragraphs = [
        "\n".join(line for line in paragraph.splitlines() if not line.startswith("--"))
        for paragraph in text.split("\n\n")
    ]
    return [paragraph.removesuffix(";") for paragraph in paragraphs if paragraph]
