"""A legacy server over stdio with the tools of a file: `small_server.py TOOLS.json [LOG]`; each start is appended to LOG."""

from __future__ import annotations

import json
import os
import sys


def answer(method: str, params: dict[str, object], tools: list[object]) -> dict[str, object] | None:
    if "DIES" in os.environ:
        sys.exit(f"cannot go on with {os.environ['A']} and {sys.argv[3:]}")
    if method == "initialize":
        about = {"name": "small", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": tools}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"{params['name']} was called, A={os.environ.get('A')}"}]}
    return None


def main() -> None:
    if len(sys.argv) > 2:
        with open(sys.argv[2], "a", encoding="utf-8") as log:
            log.write("started\n")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        with open(sys.argv[1], encoding="utf-8") as file:
            result = answer(message["method"], message.get("params") or {}, json.load(file))
        body = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main()
