"""Build the documentation as a site: python .ci/site/build.py FOLDER

Sphinx with MyST: it reads the Markdown of docs/ unchanged, it is maintained (support for Material for MkDocs ends in May
2027), and its pages and search work from a folder without a server or a network. This script gathers the pages of docs/,
the top-level texts of the repository, the commands and the public API in one folder. Any warning of Sphinx is an error.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import importlib
import inspect
import os
import posixpath
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "100"  # the line width of argparse

SECTIONS = {
    "Start": "start a-z",
    "Guides": "agent tools approvals permissions injection providers context workflows claude mcp terminal undo costs"
    " testing evals embedding serving editors fleet schedulers record",
    "Cookbook": "cookbook",
    "Coming from": "from-claude-agent-sdk from-openai-agents from-pydantic-ai",
    "Reference": "reference/api options events reference/commands environment contract schemas",
    "Inside": "architecture kernel parts durability stores decisions/README glossary upkeep contributing security changelog",
}
TEXTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
IMPORT = re.compile(r"^ *from (openagentic_sdk\.[\w.]+) import (\([^)]*\)|.+)$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?(?=\))")


def main() -> int:
    from sphinx.cmd.build import main as sphinx

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder for the site")
    site = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as folder:
        gather(Path(folder))
        code = sphinx(
            ["-W", "--keep-going", "-q", "-c", str(Path(__file__).parent), "-d", f"{folder}/.trees", folder, str(site)]
        )
    if code == 0:
        print(f"{sum(1 for _ in site.rglob('*.html'))} pages: {site / 'index.html'}")
    return code


def gather(folder: Path) -> None:
    """Write all pages and pictures of the site into a folder, and the source files that pages link to."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    for text, page in TEXTS.items():
        shutil.copy(ROOT / text, folder / page)
    for page in folder.rglob("*.md"):
        name = page.relative_to(folder).as_posix()
        page.write_text(with_moved_links(name, page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        for section, pages in SECTIONS.items():
            index.write(f"\n```{{toctree}}\n:hidden:\n:caption: {section}\n\n" + "\n".join(pages.split()) + "\n```\n")
    index_terms(folder)
    decisions = sorted(page.stem for page in (folder / "decisions").glob("0*.md"))
    with (folder / "decisions/README.md").open("a", encoding="utf-8") as index:
        index.write("\n```{toctree}\n:hidden:\n\n" + "\n".join(decisions) + "\n```\n")
    (folder / "reference").mkdir()
    (folder / "reference/commands.md").write_text(commands_page(), encoding="utf-8")
    (folder / "reference/api.md").write_text(api_page(), encoding="utf-8")


def with_moved_links(page: str, text: str, folder: Path) -> str:
    """The text of a page, with links into the repository changed to their targets in the site."""
    at = posixpath.dirname(page)
    inside = "" if page in TEXTS.values() else posixpath.join("docs", at)

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(inside, match[1]))
        if path in TEXTS:
            target = TEXTS[path]
        elif path.startswith("docs/"):
            target = path.removeprefix("docs/")
        elif (ROOT / path).is_file():
            target = f"source/{path}.txt"
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / target)
        else:
            target = "architecture.md"  # the page that lists the folders
        return posixpath.relpath(target, at or ".") + (match[2] or "")

    return LINK.sub(moved, text)


def index_terms(folder: Path) -> None:
    """Add index entries, which the search lists first, for the words in a-z.md, at the heading that each row links to."""
    text = (folder / "a-z.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| \[.+?\]\(([^)#]+)(?:#([^)]+))?\) \|$", text, re.MULTILINE)
    if not rows:
        raise SystemExit("a-z.md has no rows: | word, word | [Page](page.md#heading) |")
    for words, page, heading in rows:
        path = folder / page
        if path.suffix != ".md":
            continue
        lines = path.read_text("utf-8").split("\n")
        at = [number for number, line in enumerate(lines) if line.startswith("#") and heading in ("", slug(line))]
        if not at:
            raise SystemExit(f"a-z.md: {page} has no heading #{heading}")
        lines[at[0] + 1 : at[0] + 1] = [f"\n```{{index}} ! single: {word.strip()}\n```" for word in words.split(",")]
        path.write_text("\n".join(lines), encoding="utf-8")


