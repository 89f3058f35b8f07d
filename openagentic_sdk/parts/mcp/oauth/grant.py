"""The requests and answers of an authorization code grant with PKCE: build and validate them. Nothing is sent here."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any
from urllib.parse import quote, urlencode

from ....errors import McpAuthError
from ....ground.frozen import frozen
from ....ground.text import one_line, visible
from .metadata import Issuer, is_sendable

CLIENT_NAME = "openagentic-sdk"
# A token counts as expired this early, because the request takes time to reach the server.
RENEW_BEFORE_S = 30.0
_MAX_SAID_CHARS = 300


@frozen
class OAuthClient:
    """Our client at an authorization server, public without `secret`. `method` is how the secret is sent.

    `is_registered` means that the server created it for us, for `redirect_uri`, and may delete it.
    """

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"
    redirect_uri: str = ""
    is_registered: bool = False


@frozen
class Tokens:
    """The tokens of a login. `expires_at` is in seconds since the epoch, None if unknown; `scope` is the granted scope."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)
    scope: str = ""
    expires_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether the access token is valid at this time, and for `RENEW_BEFORE_S` more."""
        return self.expires_at is None or now < self.expires_at - RENEW_BEFORE_S


@frozen
class Attempt:
    """The secrets of one login attempt."""

    state: str = field(repr=False)
    verifier: str = field(repr=False)

    @property
    def challenge(self) -> str:
        """The digest of the verifier, which is sent first (RFC 7636, section 4.2)."""
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")


def new_attempt() -> Attempt:
    """Create the secrets of a login attempt, 256 bits each."""
    return Attempt(secrets.token_urlsafe(32), secrets.token_urlsafe(32))


def authorize_url(
    issuer: Issuer, client: OAuthClient, attempt: Attempt, *, redirect_uri: str, scope: str, resource: str
) -> str:
    """Build the URL at which a person authorizes this client."""
    query = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": attempt.state,
        "code_challenge": attempt.challenge,
        "code_challenge_method": "S256",
        "resource": resource,
        **({"scope": scope} if scope else {}),
        # OpenID Connect requires `prompt=consent` with `offline_access` (Core 1.0, section 11).
        **({"prompt": "consent"} if "offline_access" in scope.split() else {}),
    }
    joint = "&" if "?" in issuer.authorization_endpoint else "?"
    return f"{issuer.authorization_endpoint}{joint}{urlencode(query, quote_via=quote)}"


def read_callback(query: Mapping[str, Sequence[str]], attempt: Attempt, issuer: Issuer) -> str:
    """Return the code in the query of the browser's callback. Raises `McpAuthError`.

    `state` and `iss` are checked before anything else is trusted or shown, because anyone could have sent the query. The
    issuer is compared exactly, as in RFC 9207, section 2.4:

        metadata announces `iss`    callback has `iss`    result
        yes                         yes                   accepted if it names the issuer
        yes                         no                    refused
        no                          yes                   accepted if it names the issuer
        no                          no                    accepted
    """
    # A repeated parameter is invalid (RFC 6749, section 3.1), and two parsers could choose different values.
    answers = {name: values[0] for name, values in query.items() if len(values) == 1}
    if not secrets.compare_digest(answers.get("state", "").encode(), attempt.state.encode()):
        raise McpAuthError("the browser's response belongs to another login: start again")
    if "iss" in query and answers.get("iss") not in (issuer.issuer, issuer.stated_name or issuer.issuer):
        issuer_name = visible(" and ".join(query["iss"]))[:200]
        raise McpAuthError(f"the response comes from {issuer_name}, not from {issuer.issuer}, and was discarded")
    if "iss" not in query and issuer.sends_issuer:
        raise McpAuthError(f"the response lacks the required `iss` of {issuer.issuer} and was discarded")
    if "error" in query:
        raise refusal(issuer.issuer, answers, ())
    if not answers.get("code"):
        raise McpAuthError("the browser's response contains no code: start again")
    return answers["code"]


def registration(redirect_uri: str, issuer: Issuer, scope: str) -> bytes:
    """Build the body of a dynamic registration (RFC 7591) of a native program on a person's own machine."""
    methods = ("none", "client_secret_post", "client_secret_basic")
    body = {
        "client_name": CLIENT_NAME,
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": next((each for each in methods if each in issuer.auth_methods), "none"),
        **({"scope": scope} if scope else {}),
    }
    return json.dumps(body).encode("ascii")


