"""The contract as TypeScript: it has the names of the document, and a generated program compiles and runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.cli.main import main
from openagentic_sdk.server.contract.openapi import schemas
from openagentic_sdk.server.contract.table import ENDPOINTS
from openagentic_sdk.server.contract.typescript import typescript

from .support import ASK, TOKEN, WAIT_S, Served, agents, options

HERE = Path(__file__).parent
DOCUMENTED = HERE.parents[1] / "docs" / "serving.md"
NODE = os.environ.get("OPENAGENTIC_TEST_NODE")
MODULES = Path(os.environ.get("OPENAGENTIC_TEST_NODE_MODULES", "."))
COMPILER = MODULES / "typescript" / "bin" / "tsc"
STRICT = {
    **dict.fromkeys(("strict", "noUncheckedIndexedAccess", "exactOptionalPropertyTypes", "noEmit"), True),
    "target": "es2022",
    "lib": ["es2023", "dom", "dom.asynciterable"],
    "types": [],
    "module": "esnext",
    "moduleResolution": "bundler",
    "allowImportingTsExtensions": True,
}
NODE_TYPES = "declare const process: { argv: string[]; exit(code: number): never };\n"


class Module(unittest.TestCase):
    def test_it_has_each_value_each_event_and_each_operation_of_the_document(self):
        written = typescript()
        declared = re.findall(r"^export (?:interface|type) (\w+)", written, re.MULTILINE)
        self.assertEqual(declared, [*schemas(), "Operations"])
        for endpoint in ENDPOINTS:
            self.assertIn(f'  {endpoint.name}: {{\n    method: "{endpoint.method}";\n', written)
        for told in (
            '  type: "user.question";\n',
            '  kind?: "permission" | "question" | (string & {});\n',
            "  sessions: ListedSession[];\n  next: string | null;\n",
            "    body: AnswersBody;\n    result: SessionName;\n",
            "  prompt: string | SentPart[];\n",
            "    result: EventPage | null;\n",
            "export type Event = KnownEvent;\n",
        ):
            self.assertIn(told, written)
        self.assertNotIn("undefined", written)
        self.assertLess(written.count("unknown;"), 20)

    def test_the_command_prints_both_forms_of_the_contract(self):
        for form, check in (("typescript", typescript().strip()), ("openapi", None)):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                self.assertEqual(main(["serve", "--contract", form]), 0)
            if check is None:
                self.assertEqual(json.loads(printed.getvalue())["openapi"], "3.1.0")
            else:
                self.assertEqual(printed.getvalue().strip(), check)


@unittest.skipUnless(
    NODE and COMPILER.exists(), "OPENAGENTIC_TEST_NODE and OPENAGENTIC_TEST_NODE_MODULES name Node with typescript"
)
class Compiled(unittest.TestCase):
    def test_a_program_made_from_it_compiles_and_runs_and_mistakes_do_not_compile(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        Path(folder.name, "contract.ts").write_text(typescript())
        Path(folder.name, "node.d.ts").write_text(NODE_TYPES)
        Path(folder.name, "package.json").write_text('{"type": "module"}')
        shown = re.findall(r"```typescript\n(.*?)```", DOCUMENTED.read_text("utf-8"), re.DOTALL)
        self.assertTrue(shown)
        Path(folder.name, "documented.ts").write_text("\n".join(shown))
        files = [shutil.copy(HERE / name, folder.name) for name in ("contract_program.ts", "contract_mistakes.ts")]
        Path(folder.name, "tsconfig.json").write_text(json.dumps({"compilerOptions": STRICT}))
        command = [NODE, os.fspath(COMPILER), "--pretty", "false"]
        done = subprocess.run(command, cwd=folder.name, capture_output=True, text=True, check=False, timeout=WAIT_S * 2)
        found = {
            (where, int(line)) for where, line in re.findall(r"^(\S+)\((\d+),\d+\): error", done.stdout, re.MULTILINE)
        }
        lines = (HERE / "contract_mistakes.ts").read_text().splitlines()
        marked = {("contract_mistakes.ts", number) for number, line in enumerate(lines, 1) if line.endswith("// wrong")}
        self.assertEqual(found, marked, done.stdout)
        self.assertGreater(len(marked), 8)
        served = Served(agents(tea=options([ASK, "Milk it is."])))
        self.addCleanup(served.close)
        command = [NODE, "--experimental-strip-types", "--no-warnings", files[0], f"http://{served.host}", TOKEN]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
        self.assertEqual((done.stdout, done.stderr), ("Milk it is.\n", ""))


if __name__ == "__main__":
    unittest.main()
