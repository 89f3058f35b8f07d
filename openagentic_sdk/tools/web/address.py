"""The rules for URLs and addresses that may be fetched. Pure: tables and parsing, no look-up and no socket.

The rules are an allowlist: a URL of one plain form, a host that is a name or a canonical address, and addresses that are
global unicast by our own tables. `ipaddress.is_global` is not enough: it accepts multicast, 192.0.0.x, and the IPv6 forms
that contain a private IPv4 address (6to4, NAT64, IPv4-compatible).
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from urllib.parse import quote

from ...errors import AddressRefusedError
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...ground.text import is_hidden

MAX_URL_CHARS = 2048
DEFAULT_PORTS = {"http": 80, "https": 443}

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_URL = regex(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s/?#:@\[\]\\]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
# White space, a backslash, control characters and lone surrogates.
_UNSENDABLE = regex(r"[\x00- \\\x7f-\xa0\ud800-\udfff]")
_LABEL = regex(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# A last label of this form is a numeric address in some base: getaddrinfo accepts it, and no name ends like this.
_NUMERIC_LABEL = regex(r"[0-9]+|0x[0-9a-f]*")
_LOCAL_SUFFIXES = ("localhost", "local", "internal", "home.arpa", "localdomain", "intranet", "lan", "corp", "onion")

# Networks that are not global unicast, with the reason. Sources: the IANA special-purpose registries, RFC 6890.
_REFUSED = tuple(
    (ipaddress.ip_network(network), reason)
    for network, reason in {
        "0.0.0.0/8": "an address of this host",
        "10.0.0.0/8": "a private network",
        "100.64.0.0/10": "carrier-grade NAT",
        "127.0.0.0/8": "loopback",
        "168.63.129.16/32": "a cloud's metadata service",
        "169.254.0.0/16": "link-local",
        "172.16.0.0/12": "a private network",
        "192.0.0.0/24": "reserved for protocols",
        "192.0.2.0/24": "reserved for documentation",
        "192.31.196.0/24": "reserved for AS112",
        "192.52.193.0/24": "reserved for AMT",
        "192.88.99.0/24": "6to4 relay",
        "192.168.0.0/16": "a private network",
        "192.175.48.0/24": "reserved for AS112",
        "198.18.0.0/15": "reserved for benchmarks",
        "198.51.100.0/24": "reserved for documentation",
        "203.0.113.0/24": "reserved for documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved",
        "2001::/23": "reserved for protocols (Teredo and others)",
        "2001:db8::/32": "reserved for documentation",
        "2002::/16": "6to4, which carries an IPv4 address",
        "2620:4f:8000::/48": "reserved for AS112",
        "3fff::/20": "reserved for documentation",
        "::/128": "an address of this host",
        "::1/128": "loopback",
        "::/96": "an IPv4 address in IPv6 form",
        "64:ff9b::/96": "NAT64, which carries an IPv4 address",
        "64:ff9b:1::/48": "NAT64, which carries an IPv4 address",
        "100::/64": "discarded",
        "fc00::/7": "a private network",
        "fe80::/10": "link-local",
        "fec0::/10": "site-local",
        "ff00::/8": "multicast",
    }.items()
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
# The networks that `allow_private_networks` allows. Not link-local, where clouds have their metadata and keys.
_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "::1/128",
        "fc00::/7",
    )
)
# Metadata services inside those networks.
_METADATA = frozenset({ipaddress.ip_address("100.100.100.200"), ipaddress.ip_address("fd00:ec2::254")})


@frozen
class WebUrl:
    """A URL of the one accepted form. `host` is lower case without brackets, `target` is path and query, or empty."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def literal(self) -> IPAddress | None:
        """The address if the host is one; None if it is a name."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def request_target(self) -> str:
        """The target in the request line."""
        return self.target or "/"

    @property
    def authority(self) -> str:
        """Host and port in the form of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"


