"""Optional abilities of providers besides answering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ..base import Provider, fits


@runtime_checkable
class FormattingProvider(Protocol):
    """A provider that can request answers that follow a JSON schema."""

    def with_response_format(self, response_format: Mapping[str, Any]) -> Provider | None:
        """Return a copy that requests this format (`{"type": "json_schema", ...}`), or None if it is not supported."""
        ...


@runtime_checkable
class LoadingProvider(Protocol):
    """A provider with models that accept a tool's definition where it was found, and not only at the start."""

    def loads_tools(self, model: str) -> bool:
        """Whether this model accepts definitions that are loaded later (marked with `defer_loading`)."""
        ...


def can_load_tools(provider: Provider, model: str) -> bool:
    """Whether this model accepts tool definitions where they were found."""
    return fits(provider, LoadingProvider) and provider.loads_tools(model)


@runtime_checkable
class HostedProvider(Protocol):
    """A provider that calls a service, which can fail for all of its callers."""

    name: str

    @property
    def endpoint(self) -> str:
        """The name under which a circuit breaker counts failures."""
        ...

    def with_settings(self, **changes: Any) -> Provider:
        """Return a copy of the provider with other settings (fields of `RequestSettings`)."""
        ...


@runtime_checkable
class SelectiveProvider(Protocol):
    """A provider that declares the kinds of parts besides text (`image`, `file`, `audio`) that its protocol supports."""

    @property
    def inputs(self) -> tuple[str, ...]: ...


# The kinds of parts that a message may have besides text.
MEDIA_KINDS = ("image", "file", "audio")


def takes(provider: Provider, kind: str) -> bool:
    """Whether the provider accepts a part of this kind; true if it does not declare its inputs."""
    return not fits(provider, SelectiveProvider) or kind in provider.inputs
