"""The settings for sending traces: from the caller's options, otherwise from OpenTelemetry's standard variables.

The variables are specified on the "OpenTelemetry Protocol Exporter" and "Environment Variable" pages:
`OTEL_EXPORTER_OTLP_ENDPOINT`, `..._PROTOCOL`, `..._HEADERS`, `..._TIMEOUT` (ms), `..._COMPRESSION`, `..._CERTIFICATE`,
`..._CLIENT_CERTIFICATE`, `..._CLIENT_KEY`, also as `OTEL_EXPORTER_OTLP_TRACES_...`, `OTEL_SERVICE_NAME`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_BSP_SCHEDULE_DELAY` (ms), `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`, `OTEL_SDK_DISABLED`,
`OTEL_TRACES_EXPORTER`, `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit, urlunsplit

from ....errors import OptionsError
from ....ground.frozen import frozen
from ....providers.wire.http import check_headers, read_url

_PREFIX = "OTEL_EXPORTER_OTLP_"
_TRACES = "OTEL_EXPORTER_OTLP_TRACES_"
_PATH = "/v1/traces"


@frozen
class TelemetrySettings:
    """The destination of traces, and how they are sent.

    `url` is the full address, `delay_s` how long a batch waits for more spans, and `timeout_s` limits one request.
    `with_content` includes message contents; `as_json` is for collectors without protobuf support. `certificate` is a file
    of certificates to trust instead of the system's, `client_certificate` and `client_key` are those of this client.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    resource: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0
    delay_s: float = 5.0
    max_spans: int = 512
    gzip: bool = False
    with_content: bool = False
    as_json: bool = False
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


def read_telemetry(
    endpoint: str | None, headers: Mapping[str, str], environ: Mapping[str, str]
) -> TelemetrySettings | None:
    """Read the settings of a run; return None if nothing is to be sent.

    If `endpoint` is None, the environment names the address; an empty string disables telemetry. Like the specification's
    base address, `endpoint` gets the suffix `/v1/traces` unless it already has it. Raises `OptionsError` for an invalid
    address or header.
    """
    if endpoint == "":
        return None
    if endpoint is None:
        url = _endpoint_address(environ)
        if url is None:
            return None
    else:
        url = _with_path(endpoint, "otlp_endpoint")
    is_for_traces = bool(environ.get(f"{_TRACES}ENDPOINT", "").strip())
    where = "otlp_endpoint" if endpoint is not None else f"${_TRACES if is_for_traces else _PREFIX}ENDPOINT"
    try:
        read_url(url)
    except OptionsError as error:
        raise OptionsError(f"{where} cannot be used: {error}") from None
    all_headers = {**_pairs(environ, f"{_PREFIX}HEADERS"), **_pairs(environ, f"{_TRACES}HEADERS"), **headers}
    try:
        check_headers(all_headers)
    except OptionsError as error:
        raise OptionsError(
            f"the headers for traces (otlp_headers, ${_PREFIX}HEADERS or ${_TRACES}HEADERS) cannot be used: {error}"
        ) from None
    service = environ.get("OTEL_SERVICE_NAME", "").strip()
    resource = {**_pairs(environ, "OTEL_RESOURCE_ATTRIBUTES"), **({"service.name": service} if service else {})}
    timeout_ms = _number(environ, f"{_TRACES}TIMEOUT", _number(environ, f"{_PREFIX}TIMEOUT", 10_000))
    compression = _either(environ, "COMPRESSION") or "none"
    return TelemetrySettings(
        url,
        tuple(sorted(all_headers.items())),
        tuple(sorted(resource.items())),
        timeout_s=max(timeout_ms, 1) / 1000,
        delay_s=_number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5_000) / 1000,
        max_spans=max(1, int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512))),
        gzip=compression.strip().lower() == "gzip",
        as_json=protocol_of(environ) == "http/json",
        certificate=_either(environ, "CERTIFICATE"),
        client_certificate=_either(environ, "CLIENT_CERTIFICATE"),
        client_key=_either(environ, "CLIENT_KEY"),
        with_content=_is_true(environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")),
    )


def _endpoint_address(environ: Mapping[str, str]) -> str | None:
    """The address from the environment; None if it is unset, names another protocol, or disables telemetry."""
    exporters = [name.strip() for name in environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    if (
        _is_true(environ.get("OTEL_SDK_DISABLED"))
        or "otlp" not in exporters
        or not protocol_of(environ).startswith("http/")
    ):
        return None
    whole = environ.get(f"{_TRACES}ENDPOINT", "").strip()
    base = environ.get(f"{_PREFIX}ENDPOINT", "").strip()
    return whole or (_with_path(base, f"${_PREFIX}ENDPOINT") if base else None)


def protocol_of(environ: Mapping[str, str]) -> str:
    """The protocol from the environment, `http/protobuf` by default."""
    return (_either(environ, "PROTOCOL") or "http/protobuf").lower()


def _either(environ: Mapping[str, str], name: str) -> str | None:
    """A setting of the exporter: that for traces, otherwise that for all signals; None if neither is set."""
    return environ.get(f"{_TRACES}{name}", "").strip() or environ.get(f"{_PREFIX}{name}", "").strip() or None


def _with_path(base: str, where: str) -> str:
    try:
        parts = urlsplit(base)
    except ValueError as error:
        raise OptionsError(f"{where} {base!r:.200} is not an address: {error}") from None
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def _pairs(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Parse `key=value,key2=value2` with percent-encoded values, as in W3C Baggage; invalid entries are omitted."""
    pairs = (part.partition("=") for part in environ.get(name, "").split(","))
    return {key.strip(): unquote(value.strip()) for key, equals, value in pairs if equals and key.strip()}


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    """A number from the environment; as specified, an invalid one counts as unset."""
    try:
        number = float(environ.get(name, "").strip())
    except ValueError:
        return default
    return number if 0 <= number < 1e9 else default


def _is_true(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"