def parse_web_url(url: str, *, allow_local_names: bool = False) -> WebUrl:
    """Parse a URL strictly. Raises `AddressRefusedError` for anything that two parsers could understand differently.

    `allow_local_names` accepts names like `localhost` and `nas.local`; their addresses are checked separately.
    """
    if len(url) > MAX_URL_CHARS:
        raise AddressRefusedError(url[:100] + "...", f"it has {len(url)} characters, and the limit is {MAX_URL_CHARS}")
    if _UNSENDABLE.search(url):
        raise AddressRefusedError(url, "it contains a space, a backslash or a control character; percent-encode it")
    match = _URL.fullmatch(url)
    if match is None:
        raise AddressRefusedError(url, _why_no_match(url))
    scheme = match["scheme"].lower()
    port = int(match["port"]) if match["port"] else DEFAULT_PORTS[scheme]
    if not 0 < port < 65536:
        raise AddressRefusedError(url, f"its port must be from 1 to 65535, not {port}")
    host = _checked_host(url, match["host"], allow_local_names)
    target = (match["target"] or "").partition("#")[0]  # a fragment is never sent
    path = "/" + target if target.startswith("?") else target
    return WebUrl(scheme, host, port, quote(path, safe="!$%&'()*+,-./:;=?@[]_~|^`{}<>\""))


def _why_no_match(url: str) -> str:
    scheme = url.partition(":")[0].lower()
    if scheme not in DEFAULT_PORTS:
        return "only http:// and https:// addresses are fetched"
    authority = re.split(r"[/?#]", url.partition("://")[2])[0]
    if "@" in authority:
        return "it names a user before the host; remove everything up to the @"
    return "it is not of the form http(s)://host[:port]/path"


def _checked_host(url: str, host: str, allow_local_names: bool) -> str:
    if host.startswith("["):
        try:
            return str(_as_connected(ipaddress.IPv6Address(host[1:-1])))
        except ValueError:
            raise AddressRefusedError(url, f"{host!r} is not an IPv6 address") from None
    host = _ascii_host(url, host).lower().removesuffix(".")
    labels = host.split(".")
    if _NUMERIC_LABEL.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            why = f"{host!r} is an address in an unusual form; write it as four decimal numbers"
            raise AddressRefusedError(url, why) from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressRefusedError(url, f"{host!r} is not a host name")
    if not allow_local_names and any(host == suffix or host.endswith("." + suffix) for suffix in _LOCAL_SUFFIXES):
        raise AddressRefusedError(url, f"{host!r} is a name of this machine or its network")
    return host


def _ascii_host(url: str, host: str) -> str:
    """The host's name in ASCII. Look-alikes of digits and dots (①, 。) are refused rather than converted."""
    if host.isascii():
        return host
    is_name = all(letter in ".-_" or unicodedata.category(letter)[0] in "LMN" for letter in host)
    if (
        not is_name
        or any(map(is_hidden, host))
        or unicodedata.normalize("NFKC", host) != unicodedata.normalize("NFC", host)
    ):
        raise AddressRefusedError(
            url,
            f"{host!r} contains characters that are not allowed in a host name or stand for others; write the host plainly",
        )
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise AddressRefusedError(url, f"{host!r} is not a host name ({error})") from None


def _as_connected(address: IPAddress) -> IPAddress:
    """The address that a connection reaches: for an IPv4-mapped one (`::ffff:8.8.8.8`) the IPv4 address in it."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def refusal_of(address: IPAddress, *, allow_private_networks: bool = False) -> str | None:
    """The reason why nothing is fetched from an address, in a few words; None if it is allowed."""
    address = _as_connected(address)
    if allow_private_networks and address not in _METADATA and any(address in network for network in _PRIVATE):
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return "an address with a scope"
    reason = next((reason for network, reason in _REFUSED if address in network), None)
    if reason is None and address.version == 6 and address not in _GLOBAL_V6:
        return "not a global address"
    return reason


def check_addresses(url: str, host: str, answers: list[str], *, allow_private_networks: bool) -> list[IPAddress]:
    """Return the parsed addresses of a host. Raises `AddressRefusedError` unless every one of them is allowed."""
    addresses = [_parsed_answer(url, host, answer) for answer in answers]
    if not addresses:
        raise AddressRefusedError(url, f"{host!r} has no address")
    for address in addresses:
        reason = refusal_of(address, allow_private_networks=allow_private_networks)
        if reason is not None:
            raise AddressRefusedError(url, f"{host} is at {address}, which is {reason}")
    return addresses


def _parsed_answer(url: str, host: str, answer: str) -> IPAddress:
    try:
        return _as_connected(ipaddress.ip_address(answer))
    except ValueError:
        raise AddressRefusedError(url, f"{host!r} resolves to {answer!r}, which is not an address") from None
