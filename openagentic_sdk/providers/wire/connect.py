"""Connect to an endpoint: all of its addresses, through a proxy if there is one, with TLS.

A name's addresses are tried as RFC 8305 describes (section 5): alternating between families, each a quarter of a second
after the previous one, and the first that connects wins. An unreachable address costs that quarter second, not the whole
time limit.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from functools import cache
from http.client import HTTPConnection, HTTPResponse
from itertools import zip_longest
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from ...errors import OptionsError, ProviderConnectionError
from ...ground.frozen import frozen
from .thread_feed import FeedStopped

# RFC 8305, section 8: "Connection Attempt Delay ... recommended 250 ms".
ATTEMPT_DELAY_S = 0.25
_KEEP_ALIVE_S = 60

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]


@frozen
class Target:
    """The destination of a request: the host, and the proxy if there is one."""

    scheme: str
    host: str
    port: int
    proxy: str | None = None

    @property
    def origin(self) -> str:
        """The target's scheme, host and port as the start of a URL, without a default port."""
        default = 443 if self.scheme == "https" else 80
        return f"{self.scheme}://{_netloc_host(self.host)}" + (f":{self.port}" if self.port != default else "")


class Line:
    """The sockets of an exchange, which the event loop can shut down while the thread is blocked on one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_cut = False

    def hold(self, sock: socket.socket, *, in_place_of: socket.socket | None = None) -> None:
        """Add a socket, or replace `in_place_of` with it. Raises `FeedStopped` if the line has been cut."""
        with self._lock:
            # A TLS socket takes over the descriptor of the plain one: cutting or closing both would hit a reused
            # number.
            if in_place_of in self._sockets:
                self._sockets.remove(in_place_of)
            self._sockets.append(sock)
            if self._is_cut:
                raise FeedStopped

    def cut(self) -> None:
        """Shut down the sockets, to wake a thread that is blocked on one of them."""
        with self._lock:
            self._is_cut = True
            for sock in self._sockets:
                try:
                    # Not SSLSocket's own shutdown, which removes the TLS object while the other thread is reading from it.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                except OSError:
                    continue  # no longer connected

    def drop(self, sock: socket.socket) -> None:
        """Close one socket."""
        with self._lock:
            self._sockets.remove(sock)
            sock.close()

    def close(self) -> None:
        """Close the sockets, unless they were released."""
        with self._lock:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()

    def release(self) -> None:
        """Forget the sockets without closing them. Raises `FeedStopped` if the line has been cut."""
        with self._lock:
            if self._is_cut:
                raise FeedStopped
            self._sockets.clear()


def find_proxy(parts: SplitResult, proxies: Mapping[str, str] | None) -> str | None:
    """Find the proxy for a URL in `proxies` or, if that is None, in HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; None
    for a direct connection.
    """
    if proxies is not None:
        return proxies.get(parts.scheme)
    variables = getproxies()
    # ALL_PROXY is curl's: the standard library returns it as `all` and does not use it.
    proxy = variables.get(parts.scheme) or variables.get("all")
    if not proxy or proxy_bypass(parts.netloc) or _is_in_network(parts.hostname or "", variables.get("no", "")):
        return None
    return proxy


def _is_in_network(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY contains the host's address or network (`10.0.0.0/8`), which urllib does not support."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        try:
            # `strict=False` accepts an address with host bits set, such as 10.0.0.7/8, as people write it.
            network = ipaddress.ip_network(entry.strip().strip("[]"), strict=False)
        except ValueError:
            continue  # a name
        if address.version == network.version and address in network:
            return True
    return False


def open_connection(
    target: Target, line: Line, *, connect_s: float | None, tls_context: ssl.SSLContext | None
) -> HTTPConnection:
    """Open a connection that is ready for a request, with TLS if `tls_context` is given."""
    if target.proxy is None:
        sock = connect(target.host, target.port, connect_s, line)
    else:
        sock = _connect_through(target, connect_s, line)
    if tls_context is not None:
        plain = sock
        # The handshake is separate, so that the line holds the socket before anything on it can block.
        sock = tls_context.wrap_socket(plain, server_hostname=target.host, do_handshake_on_connect=False)
        line.hold(sock, in_place_of=plain)
        sock.do_handshake()
    connection = HTTPConnection(target.host, target.port)
    connection.default_port = 443 if target.scheme == "https" else 80  # left out of the Host header
    connection.sock = sock
    return connection


def connect(host: str, port: int, timeout_s: float | None, line: Line) -> socket.socket:
    """Connect a socket to the first of the host's addresses that accepts. Raises `OSError`, also after `timeout_s` seconds
    (None: no limit), and `FeedStopped` if the line was cut.
    """
    addresses = in_turn(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
    return connect_one(addresses, host, timeout_s, line)


def connect_one(addresses: list[Address], host: str, timeout_s: float | None, line: Line) -> socket.socket:
    """Connect a socket to the first of these addresses that accepts. Raises `OSError`, also after `timeout_s` seconds (None:
    no limit), and `FeedStopped` if the line was cut.
    """
    addresses = list(addresses)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    # By descriptor: several addresses connect at the same time.
    waiting: dict[int, socket.socket] = {}
    poll = select.poll()  # select.select fails for descriptors above 1023
    failure: OSError | None = None
    while addresses or waiting:
        if addresses:
            try:
                sock = _begin(addresses.pop(0), line)
            except OSError as error:
                failure = error
                continue
            waiting[sock.fileno()] = sock
            poll.register(sock, select.POLLOUT)
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            break
        wait = min((s for s in (ATTEMPT_DELAY_S if addresses else None, left_s) if s is not None), default=None)
        for number, _ in poll.poll(None if wait is None else max(wait * 1000, 1)):
            sock = waiting.pop(number)
            poll.unregister(sock)
            # A writable socket has finished connecting, successfully or not (connect(2)).
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0 and _has_peer(sock):
                for other in waiting.values():
                    line.drop(other)
                sock.setblocking(True)  # from here on, the watch on the loop enforces the time limits
                # Headers and body are two writes: with Nagle's algorithm the second would wait for the first one's
                # acknowledgement.
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A model may think for minutes, and routers drop connections that are silent for one.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if hasattr(socket, "TCP_KEEPIDLE"):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_ALIVE_S)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_ALIVE_S)
                return sock
            failure = OSError(code, os.strerror(code)) if code else OSError("the connection was cut")
            line.drop(sock)
    for sock in waiting.values():
        line.drop(sock)
    if waiting:
        raise TimeoutError(f"no address of {host} responded in time")
    raise failure or OSError(f"the name {host} has no address")


def in_turn(addresses: list[Address]) -> list[Address]:
    """The addresses with alternating families, starting with that of the first one (RFC 8305, section 4)."""
    first = [one for one in addresses if one[0] == addresses[0][0]]
    others = [one for one in addresses if one[0] != addresses[0][0]]
    return [one for pair in zip_longest(first, others) for one in pair if one is not None]


def _begin(address: Address, line: Line) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    line.hold(sock)
    sock.setblocking(False)
    try:
        sock.connect(where)
    except BlockingIOError:
        pass  # connecting in the background
    except OSError:
        line.drop(sock)
        raise
    return sock


def _has_peer(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False  # cut by the loop while it was connecting
    return True


def _connect_through(target: Target, timeout_s: float | None, line: Line) -> socket.socket:
    """Connect a socket to the target's proxy; for https, open a tunnel through it."""
    proxy = _read_proxy(target.proxy or "")
    proxy_text, variable = f"the proxy {proxy.hostname}:{proxy.port or 80}", f"{target.scheme.upper()}_PROXY"
    advice = f"check {variable}, and NO_PROXY for hosts that need none"
    try:
        sock = connect(proxy.hostname or "", proxy.port or 80, timeout_s, line)
    except TimeoutError:
        raise
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ProviderConnectionError(f"{proxy_text} cannot be reached: {why}; {advice}", was_sent=False) from error
    # A proxy forwards plain requests itself: the request line then names the whole URL (RFC 9112, section 3.2.2).
    if target.scheme == "http":
        return sock
    goal = f"{_netloc_host(target.host)}:{target.port}"
    head = {"Host": goal, **proxy_authorization(target.proxy or "")}
    lines = [f"CONNECT {goal} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    sock.sendall("\r\n".join(lines).encode("ascii"))
    response = HTTPResponse(sock, method="CONNECT")
    try:
        response.begin()
        if response.status != 200:
            if response.status == 407:
                advice = f"it requires a user and a password: put them into {variable} (http://user:password@host:port)"
            raise ProviderConnectionError(
                f"{proxy_text} answered {response.status} to the request for a tunnel to {goal}: {advice}",
                # A proxy that refuses by policy (403) or lacks a password (407) does so again.
                retryable=response.status >= 500,
                was_sent=False,
            )
    finally:
        response.close()
    return sock


def _read_proxy(proxy: str) -> SplitResult:
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.scheme != "http" or not parts.hostname:
        raise OptionsError(
            f"the proxy {shown_url(proxy)!r} cannot be used: set HTTP_PROXY or HTTPS_PROXY to http://HOST:PORT"
        )
    return parts


def proxy_authorization(proxy: str) -> dict[str, str]:
    """The headers with the user name and password in a proxy's URL; empty if it contains none."""
    parts = _read_proxy(proxy)
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


@cache
def shared_tls_context(environment: tuple[str | None, str | None]) -> ssl.SSLContext:
    """The TLS context with the system's certificates, created once because that takes 40 ms.

    `environment` (SSL_CERT_FILE and SSL_CERT_DIR) is the cache key, so that a change to it takes effect.
    """
    return ssl.create_default_context()


def shown_url(url: str) -> str:
    """The first 200 characters of a URL, without the parts that may be secret: user, password, query, fragment."""
    bare = re.sub(r"[?#].*", "", url, flags=re.S)
    return re.sub(r"(://)[^/]*@", r"\1", bare)[:200]


def _netloc_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
