"""Sign requests to AWS (Signature Version 4 with HMAC-SHA256), and read the credentials that the user configured.

Pure except for reading the environment and two small files. The scheme: docs.aws.amazon.com, "Create a signed AWS API
request".
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

from ...errors import OptionsError
from ...ground.frozen import frozen
from ...ground.system import user_home

ALGORITHM = "AWS4-HMAC-SHA256"
# Sources of credentials that a profile may name but that are not supported here.
_BY_TOOLS = frozenset({"sso_session", "sso_start_url", "role_arn", "credential_process"})


@frozen
class AwsCredentials:
    """A key pair; for temporary credentials also their token and expiry, in seconds since the epoch."""

    access_key: str
    secret_key: str
    session_token: str | None = None
    expires_at: float | None = None

    def __repr__(self) -> str:
        return f"AwsCredentials(access_key={self.access_key!r}, secret_key='[hidden]')"


def read_credentials(profile: str | None = None, environ: Mapping[str, str] | None = None) -> AwsCredentials:
    """Read the credentials from the environment, else from a profile in the shared files.

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN are used unless `profile` is given. The files are
    ~/.aws/credentials and ~/.aws/config, or those named by AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE; the profile
    defaults to AWS_PROFILE, then `default`. Raises `OptionsError` if there are no credentials, if a file cannot be read, or
    if the profile needs AWS's own tools (SSO, a role, a process).
    """
    environ = os.environ if environ is None else environ
    profile_name = profile or environ.get("AWS_PROFILE")
    access, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    # A profile that the caller names takes precedence over keys of the environment, as in AWS's own tools.
    if access and secret and not profile:
        return AwsCredentials(access, secret, environ.get("AWS_SESSION_TOKEN") or None)
    section = read_profile(profile_name or "default", environ)
    access, secret = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
    if access and secret:
        return AwsCredentials(access, secret, section.get("aws_session_token") or None)
    if other := sorted(section.keys() & _BY_TOOLS):
        raise OptionsError(
            f"the AWS profile {profile_name or 'default'!r} gets its keys through {other[0]}, which needs AWS's own tools: "
            "pass credentials= as a function that returns AwsCredentials, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    raise OptionsError(
        f"no AWS credentials: the profile {profile_name or 'default'!r} has no keys, and this is not a container or "
        "instance with a role;"
        " set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pass credentials="
    )


def read_region(profile: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """Read the region from AWS_REGION, AWS_DEFAULT_REGION or the profile; None if none of them names one.

    Raises `OptionsError` if a file with profiles cannot be read.
    """
    environ = os.environ if environ is None else environ
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return region or read_profile(profile or environ.get("AWS_PROFILE") or "default", environ).get("region")


def read_profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Read the settings of a profile from both files; the credentials file takes precedence. Empty for an unknown profile.

    Raises `OptionsError` for a file that cannot be read; a missing one is not an error.
    """
    home = environ.get("HOME") or user_home()
    settings: dict[str, str] = {}
    for variable, default, section in (
        ("AWS_CONFIG_FILE", ".aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", name),
    ):
        path = Path(environ.get(variable) or Path(home, default))
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise OptionsError(
                f"{path} cannot be read as AWS profiles ({type(error).__name__}): correct the file or its permissions"
            ) from None
        if parser.has_section(section):
            settings.update(parser.items(section))
    return settings


def sign(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    credentials: AwsCredentials,
    region: str,
    service: str,
    now: datetime | None = None,
) -> dict[str, str]:
    """Sign a request; return the headers `Authorization`, `X-Amz-Date` and, for temporary keys, `X-Amz-Security-Token`.

    `headers` are the request's headers to be signed in addition to the host. `url` is the URL as sent, already quoted; `now`
    defaults to the current time.
    """
    parts = urlsplit(url)
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    added = {"X-Amz-Date": stamp}
    if credentials.session_token:
        added["X-Amz-Security-Token"] = credentials.session_token
    # The canonical form of a header: lower-case name, trimmed value, runs of whitespace as one space.
    signed = {name.lower(): " ".join(value.split()) for name, value in {**headers, **added}.items()}
    default_port = {"https": 443, "http": 80}.get(parts.scheme)
    signed["host"] = parts.hostname or "" if parts.port in (None, default_port) else f"{parts.hostname}:{parts.port}"
    names = ";".join(sorted(signed))
    query = "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    canonical = "\n".join(
        (
            method,
            quote(parts.path or "/", safe="/~"),  # every service except S3 quotes the quoted path once more
            query,
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        )
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join((ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    added["Authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return added
