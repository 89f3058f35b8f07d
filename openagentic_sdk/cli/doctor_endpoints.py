"""The report of `doctor` on the model endpoints configured in the environment, without sending them requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import OptionsError
from ..providers.clouds.aws import read_region
from ..providers.clouds.aws_chain import CredentialChain
from ..providers.clouds.vertex import vertex_place
from ..providers.named import AZURE_ENDPOINT, AZURE_KEY, HOSTED, VENDORS
from ..providers.wire.connect import shown_url

_KEYS = {**VENDORS, **{name: variable for name, (_, variable) in HOSTED.items()}, "gemini": "GEMINI_API_KEY"}
_BEDROCK_KEY = "AWS_BEARER_TOKEN_BEDROCK"
_GOOGLE = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")


def endpoint_lines(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each provider with any configuration: what is set, or what is missing. No key is shown."""
    for name, variable in _KEYS.items():
        if environ.get(variable, "").strip():
            yield f"{name}: ${variable} is set"
    address, key = environ.get(AZURE_ENDPOINT, "").strip(), environ.get(AZURE_KEY, "").strip()
    if address or key:
        missing = AZURE_KEY if address else AZURE_ENDPOINT
        yield f"azure: {shown_url(address)} with ${AZURE_KEY}" if address and key else f"azure: ${missing} is not set"
    if any(name.startswith("AWS_") for name in environ):
        yield f"bedrock: {_bedrock(environ)}"
    if any(environ.get(name) for name in _GOOGLE):
        yield f"vertex: {_vertex(environ)}"


def _bedrock(environ: Mapping[str, str]) -> str:
    try:
        region = read_region(None, environ)
        if not region:
            return "no region: set AWS_REGION"
        key = (
            f"${_BEDROCK_KEY}" if environ.get(_BEDROCK_KEY) else CredentialChain(None, region, environ=environ).source()
        )
    except OptionsError as error:
        return str(error)
    return f"region {region}, credentials from {key}"


def _vertex(environ: Mapping[str, str]) -> str:
    try:
        place, _ = vertex_place(*(environ.get(name) or "" for name in _GOOGLE))
    except OptionsError as error:
        return str(error)
    return f"{place}; give the token with --api-key-env NAME"
