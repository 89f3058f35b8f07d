"""Find AWS credentials where AWS's own tools do: environment, files, web identity, container, instance.

The order, the variables and the format of the answers: docs.aws.amazon.com, "AWS SDKs and Tools Reference Guide",
"Standardized credential providers".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from ...errors import OptionsError, ProviderError, ProviderResponseError
from ...ground.clock import Clock, SystemClock
from ...ground.frozen import frozen
from ...ground.loose import as_mapping, as_text
from ..wire.connect import shown_url
from ..wire.http import HttpTransport
from ..wire.timeouts import Timeouts
from .aws import AwsCredentials, read_credentials, read_profile

# As in botocore: new credentials are fetched below this many seconds; the old ones remain in use while that fails.
REFRESH_BEFORE_S = 900
_MAX_BYTES = 64 * 1024
_INSTANCE = "http://169.254.169.254"
_CONTAINER = "http://169.254.170.2"
# The hosts allowed for a container's credentials over plain HTTP, in addition to loopback ones.
_CONTAINER_HOSTS = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23"})
_TOKEN_LIFE = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}


@frozen
class _WebIdentity:
    """A role, the file with the token that authorizes assuming it, and the session's name."""

    role: str
    token_file: str
    session: str


class CredentialChain:
    """The sources of one provider's credentials, tried in order. Temporary ones are cached and renewed before they expire.

    `profile` is that of `read_credentials`; if given, the keys in the environment are ignored. `clock` decides when
    temporary credentials expire.
    """

    def __init__(
        self,
        profile: str | None,
        region: str,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._profile = profile
        self._region = region
        self._environ = environ
        self._clock = clock or SystemClock()
        self._cached: AwsCredentials | None = None
        self._far = Timeouts(connect_s=10.0, first_byte_s=30.0, total_s=60.0)
        self._near = Timeouts(connect_s=1.0, first_byte_s=5.0, total_s=10.0)

    async def credentials(self) -> AwsCredentials:
        """Return the current credentials. Raises `OptionsError` if there are none, and `ProviderError` if a source fails and
        there are no valid cached ones.
        """
        environ = os.environ if self._environ is None else self._environ
        left_s = self._left_s()
        if self._cached is not None and left_s > REFRESH_BEFORE_S:
            return self._cached
        try:
            credentials = await self._find(environ)
        except ProviderError:
            if self._cached is None or left_s <= 0:
                raise
            return self._cached
        self._cached = None if credentials.expires_at is None else credentials
        return credentials

    def source(self) -> str:
        """The source of the credentials, for display, found without network access. Raises `OptionsError` without one."""
        environ = os.environ if self._environ is None else self._environ
        has_keys = bool(environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"))
        if (identity := self._web_identity(environ)) and (self._profile or not has_keys):
            return f"the role {identity.role} for the token in {identity.token_file}"
        try:
            read_credentials(self._profile, environ)
        except OptionsError as error:
            if not error.args[0].startswith("no AWS credentials"):
                raise
        else:
            profile = self._profile or environ.get("AWS_PROFILE") or "default"
            return "$AWS_ACCESS_KEY_ID" if has_keys and not self._profile else f"the profile {profile!r}"
        if address := self._container_address(environ):
            return f"the container, at {shown_url(address)}"
        if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
            raise OptionsError(
                "no AWS credentials, and AWS_EC2_METADATA_DISABLED forbids a request to the instance: set AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        return "the instance's role, if this is an instance that has one"

    def _left_s(self) -> float:
        ends = None if self._cached is None else self._cached.expires_at
        return 0.0 if ends is None else ends - self._clock.now()

    async def _find(self, environ: Mapping[str, str]) -> AwsCredentials:
        has_keys = bool(environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"))
        if (identity := self._web_identity(environ)) and (self._profile or not has_keys):
            return await self._take_role(identity, environ)
        try:
            return read_credentials(self._profile, environ)
        except OptionsError as error:
            if not error.args[0].startswith("no AWS credentials"):
                raise
            missing = error
        if address := self._container_address(environ):
            return await self._ask_container(address, environ)
        if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
            try:
                return await self._ask_instance(environ)
            except ProviderError:
                # Most machines are not instances: the useful message is then what is missing in the usual places.
                raise missing from None
        raise missing

    # --- web identity: a role for a token that a third party signed ---------------------------------------------------

    def _web_identity(self, environ: Mapping[str, str]) -> _WebIdentity | None:
        section = read_profile(self._profile or environ.get("AWS_PROFILE") or "default", environ)
        session = environ.get("AWS_ROLE_SESSION_NAME") or section.get("role_session_name") or "openagentic-sdk"
        for role, path in (
            (environ.get("AWS_ROLE_ARN"), environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")),
            (section.get("role_arn"), section.get("web_identity_token_file")),
        ):
            if role and path and not (self._profile and path == environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")):
                return _WebIdentity(role, path, session)
        return None

    async def _take_role(self, identity: _WebIdentity, environ: Mapping[str, str]) -> AwsCredentials:
        token = _read_token(identity.token_file, "AWS_WEB_IDENTITY_TOKEN_FILE")
        url = environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{self._region}.amazonaws.com"
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": identity.role,
            "RoleSessionName": identity.session,
            "WebIdentityToken": token,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        page = await self._fetch(url.rstrip("/") + "/", headers, self._far, urlencode(form).encode(), proxies=None)
        names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        matches = [re.search(f"<{name}>([^<]+)</{name}>", page) for name in names]
        values = [match[1].strip() if match else "" for match in matches]
        return _temporary(dict(zip(names, values, strict=True)), url)

    # --- containers and instances: a local metadata address -----------------------------------------------------------

    def _container_address(self, environ: Mapping[str, str]) -> str | None:
        """The address of the container's credentials, None if not set. Raises `OptionsError` if its host is not allowed."""
        if path := environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
            return f"{_CONTAINER}/{path.removeprefix('/')}"
        address = environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if not address:
            return None
        try:
            parts = urlsplit(address)
            host = parts.hostname or ""
            is_near = host == "localhost" or host in _CONTAINER_HOSTS or _is_loopback(host)
            is_own = parts.scheme == "https" or (parts.scheme == "http" and is_near)
        except ValueError:
            is_own = False
        if not is_own:
            raise OptionsError(
                f"AWS_CONTAINER_CREDENTIALS_FULL_URI must be an https:// URL, or an http:// URL whose host is localhost, "
                f"a loopback address, {' or '.join(sorted(_CONTAINER_HOSTS))}, not {shown_url(address)!r}"
            )
        return address

    async def _ask_container(self, address: str, environ: Mapping[str, str]) -> AwsCredentials:
        path, token = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), None
        if path:
            token = _read_token(path, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        token = token or environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        page = await self._fetch(address, {"Authorization": token} if token else {}, self._near)
        return _temporary(_json_object(page, address), address)

    async def _ask_instance(self, environ: Mapping[str, str]) -> AwsCredentials:
        """Ask version 2 of the instance's metadata service, which needs a token first."""
        base = (environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE).rstrip("/")
        token = await self._fetch(f"{base}/latest/api/token", _TOKEN_LIFE, self._near, method="PUT")
        token_headers = {"X-aws-ec2-metadata-token": token.strip()}
        place = f"{base}/latest/meta-data/iam/security-credentials/"
        role = (await self._fetch(place, token_headers, self._near)).strip().partition("\n")[0]
        if not re.fullmatch(r"[\w+=,.@-]{1,128}", role):
            raise ProviderResponseError(f"{shown_url(place)} names no valid role: assign one to the instance")
        return _temporary(_json_object(await self._fetch(place + role, token_headers, self._near), place), place)

    async def _fetch(
        self,
        url: str,
        headers: Mapping[str, str],
        timeouts: Timeouts,
        body: bytes | None = None,
        *,
        method: str | None = None,
        # None means the proxies of the environment; metadata addresses must be reached without a proxy.
        proxies: Mapping[str, str] | None = {},
    ) -> str:
        http = HttpTransport(proxies=proxies)
        try:
            answer = await http.request(url, headers, body, method=method, timeouts=timeouts)
            try:
                page = (await answer.read_all(_MAX_BYTES)).decode("utf-8", "replace")
            finally:
                await answer.aclose()
        finally:
            http.close()
        if answer.status != 200:
            code = re.search(r"<Code>([^<]{1,100})</Code>|\"[cC]ode\"\s*:\s*\"([^\"]{1,100})\"", page)
            code_text = f" ({code[1] or code[2]})" if code else ""
            raise ProviderResponseError(
                f"{shown_url(url)} answered {answer.status}{code_text} to a request for AWS credentials"
            )
        return page


def _temporary(answer: Mapping[str, object], where: str) -> AwsCredentials:
    """The credentials in an answer. Raises `ProviderResponseError` if they are incomplete."""
    token = answer.get("Token") or answer.get("SessionToken")
    access, secret, ends = answer.get("AccessKeyId"), answer.get("SecretAccessKey"), as_text(answer.get("Expiration"))
    try:
        expires_at = datetime.fromisoformat(ends).timestamp() if ends else None
    except ValueError:
        expires_at = None
    if not (isinstance(access, str) and access and isinstance(secret, str) and secret) or (ends and expires_at is None):
        raise ProviderResponseError(
            f"the answer from {shown_url(where)} contains incomplete or invalid AWS credentials"
        )
    return replace(AwsCredentials(access, secret, as_text(token) or None), expires_at=expires_at)


def _json_object(page: str, where: str) -> Mapping[str, object]:
    try:
        return as_mapping(json.loads(page))
    except (ValueError, RecursionError):
        raise ProviderResponseError(f"the answer from {shown_url(where)} is not JSON") from None


def _read_token(path: str, variable: str) -> str:
    """Read the token from a file, which its issuer renews. Raises `OptionsError` if it contains none."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise OptionsError(f"{variable} names {path}, which cannot be read ({type(error).__name__})") from None
    # A line break would end the header in which the token is sent.
    if not token or any(char < "!" for char in token.replace(" ", "")):
        raise OptionsError(f"{variable} names {path}, which contains no token, or one with control characters")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
