"""The stub of the package: its public names and the modules that define them, for editors and type checkers."""

from __future__ import annotations

import textwrap

import openagentic_sdk

from .source import PACKAGE, ROOT

STUB = ROOT / PACKAGE / "__init__.pyi"
_WIDTH = 120


def stub() -> str:
    """The text of the stub, formatted as by `ruff format`."""
    names: dict[str, list[str]] = {}
    for name, home in (openagentic_sdk._HOMES | openagentic_sdk._UNLISTED).items():
        names.setdefault(home, []).append(name)
    is_listed = set(openagentic_sdk.__all__).__contains__
    imports = []
    for home in sorted(names):
        together = [sorted(filter(is_listed, names[home]))]
        # Names that are not in `__all__` are exported by aliases, one to a line, as the formatter requires.
        apart = [[f"{name} as {name}"] for name in names[home] if not is_listed(name)]
        imports += [_import(home, each) for each in sorted([*filter(None, together), *apart])]
    listed = "".join(f'    "{name}",\n' for name in openagentic_sdk.__all__)
    doc = textwrap.dedent(openagentic_sdk.__doc__ or "").strip()
    return (
        '"""'
        + doc
        + '\n\nMade by `python3 -m tests.guards.generated`.\n"""\n\n'
        + "".join(imports)
        + f"\n__all__ = [\n{listed}]\n"
    )


def _import(home: str, names: list[str]) -> str:
    line = f"from .{home} import {', '.join(names)}\n"
    if len(line) <= _WIDTH + 1:
        return line
    return f"from .{home} import (\n{''.join(f'    {name},' + chr(10) for name in names)})\n"
