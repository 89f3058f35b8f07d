"""An MCP server and an authorization server on 127.0.0.1, controlled by a test, which record the requests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

Answer = tuple[int, dict[str, str], bytes]


def reply(status: int, data: Any, **headers: str) -> Answer:
    """A JSON answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"Content-Type": "application/json", **named}, json.dumps(data).encode()


class Place:
    """Both servers at one port: the MCP server at /mcp and the issuer at /, unless `routes` replace them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.routes: dict[str, Callable[[dict[str, str]], Answer]] = {}
        self.metadata: dict[str, Any] = {}
        self.resource: dict[str, Any] = {}
        self.challenge = 'Bearer resource_metadata="{url}/.well-known/oauth-protected-resource/mcp", scope="read"'
        self.accepted: set[str] = set()
        self.grants: dict[str, str] = {}
        self.clients: dict[str, str] = {}
        self.callback: dict[str, str | None] = {}
        self.lifetime: Any = 3600
        self.count = 0
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place.serve(self, "")

            def do_POST(self) -> None:
                place.serve(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def paths(self) -> list[str]:
        """The requested paths, in order."""
        return [path for path, _, _ in self.asked]

    def serve(self, handler: BaseHTTPRequestHandler, body: str) -> None:
        path = urlsplit(handler.path).path
        said = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query or body).items()}
        self.asked.append((path, body, dict(handler.headers)))
        route = self.routes.get(path) or self.usual(path, body, dict(handler.headers))
        status, headers, data = route(said)
        with contextlib.suppress(OSError):
            handler.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)

    def usual(self, path: str, body: str, headers: Mapping[str, str]) -> Callable[[dict[str, str]], Answer]:
        known: dict[str, Callable[[dict[str, str]], Answer]] = {
            "/mcp": lambda said: self.let_in(headers.get("Authorization", "")),
            "/.well-known/oauth-protected-resource/mcp": lambda said: reply(
                200, {"resource": f"{self.url}/mcp", "authorization_servers": [self.url], **self.resource}
            ),
            "/.well-known/oauth-authorization-server": lambda said: reply(200, self.issuer()),
            "/register": lambda said: self.register(json.loads(body)),
            "/authorize": self.authorize,
            "/token": lambda said: self.token(said, headers.get("Authorization", "")),
        }
        return known.get(path) or (lambda said: reply(404, {}))

    def issuer(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": True,
            **self.metadata,
        }

    def let_in(self, authorization: str) -> Answer:
        if authorization.removeprefix("Bearer ") in self.accepted:
            return reply(200, {"jsonrpc": "2.0", "id": 1, "result": {}})
        return reply(401, {"error": "invalid_token"}, WWW_Authenticate=self.challenge.replace("{url}", self.url))

    def register(self, asked: dict[str, Any]) -> Answer:
        self.count += 1
        client_id = f"client-{self.count}"
        self.clients[client_id] = asked["redirect_uris"][0]
        return reply(201, {"client_id": client_id, "token_endpoint_auth_method": asked["token_endpoint_auth_method"]})

    def authorize(self, said: dict[str, str]) -> Answer:
        """The redirect for a person who agrees."""
        back: dict[str, str | None] = {"state": said["state"], "iss": self.url}
        if self.clients and said["client_id"].startswith("client-") and said["client_id"] not in self.clients:
            back["error"] = "unauthorized_client"
        else:
            self.count += 1
            back["code"] = f"code-{self.count}"
            self.grants[f"code-{self.count}"] = said["code_challenge"]
        back.update(self.callback)
        query = urlencode({name: value for name, value in back.items() if value is not None})
        return reply(302, {}, Location=f"{said['redirect_uri']}?{query}")

    def token(self, said: dict[str, str], authorization: str) -> Answer:
        if said["grant_type"] == "authorization_code":
            shown = (
                base64.urlsafe_b64encode(hashlib.sha256(said["code_verifier"].encode()).digest()).decode().rstrip("=")
            )
            if self.grants.pop(said["code"], None) != shown:
                return reply(400, {"error": "invalid_grant"})
        elif self.grants.pop(said["refresh_token"], None) is None:
            return reply(400, {"error": "invalid_grant", "error_description": f"no {said['refresh_token']}"})
        self.count += 1
        access, refresh = f"access-{self.count}", f"refresh-{self.count}"
        self.accepted = {access}
        self.grants[refresh] = ""
        return reply(
            200,
            {"access_token": access, "token_type": "bearer", "expires_in": self.lifetime, "refresh_token": refresh},
        )


class Person:
    """A browser whose owner agrees to everything: requests the authorization page and reads its redirect."""

    def __init__(self, place: Place, redirect_uri: str = "http://127.0.0.1:4321/callback") -> None:
        self.place = place
        self.redirect_uri = redirect_uri
        self.visits: list[dict[str, str]] = []
        self.wishes: list[tuple[int | None, int | None]] = []

    @contextlib.asynccontextmanager
    async def __call__(self, port: int | None, wish: int | None) -> AsyncIterator[Person]:
        self.wishes.append((port, wish))
        yield self

    async def go(self, url: str, state: str) -> Mapping[str, list[str]]:
        said = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.visits.append(said)
        _, headers, _ = self.place.authorize(said)
        return parse_qs(urlsplit(headers["Location"]).query)
