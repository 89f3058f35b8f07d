"""Providers for every other chat-completions endpoint: a vendor's, a router's, or a local server without a key."""

from __future__ import annotations

from typing import Unpack
from urllib.parse import quote

from ..errors import OptionsError
from ..ground.checks import shown
from .endpoint import EndpointArguments
from .keys import KeyGiver
from .openai import ChatProvider
from .quirks import AZURE, Quirks


class OpenAICompatibleProvider(ChatProvider):
    """A provider for a chat-completions endpoint at `base_url`, which ends in `/v1` or its equivalent.

    `api_key_header` names a header that carries the bare key in place of `Authorization: Bearer`. Without `api_key`, here
    or in the call, no key is sent. `quirks` defaults to the profile of the host, see `providers.quirks`. `name` is the
    provider's name in the log; opaque fields of its answers are sent back to that name and host only.
    """

    name = "openai-compatible"

    def __init__(
        self,
        *,
        base_url: str,
        api_key_header: str | None = None,
        quirks: Quirks | None = None,
        name: str | None = None,
        **endpoint: Unpack[EndpointArguments],
    ) -> None:
        if not base_url:
            raise OptionsError(f"base_url must be an address, such as http://127.0.0.1:8000/v1, not {shown(base_url)}")
        super().__init__(base_url=base_url, quirks=quirks, **endpoint)
        self._api_key_header = api_key_header
        if name is not None:
            self.name = name

    def authorization(self, key: str) -> dict[str, str]:
        return {self._api_key_header: key} if self._api_key_header else super().authorization(key)


class AzureOpenAIProvider(OpenAICompatibleProvider):
    """A provider for an Azure deployment, called through the older API that needs an `api-version`.

    `deployment` defaults to the call's model. `entra_token` is a callable that returns a Microsoft Entra ID token (for the
    scope `https://cognitiveservices.azure.com/.default`) in place of an `api_key`; it is sent as a bearer token.

    Azure's newer API (`https://NAME.openai.azure.com/openai/v1`) is an `OpenAICompatibleProvider` with
    `api_key_header="api-key"`.
    """

    name = "azure-openai"

    def __init__(
        self,
        *,
        endpoint: str,
        api_version: str,
        deployment: str | None = None,
        quirks: Quirks = AZURE,
        entra_token: KeyGiver | None = None,
        **arguments: Unpack[EndpointArguments],
    ) -> None:
        if entra_token is not None:
            if arguments.get("api_key"):
                raise OptionsError("an endpoint on Azure accepts either api_key or entra_token, not both")
            arguments["api_key"] = entra_token
        header = "api-key" if entra_token is None else None
        super().__init__(base_url=endpoint, api_key_header=header, quirks=quirks, **arguments)
        self._api_version = api_version
        self._deployment = deployment

    def url(self, model: str) -> str:
        deployment = quote(self._deployment or model, safe="")
        return self.address(f"/openai/deployments/{deployment}/chat/completions", **{"api-version": self._api_version})

    def models_url(self) -> str:
        return self.address("/openai/models", **{"api-version": self._api_version})
