"""Send requests to URLs that a server named: only to public https addresses, with limits on redirects, size and time.

The MCP server chooses these addresses, so each could point into this machine's network. The server's own origin was chosen
by the person who configured it and is requested wherever it is; a server on this machine may name addresses on this
machine.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urljoin

from ....errors import AddressRefusedError, McpAuthError, ToolError
from ....ground.frozen import frozen
from ....ground.loose import as_mapping, read_json
from ....ground.threads import run_in_thread
from ....tools.web.address import IPAddress, WebUrl, check_addresses
from ....tools.web.fetch import FetchRequest, FetchSignal, resolve
from ....tools.web.transport import fetch_from_addresses
from .metadata import origin_of, read_address

MAX_BYTES = 256 * 1024
TIMEOUT_S = 20.0
_MAX_REDIRECTS = 3


@frozen
class OAuthReply:
    """An answer: the status, the JSON object in the body (empty for anything else), and `WWW-Authenticate`."""

    status: int
    data: Mapping[str, Any]
    challenge: str | None = None


class OAuthRequests:
    """The OAuth requests on behalf of one MCP server, each limited to `timeout_s` seconds."""

    def __init__(self, server_url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._server = read_address(server_url, "the server's url")
        self._timeout_s = timeout_s
        self._is_local = _is_loopback(self._server)

    async def get(self, url: str) -> OAuthReply:
        """GET an address. Raises `McpAuthError` if there is no usable answer; any status is usable."""
        return await self._ask(url, {}, None)

    async def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> OAuthReply:
        """POST a form. Raises `McpAuthError`, whose text repeats nothing of the form."""
        all_headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return await self._ask(url, all_headers, urlencode(form).encode("ascii"))

    async def post_json(self, url: str, body: bytes) -> OAuthReply:
        """POST a JSON object. Raises `McpAuthError` if there is no usable answer."""
        return await self._ask(url, {"Content-Type": "application/json"}, body)

    def check(self, url: str, what: str) -> WebUrl:
        """Parse a URL, and return it if a request or a person may be sent there. Raises `McpAuthError` otherwise."""
        parsed = read_address(url, what)
        if parsed.scheme == "http" and not (self._is_local and _is_loopback(parsed)):
            raise McpAuthError(f"{what} is not https: {parsed.url}")
        return parsed

    async def _ask(self, url: str, headers: Mapping[str, str], posted: bytes | None) -> OAuthReply:
        signal = FetchSignal(threading.Event())
        work = run_in_thread(lambda: self._fetch(url, headers, posted, signal), signal, "openagentic-oauth")
        try:  # name resolution has no deadline of its own
            return await asyncio.wait_for(work, self._timeout_s + 0.5)
        except TimeoutError:
            raise McpAuthError(f"{url[:200]!r} did not respond within {self._timeout_s:g} s") from None

    def _fetch(self, url: str, headers: Mapping[str, str], posted: bytes | None, signal: FetchSignal) -> OAuthReply:
        signal.deadline = time.monotonic() + self._timeout_s
        target = self.check(url, "an address of the login")
        headers = {"Accept": "application/json", "User-Agent": "openagentic-sdk", **headers}
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                request = FetchRequest(target, self._addresses(target), headers, MAX_BYTES, posted)
                answer = fetch_from_addresses(request, signal)
            except (ToolError, OSError) as error:
                raise McpAuthError(f"{target.url} did not respond properly: {error}") from error
            location = answer.headers.get("location")
            if not (300 <= answer.status < 400 and location):
                break
            onward = self.check(urljoin(target.url, location), f"the redirect of {target.url}")
            # 307 and 308 keep the method and body (RFC 9110, section 15.4); a form contains secrets and is never redirected.
            again = posted is None or (
                answer.status in (307, 308) and headers.get("Content-Type") == "application/json"
            )
            if origin_of(onward) != origin_of(target) or not again:
                raise McpAuthError(f"{target.url} redirects to {onward.url}, and this redirect is not followed")
            target = onward
        else:
            raise McpAuthError(f"{target.url} redirects more than {_MAX_REDIRECTS} times")
        if answer.is_cut:
            raise McpAuthError(f"{target.url} answers with more than {MAX_BYTES} bytes")
        try:
            data = as_mapping(read_json(answer.body.decode("utf-8-sig")))
        except (ValueError, RecursionError):
            data = {}
        return OAuthReply(answer.status, data, answer.headers.get("www-authenticate"))

    def _addresses(self, target: WebUrl) -> list[IPAddress]:
        """Resolve the host and check each address; connections use only these. Raises `AddressRefusedError`."""
        answers = [str(target.literal)] if target.literal is not None else resolve(target.host)
        is_own = origin_of(target) == origin_of(self._server)
        if not is_own and not (self._is_local and _is_loopback(target)):
            return check_addresses(target.url, target.host, answers, allow_private_networks=False)
        addresses = check_addresses(target.url, target.host, answers, allow_private_networks=True)
        # The name `localhost` proves nothing: a hosts file, or a resolver, may map it to another machine.
        if not is_own and not all(address.is_loopback for address in addresses):
            raise AddressRefusedError(target.url, f"{target.host} is not on this machine")
        return addresses


def _is_loopback(url: WebUrl) -> bool:
    literal = url.literal
    return url.host == "localhost" or (literal is not None and literal.is_loopback)
