"""The pages in docs/: their code runs and prints the documented output, links resolve, and every event is documented."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import subprocess
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from openagentic_sdk import Agent, OpenAgenticOptions, RunFailedError
from openagentic_sdk.testing import ScriptedProvider
from tests.size import full_size

from . import environment_page, generated
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
COOKBOOK = DOCS / "cookbook.md"
# A block of the cookbook; a block that needs a package which is not installed is only compiled.
RECIPE_BLOCK = re.compile(r"(?:^<!-- needs (\w+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# Commands and requirement lines that would install the package by its name.
BY_NAME = re.compile(
    r"\b(?:pip[3x]?|uvx?|poetry|pdm|conda)[ '\",][^\n`;&|]*(?<![\w./])openagentic[-_.]?sdk(?![\w/])"
    r"|(?<![\w./])openagentic[-_.]?sdk(?:\[\w|[=~>!]=)",
    re.IGNORECASE,
)


def recipes_of_the_cookbook() -> dict[str, str]:
    """The text of each recipe, by title."""
    _, *sections = re.split(r"^## ", COOKBOOK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text for title, _, text in (section.partition("\n") for section in sections)}


def run_recipe(text: str) -> dict[str, Any]:
    """Run the Python blocks of a recipe, with top-level await, and compare their output. Return their namespace."""
    names: dict[str, Any] = {}
    printed = ""
    for package, language, block in RECIPE_BLOCK.findall(text):
        if language == "python":
            names.setdefault("__name__", "recipe")
            code = compile(block, "cookbook.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if package and importlib.util.find_spec(package) is None:
                continue
            with contextlib.redirect_stdout(io.StringIO()) as out:
                awaited = eval(code, names)
                if inspect.iscoroutine(awaited):
                    asyncio.run(awaited)
            printed += out.getvalue()
        elif language == "text":
            if printed != block:
                raise AssertionError(f"printed {printed!r}, and the page shows {block!r}")
            printed = ""
    if printed:
        raise AssertionError(f"printed {printed!r}, which is in no text block")
    return names


def anchors_of(target: Path, page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site derive them; those of `page` itself for a link within it."""
    text = (page if target == page.parent else target).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


class Docs(unittest.TestCase):
    maxDiff = None

    @contextlib.contextmanager
    def empty_home(self) -> Iterator[None]:
        """Run a block in an empty folder that is also the home, without settings in the environment."""
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
    def test_no_page_suggests_installing_the_package_by_a_name_of_another_project(self) -> None:
        for wrong in ("pip install openagentic-sdk", "uvx openagentic_sdk", "pip install x 'openagentic-sdk[redis]'"):
            self.assertRegex(wrong, BY_NAME)
        for right in ("`pip install -e .` makes the command `openagentic-sdk`", "from openagentic_sdk import run"):
            self.assertNotRegex(right, BY_NAME)
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.split()
        files = [ROOT / name for name in tracked] or [path for path in ROOT.rglob("*") if path.suffix in (".py", ".md")]
        told_by_name = [
            f"{path.relative_to(ROOT)}: {found[0]}"
            for path in files
            if path.is_file() and path != Path(__file__)
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n")
            if "openagentic" in line.lower()
            for found in BY_NAME.finditer(line)
        ]
        self.assertEqual(told_by_name, [])

    @full_size
    def test_the_python_of_each_page_runs_from_top_to_bottom_and_prints_the_output_below_it(self) -> None:
        for page in (page for page in PAGES if page != COOKBOOK):
            blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
            with self.subTest(page.name), self.empty_home():
                self.assertIn("python", [language for language, _ in blocks], "the page has no runnable code")
                self.check(page, blocks)

    def check(self, page: Path, blocks: list[tuple[str, str]]) -> None:
        names: dict[str, object] = {"__name__": "docs"}
        printed = ""
        for language, text in blocks:
            if language == "python":
                self.assertEqual(printed, "", "the output of a block is not in a text block below it")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(compile(text, str(page), "exec", dont_inherit=True), names)
                printed = out.getvalue()
            elif language == "text" and printed:
                self.assertEqual(printed, text)
                printed = ""
        self.assertEqual(printed, "")

    @full_size
    def test_each_recipe_of_the_cookbook_runs_alone_and_prints_the_output_below_it(self) -> None:
        recipes = recipes_of_the_cookbook()
        self.assertEqual(len(recipes), 30)
        for title, text in recipes.items():
            with self.subTest(title), self.empty_home():
                self.assertNotEqual(run_recipe(text), {}, "the recipe has no Python block")

    @full_size
    def test_a_button_in_slack_answers_the_question_and_a_forged_request_does_not(self) -> None:
        def refund(order: str) -> str:
            """Refund an order."""
            return "paid back"

        with self.empty_home():
            recipe = run_recipe(recipes_of_the_cookbook()["Approve from Slack"])
            call = {"tool_calls": [{"name": "refund", "arguments": {"order": "7"}}]}
            agent = Agent(
                ScriptedProvider([call, "Done."], resumable=True),
                tools=[refund],
                needs_approval=["refund"],
                options=OpenAgenticOptions(session_store="sqlite:runs.db"),
            )
            with self.assertRaises(RunFailedError) as waiting:
                agent.run_sync("Refund order 7.", session="customer-17")
            [question] = waiting.exception.result.questions
            button = {"actions": [{"value": f"customer-17 {question.question_id} yes"}]}
            body = urlencode({"payload": json.dumps(button)}).encode()
            now = time.time()
            forged = {"X-Slack-Request-Timestamp": str(int(now)), "X-Slack-Signature": "v0=" + "0" * 64}
            self.assertEqual(asyncio.run(recipe["pressed"](forged, body, now)), 401)
            genuine = {**forged, "X-Slack-Signature": recipe["signature"](forged["X-Slack-Request-Timestamp"], body)}
            self.assertEqual(asyncio.run(recipe["pressed"](genuine, body, now + 600)), 401, "an old request")
            for press in ("first", "second"):
                with self.subTest(press=press):
                    self.assertEqual(asyncio.run(recipe["pressed"](genuine, body, now)), 200)
            self.assertEqual(agent.run_sync(session="customer-17").output, "Done.")

    def test_no_recipe_of_the_cookbook_has_more_than_25_lines_of_code(self) -> None:
        for title, text in recipes_of_the_cookbook().items():
            code = "".join(block for _, language, block in RECIPE_BLOCK.findall(text) if language == "python")
            with self.subTest(title):
                self.assertLessEqual(len([line for line in code.splitlines() if line.strip()]), 25)

    def test_the_architecture_lists_the_rooms_in_the_order_of_the_layers(self) -> None:
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

    def test_every_anchor_leads_to_a_heading(self) -> None:
        for page in [*PAGES, *DOCS.glob("decisions/*.md"), *ROOT.glob("*.md")]:
            links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
            with self.subTest(page.name):
                lost = [
                    f"{path}#{anchor}" for path, anchor in links if anchor not in anchors_of(page.parent / path, page)
                ]
                self.assertEqual(lost, [])

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

    def test_generated_files_match_the_code(self) -> None:
        for path, text in generated.files().items():
            with self.subTest(path.name):
                self.assertEqual(path.read_text(encoding="utf-8"), text, "run: python3 -m tests.guards.generated")

    def test_every_environment_variable_that_the_package_reads_is_listed(self) -> None:
        self.assertEqual(environment_page.missing(), set())


if __name__ == "__main__":
    unittest.main()
