"""Type checkers infer the types that runs return, and the programs and ports in `examples/` are well typed."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path

from tests.size import full_size

ROOT = Path(__file__).parents[2]
USE = "tests/agent/typed_use.py"
PROGRAMS = [str(path.relative_to(ROOT)) for room in ("apps", "ports") for path in ROOT.glob(f"examples/{room}/*.py")]


def checker_output(*command: str) -> str:
    """The output of a type checker; empty if it finds no problem."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", *(word.replace("{folder}", folder) for word in command)]
        done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


class InferredTypes(unittest.TestCase):
    @unittest.skipUnless(find_spec("basedpyright"), "basedpyright, which brings pyright, is not installed")
    def test_pyright_infers_the_types_of_deps_and_output_and_finds_mistakes(self) -> None:
        self.assertEqual(checker_output("basedpyright", "--level", "error", USE), "")
        with tempfile.TemporaryDirectory() as folder:
            strict = {"typeCheckingMode": "strict", "include": [str(ROOT / each) for each in PROGRAMS]}
            Path(folder, "pyrightconfig.json").write_text(json.dumps({**strict, "extraPaths": [str(ROOT)]}))
            self.assertEqual(checker_output("basedpyright", "--level", "error", "-p", folder), "")

    @full_size
    def test_whoever_uses_no_agent_imports_nothing_of_it_and_an_agent_reads_no_types_before_it_has_any(self) -> None:
        code = (
            "import sys, openagentic_sdk\n"
            "def names(): return {name.removeprefix('openagentic_sdk.') for name in sys.modules}\n"
            "openagentic_sdk.query\n"
            "before = names()\n"
            "openagentic_sdk.Agent\n"
            "print('agent' in before, sorted(names() - before))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "False ['agent', 'parts.agent', 'parts.agent.messages', 'parts.agent.part']\n")


if __name__ == "__main__":
    unittest.main()
