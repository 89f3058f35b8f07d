"""`openagentic-sdk bundle -o FILE.pyz`: the whole library as one file for any Python."""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import sys
import zipfile
from pathlib import Path

from ...errors import OptionsError
from ..exits import OK
from ..output.files import naming
from ..output.terminal import Screen

_MAIN = "import sys\n\nfrom openagentic_sdk.__main__ import main\n\nsys.exit(main())\n"
_SHIPPED = (".py", ".json", ".toml", ".sql", ".lua", ".typed", ".html", ".css", ".js")
# A zip file cannot store an earlier time.
_TIME = (1980, 1, 1, 0, 0, 0)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bundle", description="Bundle the package into one file: python3 FILE.pyz run ...")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="openagentic.pyz", help="the file to write (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    target = Path(args.output)
    size = write_bundle(target)
    Screen(sys.stdout).line(f"wrote {target}, {size:,} bytes; to run it: python3 {target} --help")
    return OK


def write_bundle(target: Path) -> int:
    """Write the zipapp; return its size in bytes. Raises `OptionsError` if this package is itself in a zip.

    Docstrings and most comments, a quarter of the size, are left out. Lines keep their numbers, so that tracebacks name the
    right ones.
    """
    package = Path(__file__).resolve().parents[2]
    if not package.is_dir():
        raise OptionsError("a bundle cannot create a bundle: copy the file")
    unfinished = io.BytesIO(b"#!/usr/bin/env python3\n")
    unfinished.seek(0, io.SEEK_END)
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in sorted(package.rglob("*")):
            if path.suffix in _SHIPPED and path.is_file():
                _add(bundle, path.relative_to(package.parent).as_posix(), path.read_text(encoding="utf-8"))
        _add(bundle, "__main__.py", _MAIN)
    data = unfinished.getvalue()
    with naming(target):
        target.write_bytes(data)
        os.chmod(target, 0o755)
    return len(data)


def without_docstrings(source: str) -> str:
    """Remove docstrings and most comments from a program, with every line kept in its place."""
    lines = source.splitlines(keepends=True)
    holders: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [ast.parse(source)]
    for holder in holders:
        holders += [
            part for part in holder.body if isinstance(part, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        if ast.get_docstring(holder, clean=False):
            docstring = holder.body[0]
            first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
            indent = lines[first].encode()[: docstring.col_offset].decode()
            lines[first:last] = [indent + '""\n', *["\n"] * (last - first - 1)]
    bare = "".join(lines)
    # If a string spans several lines, one of its lines may only look like a comment.
    has_long_text = '"""' in bare or "'''" in bare or "\\\n" in bare
    return bare if has_long_text else re.sub(r"""(?m)^[ ]*#.*$|[ ]+#[^"'\n]*$""", "", bare)


def _add(bundle: zipfile.ZipFile, name: str, text: str) -> None:
    """Add a file to the bundle. Its time and mode are constants, so that the same source makes the same bytes everywhere."""
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr = 0o100644 << 16
    source = without_docstrings(text) if name.endswith(".py") else text
    bundle.writestr(entry, source.encode(), zipfile.ZIP_DEFLATED)