def slug(heading: str) -> str:
    """The anchor of a heading, as MyST and GitHub derive it."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).strip().replace(" ", "-")


def commands_page() -> str:
    """The page of all commands, with the help that each prints."""
    from openagentic_sdk.cli.commands import COMMANDS, load_command
    from openagentic_sdk.cli.exits import MEANINGS

    subparsers = argparse.ArgumentParser(prog="openagentic-sdk").add_subparsers()
    lines = ["# Commands and exit codes", "", "| exit code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += ["| 128 + n | stopped by signal n |", ""]
    for name in COMMANDS:
        load_command(name).add_parser(subparsers)
        for path, parser in parsers(name, subparsers.choices[name]):
            lines += [
                f"{'##' if path == name else '###'} {path}",
                "",
                "```text",
                parser.format_help().rstrip(),
                "```",
                "",
            ]
    return "\n".join(lines)


def parsers(path: str, parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """A parser and its subparsers, each with the words that select it."""
    found = [(path, parser)]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                found += parsers(f"{path} {word}", below)
    return found


def api_page() -> str:
    """The page of the public names, and of other names imported in the documentation, each with its docstring."""
    import openagentic_sdk

    names = {name: getattr(openagentic_sdk, name) for name in openagentic_sdk.__all__}
    modules = {module: imported_names(module, found) for module, found in sorted(documented_imports().items())}
    lines = [
        "# Python API",
        "",
        "All names are imported from `openagentic_sdk`, unless their heading names a module.",
        "",
    ]
    for name in sorted(names, key=str.lower):
        lines += entry(name, names[name])
    seen = {id(value) for value in names.values()}
    for module, found in modules.items():
        for name in sorted(found, key=str.lower):
            if id(found[name]) not in seen:
                seen.add(id(found[name]))
                lines += entry(f"{module}.{name}", found[name])
    return "\n".join(lines)


def documented_imports() -> dict[str, set[str]]:
    """The names imported by code blocks of the documentation, by module."""
    found: dict[str, set[str]] = {}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        for module, names in IMPORT.findall("\n".join(blocks)):
            found.setdefault(module, set()).update(re.findall(r"\w+", names))
    return found


def imported_names(module: str, names: set[str]) -> dict[str, object]:
    """The values of names in a module, without its submodules."""
    home = importlib.import_module(module)
    folder = Path(inspect.getfile(home)).parent
    is_room = hasattr(home, "__path__")
    submodules = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"} if is_room else set()
    return {name: getattr(home, name) for name in names - submodules}


def entry(path: str, value: object) -> list[str]:
    """The heading, signature, docstring and public methods of a name."""
    name = path.rpartition(".")[2]
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return []
    lines = [f"## {path.removeprefix('openagentic_sdk.')}", ""]
    if path != name:
        lines += [f"`from {path.rpartition('.')[0]} import {name}`", ""]
    if name == "OpenAgenticOptions":
        return [*lines, "How `query()` and `run()` work: [Options](../options.md) lists every setting.", ""]
    lines += described(name, value)
    for method, member in own_members(value) if inspect.isclass(value) else ():
        function = getattr(member, "__func__", member)
        if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
            lines += [f"### {name}.{method}", "", *described(f"{name}.{method}", function)]
    return lines


def own_members(value: type) -> list[tuple[str, object]]:
    """The members of a class; if it is abstract, also those of the package that it inherits: its readers implement it."""
    members = dict(vars(value))
    for base in value.__mro__[1:] if inspect.isabstract(value) else ():
        if base.__module__.startswith("openagentic_sdk"):
            members = {**vars(base), **members}
    return list(members.items())


def described(name: str, value: object) -> list[str]:
    """The signature, if it can be read, and the docstring as Markdown."""
    lines: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        lines += ["```python", *signature(name, value), "```", ""]
    return [*lines, *as_markdown(inspect.cleandoc(getattr(value, "__doc__", None) or "")), ""]


class Annotation:
    """An annotation whose repr, which signatures show, has neither module names nor the checks of `Annotated`."""

    def __init__(self, annotation: object) -> None:
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)
        if "Annotated[" in text:
            with contextlib.suppress(SyntaxError):  # metadata whose repr is no expression
                text = ast.unparse(Bare().visit(ast.parse(text, mode="eval")))
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Bare(ast.NodeTransformer):
    """Replaces `Annotated[T, ...]` by T."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        is_annotated = isinstance(node.value, ast.Name) and node.value.id == "Annotated"
        return node.slice.elts[0] if is_annotated and isinstance(node.slice, ast.Tuple) else node


