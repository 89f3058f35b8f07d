"""Check messages against the published JSON schema of ACP 1, if it is available: OPENAGENTIC_TEST_ACP_SCHEMA names the file
(schema/v1/schema.json of npm's @agentclientprotocol/sdk), and the package jsonschema is installed.
"""

from __future__ import annotations

import importlib
import json
import os
import unittest
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from openagentic_sdk.ground.jsonrpc import encode

_REQUESTS = {
    "session/request_permission": "RequestPermissionRequest",
    "elicitation/create": "CreateElicitationRequest",
    "session/update": "SessionNotification",
    "fs/read_text_file": "ReadTextFileRequest",
    "$/cancel_request": "CancelRequestNotification",
}
RESULTS = {
    "initialize": "InitializeResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/prompt": "PromptResponse",
    "session/set_mode": "SetSessionModeResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
}


@cache
def _validators() -> Any:
    path = os.environ.get("OPENAGENTIC_TEST_ACP_SCHEMA")
    if not path:
        return None
    jsonschema = importlib.import_module("jsonschema")
    schema = json.loads(Path(path).read_text())

    @cache
    def validator(name: str) -> Any:
        return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})

    return validator


def check(test: unittest.TestCase, name: str, value: Any) -> None:
    """Assert that a value matches the definition of this name; without the schema, only that it can be sent."""
    encode({"value": value})
    validators = _validators()
    if validators is not None:
        errors = [f"{error.json_path}: {error.message:.300}" for error in validators(name).iter_errors(value)]
        test.assertEqual(errors, [], f"{name}: {json.dumps(value):.500}")


def check_messages(test: unittest.TestCase, messages: Sequence[Mapping[str, Any]]) -> None:
    """Check everything that an agent sent on its own initiative."""
    for message in messages:
        if "method" in message:
            test.assertIn(message["method"], _REQUESTS)
            check(test, _REQUESTS[message["method"]], message["params"])
