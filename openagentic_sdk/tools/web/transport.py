"""HTTP exchanges with a host at one of its addresses, all of which were checked beforehand.

No proxy from the environment is used and nothing is looked up: the addresses are arguments. The whole exchange has one
deadline, its body has a size limit, and a signal can end it from another thread.
"""

from __future__ import annotations

import http.client
import socket
import ssl

from ...errors import ToolError
from .address import IPAddress, WebUrl
from .fetch import FetchAnswer, FetchRequest, FetchSignal

CHUNK_BYTES = 65536
CONNECT_LIMIT_S = 10.0


def fetch_from_addresses(request: FetchRequest, signal: FetchSignal) -> FetchAnswer:
    """Return the response of the first address that accepts a connection, with header names in lower case.

    Raises `ToolError` if none accepts one, or if that one does not answer with HTTP in time.
    """
    url = request.url
    failure: OSError | None = None
    for address in request.addresses:
        try:
            connected = _connect(url, address, signal)
        except OSError as error:
            failure = error
            continue
        connection = http.client.HTTPConnection(url.host, url.port)
        # With a given socket, http.client does not connect itself; and it must not reconnect on its own.
        connection.sock, connection.auto_open = connected, 0
        try:
            return _exchange(request, connection, connected, signal)
        except (OSError, http.client.HTTPException, ValueError) as error:
            signal.remaining_s()  # raises if it was cancelled or too slow
            raise ToolError(f"{url.url} did not respond properly ({error!r}): try again, or another address") from error
        finally:
            signal.watch(None)
            connection.close()
            connected.close()
    signal.remaining_s()
    raise ToolError(f"{url.host} cannot be reached ({failure}): check the address, or the network") from failure


def _connect(url: WebUrl, address: IPAddress, signal: FetchSignal) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        signal.watch(plain)
        plain.settimeout(min(CONNECT_LIMIT_S, signal.remaining_s()))
        plain.connect((str(address), url.port))
        if url.scheme == "http":
            return plain
        secured = ssl.create_default_context().wrap_socket(plain, server_hostname=url.host)
    except BaseException:  # also on Ctrl-C: close the socket
        signal.watch(None)
        plain.close()
        raise
    signal.watch(secured)
    return secured


def _exchange(
    request: FetchRequest, connection: http.client.HTTPConnection, connected: socket.socket, signal: FetchSignal
) -> FetchAnswer:
    url, posted, max_bytes = request.url, request.posted, request.max_bytes
    connected.settimeout(signal.remaining_s())
    method = "GET" if posted is None else "POST"
    connection.putrequest(method, url.request_target, skip_host=True, skip_accept_encoding=True)
    length = {} if posted is None else {"Content-Length": str(len(posted))}
    for name, value in {"Host": url.authority, **request.headers, **length, "Connection": "close"}.items():
        connection.putheader(name, value)
    connection.endheaders(posted)
    response = connection.getresponse()
    try:
        body = bytearray()
        # From Python 3.13 on, a response closes its socket with the last byte that was announced.
        while len(body) <= max_bytes and not response.isclosed():
            connected.settimeout(signal.remaining_s())
            piece = response.read1(CHUNK_BYTES)
            if not piece:
                break
            body += piece
        headers = {name.lower(): value for name, value in response.getheaders()}
        return FetchAnswer(response.status, headers, bytes(body[:max_bytes]), len(body) > max_bytes)
    finally:
        response.close()
