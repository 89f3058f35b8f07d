"""Find a provider by a common name: a vendor, a cloud, a local server, or any compatible endpoint.

Only the module of the named provider is imported. Nothing is sent yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ..errors import ApiKeyError, OptionsError
from .base import Provider
from .keys import ApiKey

if TYPE_CHECKING:
    from .anthropic import AnthropicProvider
    from .endpoint import EndpointProvider
    from .openai import OpenAIProvider
    from .openai_compatible import OpenAICompatibleProvider
    from .openai_responses import OpenAIResponsesProvider

# Local servers, at the address where they listen by default.
LOCAL_SERVERS = {
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}
# The key in a session's metadata for the address of such a server, or another compatible one, with which to continue it.
BASE_URL_KEY = "base_url"
# The vendors' own providers, and the variable that contains the key.
VENDORS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai-responses": "OPENAI_API_KEY"}
# Vendors of compatible endpoints: the address, and the variable that contains the key.
HOSTED = {
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "groq": ("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": ("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": ("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
}
# A resource on Azure (https://NAME.openai.azure.com), whose address and key are in the environment.
AZURE, AZURE_ENDPOINT, AZURE_KEY = "azure", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"
# Clouds, whose region and credentials are in the environment; their own errors name what is missing.
CLOUDS = ("bedrock", "bedrock-converse", "gemini", "vertex", "vertex-gemini")
COMPATIBLE = "openai-compatible"
# The environment variable that names the default model.
MODEL_VARIABLE = "OPENAGENTIC_SDK_MODEL"
PROVIDERS = (*VENDORS, *HOSTED, AZURE, *CLOUDS, COMPATIBLE, *LOCAL_SERVERS)
_CLASSES = {
    "anthropic": "anthropic:AnthropicProvider",
    "openai": "openai:OpenAIProvider",
    "openai-responses": "openai_responses:OpenAIResponsesProvider",
    "bedrock": "clouds.bedrock:BedrockProvider",
    "bedrock-converse": "clouds.converse:BedrockConverseProvider",
    "gemini": "clouds.gemini:GeminiProvider",
    "vertex": "clouds.vertex:VertexClaudeProvider",
    "vertex-gemini": "clouds.vertex:VertexGeminiProvider",
    COMPATIBLE: "openai_compatible:OpenAICompatibleProvider",
}


def find_provider(
    name: str | None = None,
    *,
    base_url: str | None = None,
    api_key_env: str | None = None,
    api_key: ApiKey | None = None,
    model: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Provider:
    """Return the provider of this name; None means openai, or with a `base_url` any compatible server.

    `api_key_env` names the variable with the key, `api_key` is the key itself. Raises `OptionsError`, which names what to
    set, as a flag and as a settings key, and says so if openai was chosen only because `model` names no known provider.
    """
    begins_with_none = name is None and base_url is None and ":" in (model or "")
    name = name or (COMPATIBLE if base_url else "openai")
    if name in VENDORS:
        vendor = cast("type[AnthropicProvider | OpenAIProvider | OpenAIResponsesProvider]", _class_of(name))
        if api_key is None and api_key_env is None and not vendor(base_url=base_url).is_at_home:
            raise OptionsError(
                f"${VENDORS[name]} is sent to the vendor only: name the variable that contains the key for {base_url} with "
                f"--api-key-env (api_key_env), or use it without a key through the provider {COMPATIBLE}"
            )
        hint = (
            f"; {model!r:.200} does not begin with any of the providers {', '.join(PROVIDERS)}, so {name} was chosen: "
        )
        hint += f"use another vendor through the provider {COMPATIBLE}, with its base_url and its key"
        missing = hint if begins_with_none else ""
        return vendor(base_url=base_url, api_key=api_key or _key(api_key_env or VENDORS[name], environ, missing))
    if name in HOSTED or name == AZURE:
        return _hosted(name, base_url, api_key_env, api_key, environ)
    key = _key(api_key_env, environ) if api_key_env else api_key
    if name in CLOUDS:
        return _class_of(name)(base_url=base_url, api_key=key)
    if name != COMPATIBLE and name not in LOCAL_SERVERS:
        raise OptionsError(f"unknown provider {name!r}: the providers are {', '.join(PROVIDERS)}")
    base_url = base_url or LOCAL_SERVERS.get(name)
    if not base_url:
        raise OptionsError(
            f"the provider {COMPATIBLE} needs an address (--base-url, base_url), such as {LOCAL_SERVERS['ollama']}"
        )
    # A custom server gets a key only if its variable is named: OPENAI_API_KEY must not be sent to it.
    compatible = cast("type[OpenAICompatibleProvider]", _class_of(COMPATIBLE))
    return compatible(base_url=base_url, api_key=key, name=None if name == COMPATIBLE else name)


def _hosted(
    name: str, base_url: str | None, api_key_env: str | None, api_key: ApiKey | None, environ: Mapping[str, str]
) -> Provider:
    """Return a compatible endpoint at its vendor's address. The vendor's own key is sent to that address only."""
    usual, variable = HOSTED.get(name, (_azure_url(environ), AZURE_KEY))
    if not usual and not base_url:
        raise OptionsError(f"the provider {name} needs ${AZURE_ENDPOINT}, such as https://NAME.openai.azure.com")
    if api_key is None and api_key_env is None and base_url and base_url.rstrip("/") != usual:
        raise OptionsError(
            f"${variable} is sent to {usual or 'the address in $' + AZURE_ENDPOINT} only: name the variable that "
            "contains the "
            f"key for {base_url} with --api-key-env (api_key_env)"
        )
    compatible = cast("type[OpenAICompatibleProvider]", _class_of(COMPATIBLE))
    key = api_key if api_key is not None else _key(api_key_env or variable, environ)
    header = "api-key" if name == AZURE else None
    return compatible(base_url=base_url or usual, api_key=key, api_key_header=header, name=name)


def _azure_url(environ: Mapping[str, str]) -> str:
    """The address of the Azure resource; if it has no path, the path of the API without dated versions is added."""
    address = environ.get(AZURE_ENDPOINT, "").strip().rstrip("/")
    return f"{address}/openai/v1" if address.count("/") == 2 else address


def split_model(word: Any) -> tuple[str | None, Any]:
    """Split `openai:gpt-4o` into provider and model; without a known provider (`qwen3:8b`), the whole word is the model."""
    provider, _, model = word.partition(":") if isinstance(word, str) else ("", "", "")
    return (provider, model) if provider in PROVIDERS and model else (None, word)


def find_model(word: str, here: Provider | None = None, api_key: ApiKey | None = None) -> tuple[Provider | None, str]:
    """Find the provider and the model that a word names; the provider is `here` if the word names it or none.

    `api_key` is the key of any other provider. Raises the same errors as `find_provider`.
    """
    name, model = split_model(word)
    if name is None or (here is not None and here.name == name):
        return here, model
    return find_provider(name, api_key=api_key), model


def _class_of(name: str) -> type[EndpointProvider]:
    module, _, of_provider = _CLASSES[name].partition(":")
    return cast("type[EndpointProvider]", getattr(import_module(f".{module}", __package__), of_provider))


def _key(variable: str, environ: Mapping[str, str], hint: str = "") -> str:
    key = environ.get(variable, "").strip()
    if not key:
        raise ApiKeyError(
            f"${variable} contains no API key: set it, name another variable with --api-key-env (api_key_env), use a "
            "local server with --base-url (base_url), or a scripted model with"
            f" --script (script){hint}"
        )
    return key
