"""Which model the flags name, and how to reach it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from ..errors import OptionsError
from ..providers.base import Provider
from ..providers.guarded import guarded
from ..providers.named import PROVIDERS, find_provider

MODEL_VARIABLE = "OPENAGENTIC_SDK_MODEL"


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
    endpoint = find_provider(args.provider, base_url=args.base_url, api_key_env=args.api_key_env, environ=environ)
    return guarded(endpoint, fallback=args.fallback)


def find_model(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> str | None:
    """The model's name; None leaves it to the project's settings."""
    return args.model or environ.get(MODEL_VARIABLE) or ("scripted" if args.script else None)


def _scripted(args: argparse.Namespace) -> Provider:
    from ..testing.scripted import ScriptedProvider

    if args.provider or args.base_url:
        raise OptionsError("--script plays a model from a file: leave --provider and --base-url out, or --script")
    return ScriptedProvider.from_file(args.script)
