"""The pages of docs/: their code runs and prints what stands below it, links lead somewhere, every event is there."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from tests.size import full_size

from . import generated
from .source import ROOT
from .test_house import LAYERS

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NEEDED = {
    "architecture",
    "claude",
    "durability",
    "embedding",
    "events",
    "permissions",
    "providers",
    "stores",
    "testing",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# What would install the package by its name, or require it.
BY_NAME = re.compile(
    r"\b(?:pip[3x]?|uvx?|poetry|pdm|conda)[ '\",][^\n`;&|]*(?<![\w./])openagentic[-_.]?sdk(?![\w/])"
    r"|(?<![\w./])openagentic[-_.]?sdk(?:\[\w|[=~>!]=)",
    re.IGNORECASE,
)


class Docs(unittest.TestCase):
    maxDiff = None

    @contextlib.contextmanager
    def empty_home(self) -> Iterator[None]:
        """Stay in an empty folder, which is the home, with no setting in the environment."""
        before = dict(os.environ)
        with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
            for name in [name for name in os.environ if name.startswith(("OPENAI_", "OPENAGENTIC_", "ANTHROPIC_"))]:
                del os.environ[name]
            os.environ["HOME"] = home
            try:
                yield
            finally:
                os.environ.clear()
                os.environ.update(before)

    def test_every_page_that_was_promised_is_there(self) -> None:
        self.assertEqual(NEEDED - {page.stem for page in PAGES}, set())

    @full_size
    def test_nothing_tells_anybody_to_install_the_package_by_a_name_that_belongs_to_another_project(self) -> None:
        for wrong in ("pip install openagentic-sdk", "uvx openagentic_sdk", "pip install x 'openagentic-sdk[redis]'"):
            self.assertRegex(wrong, BY_NAME)
        for right in ("`pip install -e .` makes the command `openagentic-sdk`", "from openagentic_sdk import run"):
            self.assertNotRegex(right, BY_NAME)
        told = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
        files = [ROOT / name for name in told] or [path for path in ROOT.rglob("*") if path.suffix in (".py", ".md")]
        told_by_name = [
            f"{path.relative_to(ROOT)}: {found[0]}"
            for path in files
            if path.is_file() and path != Path(__file__)
            for found in BY_NAME.finditer(path.read_text(encoding="utf-8", errors="replace"))
        ]
        self.assertEqual(told_by_name, [])

    @full_size
    def test_the_python_of_each_page_runs_from_top_to_bottom_and_prints_what_stands_below_it(self) -> None:
        for page in PAGES:
            blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
            with self.subTest(page.name), self.empty_home():
                self.assertIn("python", [language for language, _ in blocks], "a page without code that runs")
                self.check(page, blocks)

    def check(self, page: Path, blocks: list[tuple[str, str]]) -> None:
        names: dict[str, object] = {"__name__": "docs"}
        printed = ""
        for language, text in blocks:
            if language == "python":
                self.assertEqual(printed, "", "what a block prints stands in a text block below it")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(text, str(page), "exec", dont_inherit=True), names)
                printed = out.getvalue()
            elif language == "text" and printed:
                self.assertEqual(printed, text)
                printed = ""
        self.assertEqual(printed, "")

    def test_the_rooms_stand_in_the_architecture_as_in_the_list_that_holds_them_apart(self) -> None:
        rows = re.findall(
            r"^\| ((?:`[\w.]+` ?)+)\|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.MULTILINE
        )
        drawn = [set(re.findall(r"[\w.]+", row)) for row in rows]
        self.assertEqual(drawn, [set(rooms) for rooms in LAYERS if rooms != ("__main__",)])

    def test_every_link_leads_to_a_file(self) -> None:
        for page in [*PAGES, *DOCS.glob("decisions/*.md"), *ROOT.glob("*.md")]:
            links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
            with self.subTest(page.name):
                self.assertEqual([link for link in links if not (page.parent / link).exists()], [])

    def test_every_decision_gives_context_choice_price_and_when_to_look_again_on_half_a_page(self) -> None:
        index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
        records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
        rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \|$", index, re.MULTILINE)
        self.assertEqual([name for _, name, _ in rows], [record.name for record in records])
        for (number, name, title), record in zip(rows, records, strict=True):
            with self.subTest(name):
                text = record.read_text(encoding="utf-8")
                self.assertEqual(text.partition("\n")[0], f"# {number}: {title}")
                self.assertEqual(
                    re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE), ["Context.", "Choice.", "Price.", "Look again"]
                )
                self.assertLessEqual(len(text.splitlines()), 35)
                paths = re.findall(r"`((?:[\w-]+/)+[\w.-]*|[\w-]+/[\w-]+\.py)`", text)
                lost = [p for p in paths if not any((root / p).exists() for root in (ROOT, ROOT / "openagentic_sdk"))]
                self.assertEqual(lost, [])

    def test_the_readme_links_every_page(self) -> None:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertEqual([page.name for page in PAGES if f"(docs/{page.name})" not in readme], [])

    def test_what_is_made_from_the_code_is_what_the_code_says(self) -> None:
        for path, text in generated.files().items():
            with self.subTest(path.name):
                self.assertEqual(path.read_text(encoding="utf-8"), text, "run: python3 -m tests.guards.generated")


if __name__ == "__main__":
    unittest.main()
