"""What some providers are or can do besides answering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from ..base import Provider, fits


@runtime_checkable
class FormattingProvider(Protocol):
    """A provider that can ask for answers of a JSON schema."""

    def with_response_format(self, response_format: Mapping[str, Any]) -> Provider | None:
        """The same provider asking for this format (`{"type": "json_schema", ...}`), or None where there is none."""
        ...


@runtime_checkable
class LoadingProvider(Protocol):
    """A provider of which some models take a tool's definition where it was found, and not among those at the beginning."""

    def loads_tools(self, model: str) -> bool:
        """Whether this model does. Such a definition is marked with `defer_loading`."""
        ...


def can_load_tools(provider: Provider, model: str) -> bool:
    """Whether this model takes definitions of tools where they were found."""
    return fits(provider, LoadingProvider) and provider.loads_tools(model)


@runtime_checkable
class HostedProvider(Protocol):
    """A provider that asks a service, which can fail for all who ask it."""

    name: str

    @property
    def endpoint(self) -> str:
        """What a circuit breaker counts failures for."""
        ...

    def with_settings(self, **changes: Any) -> Provider:
        """The same provider with other settings (fields of `RequestSettings`)."""
        ...


@runtime_checkable
class SelectiveProvider(Protocol):
    """A provider whose protocol has a form for these kinds of parts only, besides text: `image`, `file`, `audio`."""

    @property
    def inputs(self) -> tuple[str, ...]: ...


# What a message may carry besides text.
MEDIA_KINDS = ("image", "file", "audio")


def takes(provider: Provider, kind: str) -> bool:
    """Whether a part of this kind can be sent to the provider; yes where it does not say."""
    return not fits(provider, SelectiveProvider) or kind in provider.inputs
