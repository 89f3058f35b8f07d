"""An MCP server over stdio that offers every feature, in the era of its first argument (`modern`, `legacy`).

`legacy` speaks the version of the second argument, 2025-11-25 by default. It is started with `-I -S`: `json` and `os` only.
"""

import json
import os
import sys

MODERN = "2026-07-28"
# A PNG of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAVE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 3}},
    "required": ["name"],
}
NAMES = ("ask", "twice", "picture", "structure", "slow", "fail", "refuse", "count", "pid", "roots", "die")
CAPABILITIES = {"tools": {}, "resources": {}, "prompts": {}}


class Server:
    def __init__(self, era, version):
        self.is_modern = era == "modern"
        self.version = version
        self.asked = 0
        self.count = 0
        self.waiting = []
        self.declared = {}

    def say(self, message):
        data = (json.dumps({"jsonrpc": "2.0", **message}) + "\n").encode()
        while data:
            data = data[os.write(1, data) :]

    def read(self):
        """The next message from the client."""
        if self.waiting:
            return self.waiting.pop(0)
        line = sys.stdin.buffer.readline()
        if not line:
            sys.exit(0)
        return json.loads(line)

    def ask(self, method, params):
        """Ask the client while a call waits (legacy); other messages wait, too."""
        self.asked += 1
        self.say({"id": f"server-{self.asked}", "method": method, "params": params})
        kept = []
        while True:
            message = self.read()
            if message.get("id") == f"server-{self.asked}" and "method" not in message:
                self.waiting = kept + self.waiting
                return message.get("result") or message.get("error")
            if message.get("method") == "notifications/cancelled":
                self.waiting = kept + self.waiting
                return None
            kept.append(message)

    def serve(self):
        while True:
            message = self.read()
            if "id" not in message or "method" not in message:
                continue
            result = self.handle(message)
            if result is not None:
                if self.is_modern and "error" not in result:
                    result = {"result": {"resultType": "complete", **result["result"]}}
                self.say({"id": message["id"], **result})

    def handle(self, message):
        method, params = message["method"], message.get("params") or {}
        if method == "server/discover" and self.is_modern:
            return {
                "result": {
                    "supportedVersions": [MODERN],
                    "capabilities": CAPABILITIES,
                    "instructions": "Ask before you \u202eguess\u202c.",
                    "ttlMs": 0,
                    "cacheScope": "private",
                }
            }
        if method == "initialize" and not self.is_modern:
            self.declared = params["capabilities"]
            return {
                "result": {
                    "protocolVersion": self.version,
                    "capabilities": CAPABILITIES,
                    "serverInfo": {"name": "features", "version": "1"},
                    "instructions": "Ask before you \u202eguess\u202c.",
                }
            }
        if method == "tools/list":
            return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]}}
        if method == "tools/call":
            return self.call(message["id"], params)
        if method == "resources/list":
            return {"result": {"resources": [{"uri": "tea://list", "name": "tea", "mimeType": "text/plain"}]}}
        if method == "resources/templates/list":
            return {"result": {"resourceTemplates": [{"uriTemplate": "tea://{kind}", "name": "a tea"}]}}
        if method == "resources/read" and params["uri"] == "tea://list":
            return {"result": {"contents": [{"uri": "tea://list", "text": "green\u202e, black"}]}}
        if method == "resources/read" and params["uri"] == "tea://picture":
            return {"result": {"contents": [{"uri": "tea://picture", "mimeType": "image/png", "blob": PIXEL}]}}
        if method == "prompts/list":
            arguments = [{"name": "kind", "required": True}, {"name": "how"}]
            return {"result": {"prompts": [{"name": "brew", "arguments": arguments}]}}
        if method == "prompts/get":
            text = f"Brew {json.dumps(params['arguments'], sort_keys=True)}\u202e."
            parts = [{"type": "text", "text": text}]
            if params["arguments"].get("how") == "drawn":
                parts.append({"type": "image", "mimeType": "image/png", "data": PIXEL})
            return {"result": {"messages": [{"role": "user", "content": part} for part in parts]}}
        return {"error": {"code": -32601, "message": f"no {method}"}}

    def call(self, asked, params):
        name = params["name"]
        if name in ("ask", "twice"):
            return self.ask_person(params, 2 if name == "twice" else 1)
        if name == "picture":
            parts = [
                {"type": "text", "text": "Look:"},
                {"type": "image", "mimeType": "image/png", "data": PIXEL},
                {"type": "audio", "mimeType": "audio/wav", "data": WAVE},
                {"type": "image", "mimeType": "image/svg+xml", "data": "PHN2Zy8+"},
                {"type": "resource_link", "uri": "tea://list", "name": "tea"},
            ]
            return {"result": {"content": parts}}
        if name == "structure":
            return {"result": {"content": [], "structuredContent": {"tea": ["green"]}}}
        if name == "slow":
            token = (params.get("_meta") or {}).get("progressToken")
            for step in range(3):
                self.say(
                    {
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": step + 1, "total": 3, "message": "wait"},
                    }
                )
            message = self.read()
            assert message["method"] == "notifications/cancelled", message
            self.count = message["params"]["requestId"]
            return None
        if name == "fail":
            return {"result": {"content": [{"type": "text", "text": "no tea left"}], "isError": True}}
        if name == "refuse":
            return {"error": {"code": -32602, "message": "unknown tool\u202e: refuse"}}
        if name == "roots":
            if self.is_modern:
                given = params.get("inputResponses")
                if given is None:
                    return {
                        "result": {"resultType": "input_required", "inputRequests": {"r": {"method": "roots/list"}}}
                    }
                return self.text(json.dumps(given["r"]))
            return self.text(json.dumps(self.ask("roots/list", {})))
        if name == "die":
            os._exit(9)
        self.count += 1
        return self.text(str(os.getpid() if name == "pid" else self.count))

    def text(self, text):
        return {"result": {"content": [{"type": "text", "text": text}]}}

    def ask_person(self, params, times):
        form = {"message": "Which \u202etea?", "requestedSchema": FORM}
        if not self.is_modern:
            answers = []
            for number in range(times):
                answer = self.ask("elicitation/create", {**form, "message": f"Which \u202etea, {number}?"})
                if answer is None:
                    return None
                answers.append(answer)
            return self.text(json.dumps(answers, sort_keys=True))
        state = json.loads(params.get("requestState") or "[]")
        if "inputResponses" in params:
            state.append(params["inputResponses"]["tea"])
        if len(state) == times:
            return self.text(json.dumps(state, sort_keys=True))
        wanted = {"method": "elicitation/create", "params": {**form, "message": f"Which \u202etea, {len(state)}?"}}
        return {
            "result": {
                "resultType": "input_required",
                "inputRequests": {"tea": wanted},
                "requestState": json.dumps(state),
            }
        }


if __name__ == "__main__":
    Server(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "2025-11-25").serve()