def signature(name: str, value: object) -> list[str]:
    """The signature of a class or function; a long one has one parameter per line."""
    found = inspect.signature(value)  # type: ignore[arg-type]
    none = inspect.Signature.empty
    factories = {
        field.name: field.default_factory
        for field in (dataclasses.fields(value) if dataclasses.is_dataclass(value) else ())
        if field.default_factory is not dataclasses.MISSING
    }
    kept = [
        item if item.annotation is none else item.replace(annotation=Annotation(item.annotation))
        for item in (with_short_default(each, factories) for each in found.parameters.values())
        if item.name not in ("self", "cls")
    ]
    is_plain = inspect.isclass(value) or found.return_annotation is none
    returned = none if is_plain else Annotation(found.return_annotation)
    line = f"{name}{found.replace(parameters=kept, return_annotation=returned)}"
    if len(line) <= 90:
        return [line]
    rows = [f"    {item}," for item in kept]
    kinds = [item.kind for item in kept]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        rows.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "    *,")
    if positional := kinds.count(inspect.Parameter.POSITIONAL_ONLY):
        rows.insert(positional, "    /,")
    return [f"{name}(", *rows, ")" if returned is none else f") -> {returned}"]


# Factories whose results have a notation of their own.
EMPTY: dict[object, str] = {list: "[]", dict: "{}", tuple: "()", set: "set()", frozenset: "frozenset()"}


def with_short_default(parameter: inspect.Parameter, factories: Mapping[str, object]) -> inspect.Parameter:
    """The parameter with a default that readers could write: a class or function by its name, a factory as its call.

    `factories` are those of a dataclass, by field. A default without a notation, such as a lock, is shown as `...`.
    """
    default = parameter.default
    if default is inspect.Parameter.empty:
        return parameter
    if parameter.name in factories:
        factory = factories[parameter.name]
        name = getattr(factory, "__name__", "")
        return parameter.replace(
            default=Annotation(EMPTY.get(factory) or (f"{name}()" if name.isidentifier() else "..."))
        )
    if isinstance(default, type) or inspect.isroutine(default):
        return parameter.replace(default=Annotation(default.__name__))
    return parameter.replace(default=Annotation("...")) if repr(default).startswith("<") else parameter


def as_markdown(docstring: str) -> list[str]:
    """A docstring as lines of Markdown, with columns of names and texts turned into lists."""
    lines: list[str] = []
    inside = False
    for line in docstring.split("\n"):
        row = re.fullmatch(r" *([a-z_]{2,})(?: {2,}|(?<=\w{20}) ?)(\S.*)", line)
        if row:
            lines += [""] * (not inside) + [f"- `{row[1]}`: {row[2]}"]
            inside = True
        elif inside and line.startswith(" "):
            lines.append(f"  {line.strip()}")
        else:
            lines += [""] * inside + [line.strip()]
            inside = False
    return lines


if __name__ == "__main__":
    sys.exit(main())
