"""The contract as seen by others: a validator of OpenAPI documents, and a tool that generates requests from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from openagentic_sdk.server.contract.openapi import openapi
from tests.size import LARGE, full_size

from .support import ASK, AUTH, TOKEN, WAIT_S, Served, agents

PEERS = os.environ.get("OPENAGENTIC_TEST_ASGI_PYTHON")
REQUESTS = Path(PEERS).with_name("st") if PEERS else Path("none")
VALIDATE = """
import json, sys
from openapi_spec_validator import OpenAPIV31SpecValidator
print([error.message for error in OpenAPIV31SpecValidator(json.load(sys.stdin)).iter_errors()])
"""
# Faults that a schema cannot express may be refused with 400: a blank prompt, an invalid `after`, half an answer.
LEFT_OUT = "positive_data_acceptance"


@unittest.skipUnless(REQUESTS.exists(), "OPENAGENTIC_TEST_ASGI_PYTHON names a Python with .ci/peers.txt")
class Contract(unittest.TestCase):
    @full_size
    def test_it_is_a_valid_document(self) -> None:
        assert PEERS is not None
        command = [PEERS, "-I", "-c", VALIDATE]
        document = json.dumps(openapi("/agents"))
        done = subprocess.run(command, input=document, capture_output=True, text=True, timeout=WAIT_S, check=False)
        self.assertEqual((done.stdout.strip(), done.returncode), ("[]", 0), done.stderr)

    @full_size
    def test_requests_made_from_it_get_the_answers_that_it_has(self) -> None:
        served = Served(agents(tea=[ASK, "Milk it is."]))
        self.addCleanup(served.close)
        examples = "50" if LARGE else "2"
        phases = "coverage,fuzzing,stateful" if LARGE else "coverage,stateful"
        command = [os.fspath(REQUESTS), "run", f"http://{served.host}/openapi.json", "--phases", phases]
        command += ["--header", f"Authorization: {AUTH['Authorization']}", "--exclude-checks", LEFT_OUT]
        command += ["--max-examples", examples, "--generation-deterministic", "--no-color"]
        environ = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        with tempfile.TemporaryDirectory() as home:
            environ["HOME"] = home
            done = subprocess.run(
                command, cwd=home, env=environ, capture_output=True, text=True, timeout=WAIT_S * 60, check=False
            )
        self.assertEqual(done.returncode, 0, (done.stdout[-20_000:] + done.stderr).replace(TOKEN, "..."))
        counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        assert counted is not None, done.stdout
        self.assertEqual(counted[1], counted[2])
        self.assertGreater(int(counted[1]), 500)
