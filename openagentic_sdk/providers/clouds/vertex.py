"""Models on Google's Vertex AI: Claude in the Messages format and Gemini in its own, with the caller's token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack
from urllib.parse import quote

from ...errors import OptionsError
from ...ground.patterns import regex
from ..endpoint import EndpointArguments
from .bedrock import HostedClaudeProvider
from .gemini import GeminiProvider

_PLAIN = regex(r"[a-z0-9][a-z0-9:.-]*")


class VertexClaudeProvider(HostedClaudeProvider):
    """A provider for Claude on Vertex AI. `api_key` is an OAuth access token (valid for an hour) or a function for one.

    `project` defaults to GOOGLE_CLOUD_PROJECT and `region` to GOOGLE_CLOUD_LOCATION; the region `global` has no host of its
    own. `cache_ttl` and `thinking` are as in `AnthropicProvider`. Raises `OptionsError` if the project or the region is
    missing or invalid.
    """

    name = "vertex"
    hosts = ("googleapis.com",)
    key_variable = None
    needs_key = True
    hosted_version = "vertex-2023-10-16"

    def __init__(
        self,
        *,
        project: str | None = None,
        region: str | None = None,
        base_url: str | None = None,
        cache_ttl: str | None = "5m",
        thinking: Mapping[str, Any] | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        self._place, host = vertex_place(project, region)
        super().__init__(base_url=base_url or host, cache_ttl=cache_ttl, thinking=thinking, **endpoint)

    def url(self, model: str) -> str:
        return self.address(f"/v1/{self._place}/publishers/anthropic/models/{quote(model, safe='@')}:rawPredict")

    def url_of_request(self, model: str, *, stream: bool) -> str:
        return self.url(model).replace(":rawPredict", ":streamRawPredict") if stream else self.url(model)

    def count_request(self, model: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        _, counted, field = super().count_request(model, {"model": model, **payload})
        return self.address(f"/v1/{self._place}/publishers/anthropic/models/count-tokens:rawPredict"), counted, field


class VertexGeminiProvider(GeminiProvider):
    """A provider for Gemini on Vertex AI, with project, region and token as in `VertexClaudeProvider`.

    `thinking` is as in `GeminiProvider`.
    """

    name = "vertex-gemini"
    hosts = ("googleapis.com",)
    key_variable = None

    def __init__(
        self,
        *,
        project: str | None = None,
        region: str | None = None,
        base_url: str | None = None,
        thinking: Mapping[str, Any] | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        self._place, host = vertex_place(project, region)
        super().__init__(base_url=base_url or host, thinking=thinking, **endpoint)

    def models_url(self) -> str:
        return self.address("/v1beta1/publishers/google/models")

    def model_path(self, model: str) -> str:
        return f"/v1/{self._place}/publishers/google/models/{quote(model, safe='')}"

    def authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}


def vertex_place(project: str | None, region: str | None) -> tuple[str, str]:
    """The path of a project in a region, and the base URL that serves it. Raises `OptionsError` for a missing or invalid
    name.
    """
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or ""
    region = region or os.environ.get("GOOGLE_CLOUD_LOCATION") or ""
    # Both become part of the address: a project such as `x/../y`, or a region with a dot, would send the token elsewhere.
    for field, value, variable in (
        ("project", project, "GOOGLE_CLOUD_PROJECT"),
        ("region", region, "GOOGLE_CLOUD_LOCATION"),
    ):
        if not _PLAIN.fullmatch(value):
            raise OptionsError(f"{field} {value!r} is not a Google Cloud {field}: pass {field}= or set {variable}")
    host = "aiplatform.googleapis.com" if region == "global" else f"{region}-aiplatform.googleapis.com"
    return f"projects/{project}/locations/{region}", f"https://{host}"
