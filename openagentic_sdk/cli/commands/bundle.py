"""`openagentic-sdk bundle -o FILE.pyz`: the whole library as one file for any Python."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import sys
import tempfile
import time
import zipapp
from pathlib import Path

from ...errors import OptionsError
from ..exits import OK
from ..output.files import naming
from ..output.terminal import Screen

_MAIN = "import sys\n\nfrom openagentic_sdk.__main__ import main\n\nsys.exit(main())\n"
_SHIPPED = (".py", ".json", ".toml", ".sql", ".lua", ".typed", ".html", ".css", ".js")
# The local time of every file in a bundle: a zip holds none before 1980, and no time zone.
_LOCAL_TIME = (1980, 1, 2, 0, 0, 0, 0, 0, -1)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bundle", description="Bundle the package into one file: python3 FILE.pyz run ...")
    parser.add_argument("-o", "--output", metavar="FILE", default="openagentic.pyz", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    target = Path(args.output)
    size = write_bundle(target)
    Screen(sys.stdout).line(f"wrote {target}, {size:,} bytes; to run it: python3 {target} --help")
    return OK


def write_bundle(target: Path) -> int:
    """Write the zipapp; return its size in bytes. Raises `OptionsError` if this package is itself in a zip.

    It contains no docstrings and few comments, which are a quarter of the size; lines keep their numbers, so that
    tracebacks name the right ones.
    """
    package = Path(__file__).resolve().parents[2]
    if not package.is_dir():
        raise OptionsError("a bundle cannot create a bundle: copy the file")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(package, Path(folder, "files", package.name), ignore=_left_out)
        for path in Path(folder, "files").rglob("*.py"):
            path.write_text(without_docstrings(path.read_text(encoding="utf-8")), encoding="utf-8")
        Path(folder, "files", "__main__.py").write_text(_MAIN, encoding="utf-8")
        time_s = time.mktime(_LOCAL_TIME)
        # The same source yields the same bytes, whatever the time zone and the umask.
        for path in Path(folder, "files").rglob("*"):
            os.utime(path, (time_s, time_s))
            path.chmod(0o755 if path.is_dir() else 0o644)
        unfinished = Path(folder, "bundle.pyz")
        zipapp.create_archive(Path(folder, "files"), unfinished, interpreter="/usr/bin/env python3", compressed=True)
        data = unfinished.read_bytes()
    with naming(target):
        target.write_bytes(data)
        os.chmod(target, 0o755)
    return len(data)


def without_docstrings(source: str) -> str:
    """The same program without docstrings and most comments, with every line in its place."""
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
    # Where a text goes over several lines, one of its lines may only look like a comment.
    has_long_text = '"""' in bare or "'''" in bare or "\\\n" in bare
    return bare if has_long_text else re.sub(r"""(?m)^[ ]*#.*$|[ ]+#[^"'\n]*$""", "", bare)


def _left_out(folder: str, names: list[str]) -> list[str]:
    """The files and folders that are neither source nor data, for `shutil.copytree`."""
    return [
        name for name in names if name == "__pycache__" or not (Path(folder, name).is_dir() or name.endswith(_SHIPPED))
    ]
