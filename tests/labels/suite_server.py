"""An MCP server over stdio with tickets, mails and contacts: `suite_server.py STATE.json`; calls read and write the file."""

from __future__ import annotations

import json
import sys
from typing import Any

TEXT = {"type": "string"}
READS = {"readOnlyHint": True, "openWorldHint": False}


def defined(name: str, hints: dict[str, bool], **arguments: dict[str, str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": arguments, "required": [*arguments], "additionalProperties": False}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": hints}


TOOLS = [
    defined("list_tickets", READS),
    defined("read_ticket", READS, id=TEXT),
    defined("read_mail", READS),
    defined("contacts", READS),
    defined("comment", {}, id=TEXT, text=TEXT),
    defined("close_ticket", {}, id=TEXT),
    defined("send_mail", {}, to=TEXT, text=TEXT),
]


def called(name: str, arguments: dict[str, Any], state: dict[str, Any]) -> Any:
    match name:
        case "list_tickets":
            return [{"id": each["id"], "title": each["title"]} for each in state["tickets"]]
        case "read_ticket":
            return next(each for each in state["tickets"] if each["id"] == arguments["id"])
        case "read_mail":
            return state["mails"]
        case "contacts":
            return state["contacts"]
        case _:
            state["done"].append([name, arguments])
            return "done"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        about = {"name": "office", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method != "tools/call":
        return None
    with open(sys.argv[1], encoding="utf-8") as file:
        state = json.load(file)
    found = called(params["name"], params.get("arguments") or {}, state)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(state, file)
    return {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": {"result": found}}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        body = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main()
