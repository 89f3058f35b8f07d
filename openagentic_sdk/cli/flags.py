"""The flags that `run` and `chat` share, and the options that they stand for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionsError
from ..options import MAX_STEPS, OpenAgenticOptions
from ..permissions.gate import PermissionGate
from ..project.claude import find_project_root
from ..providers.base import Provider
from .stores import ID_HELP, add_store_flag, find_session, open_session_store

MODEL_VARIABLE = "OPENAGENTIC_SDK_MODEL"
KEY_VARIABLE = "OPENAI_API_KEY"
# Servers that people run at home, at the address where they listen unless told otherwise.
LOCAL_SERVERS = {
    "llama.cpp": "http://127.0.0.1:8080/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}
PROVIDERS = ("openai", "openai-compatible", *LOCAL_SERVERS)
MODES = ("default", "acceptEdits", "plan", "dontAsk", "prompt", "deny", "bypass", "bypassPermissions")
SOURCES = ("user", "project", "local")


def add_agent_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say which model is asked, where, and what it may do."""
    model = parser.add_argument_group("the model")
    model.add_argument("--script", metavar="FILE", help="play a scripted model from a JSON file, without any network")
    model.add_argument("--provider", choices=PROVIDERS, help="where to ask (default: openai, or --base-url)")
    model.add_argument("--model", help=f"the model's name there (default: ${MODEL_VARIABLE})")
    model.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible endpoint, such as http://127.0.0.1:11434/v1"
    )
    model.add_argument(
        "--api-key-env", metavar="NAME", help=f"the variable that holds the key (openai: {KEY_VARIABLE})"
    )
    project = parser.add_argument_group("the project")
    project.add_argument("--cwd", metavar="DIR", help="working directory of the tools (default: this one)")
    project.add_argument("--system", metavar="TEXT", help="replaces the built-in start of the system prompt")
    project.add_argument(
        "--setting-sources",
        metavar="LIST",
        default=",".join(SOURCES),
        help="whose CLAUDE.md, skills, commands, agents and settings are read: any of user,project,local, or none",
    )
    session = parser.add_argument_group("the session")
    session.add_argument("--resume", metavar="ID", help=f"go on with {ID_HELP}")
    session.add_argument(
        "--continue", dest="continue_last", action="store_true", help="go on with this folder's newest"
    )
    add_store_flag(session)
    limits = parser.add_argument_group("what it may do")
    limits.add_argument(
        "--allow", metavar="RULE", action="append", default=[], help='needs no question: "Bash(git diff:*)"'
    )
    limits.add_argument("--deny", metavar="RULE", action="append", default=[], help="is never allowed")
    limits.add_argument(
        "--permission-mode", choices=MODES, default="default", help="what happens to calls without a rule"
    )
    limits.add_argument(
        "--max-steps",
        metavar="N",
        type=_positive,
        default=MAX_STEPS,
        help="how many model calls (default: %(default)s)",
    )
    limits.add_argument("--timeout", metavar="SECONDS", type=float, help="for the whole run, subagents included")
    limits.add_argument("--max-cost", metavar="USD", type=float, help="what the session may cost, subagents included")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def build_options(args: argparse.Namespace, gate: PermissionGate) -> OpenAgenticOptions:
    """The options that the flags stand for. Raises `OptionsError` with a sentence that names the flag to set."""
    cwd = Path(args.cwd or os.getcwd()).expanduser().absolute()
    if not cwd.is_dir():
        raise OptionsError(f"--cwd {str(cwd)!r} is no folder: name one that exists")
    store = open_session_store(args.store)
    return OpenAgenticOptions(
        provider=_provider(args, os.environ),
        model=_model(args, os.environ),
        cwd=str(cwd),
        project_dir=find_project_root(cwd),
        system_prompt=args.system,
        setting_sources=_sources(args.setting_sources),
        permission_gate=gate,
        session_store=store,
        resume=find_session(store, args.resume) if args.resume else None,
        continue_last=args.continue_last,
        max_steps=args.max_steps,
        timeout_s=args.timeout,
        max_cost_usd=args.max_cost,
    )


def _provider(args: argparse.Namespace, environ: Mapping[str, str]) -> Provider:
    if args.script:
        return _scripted(args)
    base_url = args.base_url or LOCAL_SERVERS.get(args.provider or "")
    if base_url:
        return _compatible(base_url, args.api_key_env, environ)
    if args.provider == "openai-compatible":
        raise OptionsError("--provider openai-compatible needs --base-url, such as http://127.0.0.1:11434/v1")
    return _openai(args.api_key_env or KEY_VARIABLE, environ)


def _scripted(args: argparse.Namespace) -> Provider:
    from ..testing.scripted import ScriptedProvider

    if args.provider or args.base_url:
        raise OptionsError("--script plays a model from a file: leave --provider and --base-url out, or --script")
    return ScriptedProvider.from_file(args.script)


def _compatible(base_url: str, key_variable: str | None, environ: Mapping[str, str]) -> Provider:
    """A server of somebody's own gets a key only when its variable is named: OPENAI_API_KEY is nothing to send to it."""
    from ..providers.openai_compatible import OpenAICompatibleProvider

    return OpenAICompatibleProvider(base_url=base_url, api_key=_key(key_variable, environ) if key_variable else None)


def _openai(key_variable: str, environ: Mapping[str, str]) -> Provider:
    from ..providers.openai import OpenAIProvider

    return OpenAIProvider(api_key=_key(key_variable, environ))


def _key(variable: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "").strip()
    if not key:
        raise OptionsError(
            f"there is no API key in ${variable}: set it, name another variable with --api-key-env, "
            "ask a local server with --base-url, or play a scripted model with --script"
        )
    return key


def _model(args: argparse.Namespace, environ: Mapping[str, str]) -> str:
    model = args.model or environ.get(MODEL_VARIABLE) or ("scripted" if args.script else None)
    if not model:
        raise OptionsError(f"which model? Name it with --model, or set {MODEL_VARIABLE}")
    return str(model)


def _sources(text: str) -> tuple[Any, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip() and name.strip() != "none")
    wrong = [name for name in names if name not in SOURCES]
    if wrong:
        raise OptionsError(f"--setting-sources knows user, project, local and none, not {wrong[0]!r}")
    return names
