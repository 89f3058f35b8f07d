"""Find and validate the metadata that names a server's authorization server. Nothing is sent or read here.

Protected resource metadata (RFC 9728) names the authorization server of an MCP server, whose own metadata (RFC 8414, or
OpenID Connect Discovery) names its endpoints. Both documents are untrusted: they must describe the requested address and
issuer, or they are rejected. A null member counts as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from ....errors import AddressRefusedError, McpAuthError
from ....ground.frozen import frozen
from ....ground.loose import as_list
from ....tools.web.address import WebUrl, parse_web_url

_RESOURCE = "/.well-known/oauth-protected-resource"
_AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


@frozen
class Resource:
    """A server's metadata: the `resource` that tokens are for, its issuers, and the supported scopes."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@frozen
class Issuer:
    """An authorization server: its endpoints and capabilities.

    `sends_issuer` means that it identifies itself in the browser's callback (RFC 9207), `takes_documents` that a client id
    may be the https URL of a document about the client. `stated_name` is its own spelling of its name if that differs by a
    trailing slash.
    """

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ("client_secret_basic",)  # the default of RFC 8414, section 2
    sends_issuer: bool = False
    takes_documents: bool = False
    stated_name: str = ""


def is_same_issuer(one: str, other: Any) -> bool:
    """Whether two names denote the same issuer: they are equal, or differ only by the slash of an empty path.

    The resource servers of the Python SDK write `https://host/` for an issuer named `https://host`, and the official
    clients accept that.
    """
    if not isinstance(other, str):
        return False
    short, long = sorted((one, other), key=len)
    return one == other or (long == f"{short}/" and urlsplit(short).path == "" and "?" not in short)


def read_address(url: Any, what: str) -> WebUrl:
    """Parse a URL, which `what` names in errors. Raises `McpAuthError` if it is invalid or ambiguous between parsers."""
    if not isinstance(url, str):
        raise McpAuthError(f"{what} must be a URL, not a {type(url).__name__}")
    try:
        return parse_web_url(url, allow_local_names=True)
    except AddressRefusedError as error:
        raise McpAuthError(f"{what} cannot be used: {error.reason} ({url[:200]!r})") from error


def origin_of(url: WebUrl) -> str:
    """The part of a URL before its path."""
    return f"{url.scheme}://{url.authority}"


def canonical_resource(server_url: str) -> str:
    """The server's address as the `resource` of tokens (RFC 8707): without a fragment or trailing slash."""
    url = read_address(server_url, "the server's url")
    return origin_of(url) + (url.target.rstrip("/") if "?" not in url.target else url.target)


def resource_urls(server_url: str, metadata_url: str | None) -> list[str]:
    """The URLs to try for the server's metadata: the one in its challenge, then the one for its path, then for its root."""
    url = read_address(server_url, "the server's url")
    path = url.target.partition("?")[0].rstrip("/")
    places = [
        *([metadata_url] if metadata_url else []),
        f"{origin_of(url)}{_RESOURCE}{path}",
        f"{origin_of(url)}{_RESOURCE}",
    ]
    return list(dict.fromkeys(places))


def read_resource(document: Mapping[str, Any], server_url: str) -> Resource:
    """Read a server's metadata.

    Raises `McpAuthError` if the metadata names no issuer, or describes another server, whose token this server could then
    obtain.
    """
    resource = document.get("resource")
    resource_url = read_address(resource, "resource in the server's metadata")
    mine = read_address(server_url, "the server's url")
    base, path = resource_url.target.partition("?")[0].rstrip("/"), mine.target.partition("?")[0].rstrip("/")
    # A resource may cover all paths below it: the token for `https://host/mcp` also serves `https://host/mcp/sse`.
    if origin_of(resource_url) != origin_of(mine) or not (path == base or path.startswith(base + "/")):
        raise McpAuthError(
            f"the server's metadata is about {resource!r:.200} and not about {mine.url}: nothing was sent"
        )
    issuers = _texts(document.get("authorization_servers"))
    if not issuers:
        raise McpAuthError(f"the metadata of {mine.url} names no authorization server")
    return Resource(str(resource), issuers, _texts(document.get("scopes_supported")))


def issuer_urls(issuer: str) -> list[str]:
    """The URLs to try for an authorization server's metadata, in the order of the specification.

    Raises `McpAuthError` for an issuer with a query or a fragment.
    """
    url = read_address(issuer, "the authorization server")
    if "?" in url.target or "#" in issuer:
        raise McpAuthError(f"the authorization server {issuer!r:.200} must not have a query or a fragment")
    origin, path = origin_of(url), url.target.rstrip("/")
    if not path:
        return [f"{origin}{_AUTHORIZATION_SERVER}", f"{origin}{_OPENID}"]
    # OAuth inserts the well-known path before the issuer's (RFC 8414, section 3.1), and OpenID appends it.
    return [f"{origin}{_AUTHORIZATION_SERVER}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}"]


def read_issuer(document: Mapping[str, Any], issuer: str) -> Issuer:
    """Read an issuer's metadata. Raises `McpAuthError` for another issuer (RFC 8414, section 3.3), and without PKCE."""
    stated_issuer = document.get("issuer")
    if not is_same_issuer(issuer, stated_issuer):
        raise McpAuthError(
            f"the authorization server {issuer} calls itself {stated_issuer!r:.200}: nothing was sent to it"
        )
    # MCP requires the declaration: a server that ignores PKCE accepts a stolen code, and does not show that it does.
    if "S256" not in as_list(document.get("code_challenge_methods_supported")):
        raise McpAuthError(
            f"the authorization server {issuer} does not declare support for PKCE with S256, which is required"
        )
    endpoints = {
        name: read_address(document.get(name), f"{name} of {issuer}").url
        for name in ("authorization_endpoint", "token_endpoint", "registration_endpoint")
        if name != "registration_endpoint" or document.get(name) is not None
    }
    return Issuer(
        issuer=issuer,
        **endpoints,
        scopes=_texts(document.get("scopes_supported")),
        auth_methods=_texts(document.get("token_endpoint_auth_methods_supported")) or Issuer.auth_methods,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        takes_documents=document.get("client_id_metadata_document_supported") is True,
        stated_name="" if stated_issuer == issuer else str(stated_issuer),
    )


def require_identified(issuer: Issuer) -> None:
    """Raise `McpAuthError` if a party other than the issuer could issue the code that is then sent to the issuer.

    An attacker's issuer can name the login page of an honest one and its own token endpoint, which would receive the honest
    one's code and our verifier (a mix-up, RFC 9700, section 4.4). Only `iss` in the response reveals that (RFC 9207).
    """
    asked_at = origin_of(read_address(issuer.authorization_endpoint, "the login page"))
    if not issuer.sends_issuer and asked_at != origin_of(read_address(issuer.issuer, "the authorization server")):
        raise McpAuthError(
            f"the authorization server {issuer.issuer} sends people to {asked_at} for the login and does not announce that "
            "the response identifies it (RFC 9207), so its code could be meant for another server: nothing was sent; if "
            f"both belong together, set oauth.issuer of the server's entry to {issuer.issuer}"
        )


def is_document_url(url: str) -> bool:
    """Whether a URL can be a client id: https, with a path and without a fragment."""
    parts = urlsplit(url)
    return parts.scheme == "https" and parts.path not in ("", "/") and not parts.fragment


def is_sendable(value: Any) -> TypeGuard[str]:
    """Whether a value from a server is a text that can be sent back and shown: not empty, and printable throughout."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in as_list(value) if is_sendable(each))
