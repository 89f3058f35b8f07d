"""The pages for users of other SDKs: all of their names are listed, all names used for this package exist, counts are
correct.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import unittest
from importlib.metadata import version
from pathlib import Path

from tests.size import full_size

from .count_ports import PAGES, PORTS, ROOT, head, row

PEERS = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
MODULES = {"claude-agent-sdk": "claude_agent_sdk", "openai-agents": "agents", "pydantic-ai": "pydantic_ai"}
# Words in the right column that are neither our names nor theirs.
PLAIN = frozenset(
    (
        *("asyncio", "Semaphore", "Literal", "Annotated", "OPENAI_API_KEY", "DIR", "STORE", "ID"),
        *("mcp", "f", "id", "no", "yes", "billing", "refund"),
    )
)


def page_of(name: str) -> str:
    return (ROOT / "docs" / f"{PAGES[name]}.md").read_text(encoding="utf-8")


class Pages(unittest.TestCase):
    maxDiff = None

    def test_every_public_name_of_the_peer_has_a_counterpart_or_is_listed_without_one(self) -> None:
        for peer, known in PEERS.items():
            table = page_of(peer).partition("## Every public name")[2]
            rows = re.findall(r"^\| (`.+?) \| (.+) \|$", table, re.MULTILINE)
            named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
            with self.subTest(peer):
                self.assertIn(f"of version {known['version']}.", table)
                self.assertEqual(sorted(named), sorted(known["names"].split()))

    @full_size
    def test_everything_named_in_the_tables_is_in_the_package(self) -> None:
        texts = (path.read_text(encoding="utf-8") for path in (ROOT / "openagentic_sdk").rglob("*.py"))
        ours = set(re.findall(r"\w+", " ".join(texts))) | PLAIN
        for peer in PEERS:
            rows = re.findall(r"^\| .+? \| (.+) \|$", page_of(peer).partition("## Every public name")[2], re.MULTILINE)
            code = [
                word for here in rows for each in re.findall(r"`([^`]+)`", here) for word in re.findall(r"\w+", each)
            ]
            with self.subTest(peer):
                self.assertEqual(sorted({word for word in code if not word.isdigit()} - ours), [])

    def test_the_tables_of_ports_count_as_the_script_counts(self) -> None:
        for port in PORTS:
            peer = head(port)[1]
            found = re.search(
                rf"^.*\({re.escape(f'../examples/ports/{port.name}')}\) \| (\d+) / \d+ \| (\d+) / .*$",
                page_of(peer),
                re.MULTILINE,
            )
            with self.subTest(port.name):
                assert found is not None, "the page has no row for it"
                self.assertEqual(found[0], row(port, (int(found[1]), int(found[2]))))
                self.assertEqual(head(port)[2], PEERS[peer]["version"])

    def test_an_installed_peer_of_the_same_version_has_these_names(self) -> None:
        for peer, module in MODULES.items():
            if importlib.util.find_spec(module) and version(peer) == PEERS[peer]["version"]:
                with self.subTest(peer):
                    self.assertEqual(sorted(importlib.import_module(module).__all__), PEERS[peer]["names"].split())


if __name__ == "__main__":
    unittest.main()
