"""Which model the flags name, and how to reach it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from ..errors import OptionsError
from ..providers.base import Provider

MODEL_VARIABLE = "OPENAGENTIC_SDK_MODEL"
# Servers that people run at home, at the address where they listen unless told otherwise.
LOCAL_SERVERS = {
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}
# The vendors' own providers, and the variable that holds the key.
VENDORS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "openai-responses": "OPENAI_API_KEY"}
# Clouds, whose place and credentials the environment holds; what they want is said by their own errors.
CLOUDS = ("bedrock", "gemini", "vertex", "vertex-gemini")
COMPATIBLE = "openai-compatible"
PROVIDERS = (*VENDORS, *CLOUDS, COMPATIBLE, *LOCAL_SERVERS)


def add_model_flags(parser: argparse._ActionsContainer) -> None:
    """The flags that say which model is asked, and where."""
    parser.add_argument("--script", metavar="FILE", help="play a scripted model from a JSON file, without any network")
    parser.add_argument("--provider", choices=PROVIDERS, help="where to ask (default: openai, or --base-url)")
    parser.add_argument(
        "--model", help=f"the model's name there (default: ${MODEL_VARIABLE}, or the project's settings)"
    )
    parser.add_argument(
        "--fallback", metavar="MODEL", action="append", default=[], help="ask this one when that one fails"
    )
    parser.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible endpoint, such as http://127.0.0.1:11434/v1"
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="the variable that holds the key (openai: OPENAI_API_KEY)"
    )


def build_provider(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Provider:
    """The provider that the flags name, asked again when an endpoint fails for a moment. Raises `OptionsError`."""
    if args.script:
        return _scripted(args)
    from ..providers.guarded import guarded

    return guarded(_endpoint(args, environ), fallback=args.fallback)


def find_model(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> str | None:
    """The model's name; None leaves it to the project's settings."""
    return args.model or environ.get(MODEL_VARIABLE) or ("scripted" if args.script else None)


def _scripted(args: argparse.Namespace) -> Provider:
    from ..testing.scripted import ScriptedProvider

    if args.provider or args.base_url:
        raise OptionsError("--script plays a model from a file: leave --provider and --base-url out, or --script")
    return ScriptedProvider.from_file(args.script)


def _endpoint(args: argparse.Namespace, environ: Mapping[str, str]) -> Provider:
    name = args.provider or (COMPATIBLE if args.base_url else "openai")
    if name in VENDORS:
        return _vendor(name, args, environ)
    if name in CLOUDS:
        return _cloud(name, args.base_url, _key(args.api_key_env, environ) if args.api_key_env else None)
    base_url = args.base_url or LOCAL_SERVERS.get(name)
    if not base_url:
        raise OptionsError(f"--provider {COMPATIBLE} needs --base-url, such as {LOCAL_SERVERS['ollama']}")
    from ..providers.openai_compatible import OpenAICompatibleProvider

    # A server of somebody's own gets a key only when its variable is named: OPENAI_API_KEY is nothing to send to it.
    key = _key(args.api_key_env, environ) if args.api_key_env else None
    return OpenAICompatibleProvider(base_url=base_url, api_key=key, name=None if name == COMPATIBLE else name)


def _vendor(name: str, args: argparse.Namespace, environ: Mapping[str, str]) -> Provider:
    from ..providers.anthropic import AnthropicProvider
    from ..providers.openai import OpenAIProvider
    from ..providers.openai_responses import OpenAIResponsesProvider

    vendors: dict[str, type[AnthropicProvider | OpenAIProvider | OpenAIResponsesProvider]] = {
        "anthropic": AnthropicProvider,
        "openai": OpenAIProvider,
        "openai-responses": OpenAIResponsesProvider,
    }
    vendor = vendors[name]
    if args.api_key_env is None and not vendor(base_url=args.base_url).is_at_home:
        raise OptionsError(
            f"${VENDORS[name]} goes to the vendor only: name the variable that holds the key for {args.base_url} with "
            f"--api-key-env, or ask it without a key with --provider {COMPATIBLE}"
        )
    return vendor(base_url=args.base_url, api_key=_key(args.api_key_env or VENDORS[name], environ))


def _cloud(name: str, base_url: str | None, key: str | None) -> Provider:
    if name == "bedrock":
        from ..providers.clouds.bedrock import BedrockProvider

        return BedrockProvider(base_url=base_url, api_key=key)
    if name == "gemini":
        from ..providers.clouds.gemini import GeminiProvider

        return GeminiProvider(base_url=base_url, api_key=key)
    from ..providers.clouds.vertex import VertexClaudeProvider, VertexGeminiProvider

    provider = VertexClaudeProvider if name == "vertex" else VertexGeminiProvider
    return provider(base_url=base_url, api_key=key)


def _key(variable: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if not key:
        raise OptionsError(
            f"there is no API key in ${variable}: set it, name another variable with --api-key-env, "
            "ask a local server with --base-url, or play a scripted model with --script"
        )
    return key