def read_registration(status: int, data: Mapping[str, Any], issuer: str, redirect_uri: str) -> OAuthClient:
    """Read the client that a server registered for us. Raises `McpAuthError` if it is unusable."""
    if status not in (200, 201):
        raise refusal(issuer, data, (), status)
    secret = data.get("client_secret") or None
    # RFC 7591, section 2: `client_secret_basic` is the default
    method = data.get("token_endpoint_auth_method") or ("client_secret_basic" if secret else "none")
    client_id = data.get("client_id")
    if not is_sendable(client_id) or not (secret is None or is_sendable(secret)):
        name = "client_secret" if is_sendable(client_id) else "client_id"
        raise McpAuthError(f"{issuer} registered this client without a {name} that consists of printable characters")
    if method not in ("none", "client_secret_post", "client_secret_basic") or (method != "none" and secret is None):
        raise McpAuthError(
            f"{issuer} registered this client with the token_endpoint_auth_method {str(method)[:60]!r}, which "
            "is not supported or does not fit the credentials that it issued"
        )
    return OAuthClient(client_id, secret, str(method), redirect_uri, is_registered=True)


def own_client(settings: Mapping[str, Any], issuer: Issuer) -> OAuthClient | None:
    """The configured client, by its id or by the URL of its document; None if neither applies."""
    client_id, secret, document = (settings.get(key) for key in ("clientId", "clientSecret", "clientMetadataUrl"))
    if client_id:
        offers_post = "client_secret_post" in issuer.auth_methods and "client_secret_basic" not in issuer.auth_methods
        return OAuthClient(
            client_id, secret, ("client_secret_post" if offers_post else "client_secret_basic") if secret else "none"
        )
    return OAuthClient(document) if document and issuer.takes_documents else None


def token_request(client: OAuthClient, form: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Build the form and the headers of a token request, including client authentication (RFC 6749, section 2.3.1)."""
    if client.method == "client_secret_basic" and client.secret is not None:
        # Both parts are form-encoded first, unlike in plain HTTP Basic, since an id or a secret may contain a colon.
        pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
        return dict(form), {"Authorization": "Basic " + base64.b64encode(pair.encode("ascii")).decode("ascii")}
    secret = {"client_secret": client.secret} if client.secret and client.method == "client_secret_post" else {}
    return {**form, "client_id": client.id, **secret}, {}


def read_tokens(
    status: int,
    data: Mapping[str, Any],
    issuer: str,
    *,
    now: float,
    before: Tokens | None,
    scope: str,
    sent_secrets: Sequence[str],
) -> Tokens:
    """Read the tokens in an answer. A missing refresh token is that of `before`, a missing scope is `scope`.

    Raises `McpAuthError`, whose text repeats none of `sent_secrets`.
    """
    if status != 200 or "error" in data:
        raise refusal(issuer, data, sent_secrets, status)
    access, kind, lifetime = data.get("access_token"), data.get("token_type"), data.get("expires_in")
    # A bearer token contains no other characters (RFC 6750, section 2.1).
    if not isinstance(access, str) or not access or not all("!" <= letter <= "~" for letter in access):
        raise McpAuthError(
            f"{issuer} issued no access_token, or one with characters that a bearer token cannot contain"
        )
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise McpAuthError(f"{issuer} issued a token of type {str(kind)[:60]!r}, and only Bearer is supported")
    try:
        seconds = (
            float(lifetime) if isinstance(lifetime, int | float | str) and not isinstance(lifetime, bool) else None
        )
    except (ValueError, OverflowError):
        seconds = None
    refresh, granted = data.get("refresh_token"), data.get("scope")
    return Tokens(
        access,
        # An issuer that does not rotate refresh tokens sends none, and the old one stays valid (RFC 6749, section 6).
        refresh if is_sendable(refresh) else before.refresh if before is not None else None,
        granted if is_sendable(granted) else scope,
        now + seconds if seconds is not None and math.isfinite(seconds) and seconds > 0 else None,
    )


def refusal(
    issuer: str, data: Mapping[str, Any], sent_secrets: Sequence[str], status: int | None = None
) -> McpAuthError:
    """The exception for an error in an answer (RFC 6749, section 5.2), with its `code`, and without secrets in its text."""
    code = data.get("error")
    text = " ".join(part for part in (code, data.get("error_description")) if isinstance(part, str))
    # The longest first: a secret may contain a shorter one, and the rest of it would remain readable.
    for secret in sorted(filter(None, sent_secrets), key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    reason = visible(one_line(text))[:_MAX_SAID_CHARS] or f"status {status}"
    return McpAuthError(f"{issuer} refused: {reason}", code=code if isinstance(code, str) else None)


def joined_scopes(*scopes: str | None) -> str:
    """All scopes in order, without duplicates, separated by spaces."""
    return " ".join(dict.fromkeys(word for scope in scopes if scope for word in scope.split()))
