"""The flags shared by `run` and `chat`: the options and the model that they configure, and the files of a prompt."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any, Literal, get_args, get_origin

from ..errors import OptionsError
from ..ground.disk import read_regular
from ..ground.patterns import regex
from ..ground.settings import open_at, sentences
from ..ground.system import reason_of, working_dir
from ..options import SETTING_SOURCES, OpenAgenticOptions
from ..parts.project.claude import find_project_root
from ..permissions.gate import PermissionGate
from ..prompts import OnePrompt
from ..providers.base import Provider
from ..providers.named import COMPATIBLE, LOCAL_SERVERS, MODEL_VARIABLE, PROVIDERS, find_provider, split_model
from ..providers.wrappers.guarded import guarded
from ..sessions.base import SessionStore
from ..sessions.folds.summary import TAGS_KEY
from ..sessions.seal import Signer
from .actions import add_list_flag
from .stored.stores import ID_HELP, add_store_flag, find_session, open_session_store

_MAX_TEXT_BYTES = 4 << 20

MODES = ("default", "acceptEdits", "plan", "dontAsk", "prompt", "deny", "bypass", "bypassPermissions")
_MENTION = regex(r"(?<!\S)@(\S+)")


def add_agent_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the model and its endpoint, the project, the permissions and the limits."""
    add_model_flags(parser.add_argument_group("the model"))
    project = parser.add_argument_group("the project")
    project.add_argument(
        "--setting-sources",
        metavar="LIST",
        default=",".join(SETTING_SOURCES),
        help="the sources of CLAUDE.md, skills, commands, agents and settings: any of user,project,local, or none",
    )
    project.add_argument(
        "--trust", action="store_true", help="allow the project's files to grant what they request, in this run"
    )
    add_option_flags(project, "Project")
    add_store_flag(project)
    limits = parser.add_argument_group("what it may do")
    add_list_flag(limits, "--allow", metavar="RULE", help='allow without asking: "Bash(git diff:*)"')
    add_list_flag(limits, "--deny", metavar="RULE", help='deny the calls that match: "Bash(rm:*)"')
    limits.add_argument(
        "--permission-mode", choices=MODES, help="the decision about calls without a rule (default: from settings)"
    )
    limits.add_argument(
        "--no-redact",
        action="store_true",
        help="store keys, tokens and the secrets of this environment unmasked",
    )
    for heading in ("Permissions", "Tools and agents", "Limits"):
        add_option_flags(limits, heading)


def add_option_flags(parser: argparse._ActionsContainer, heading: str) -> None:
    """Add the flags of the options under one heading, as declared in `OpenAgenticOptions`."""
    flagged = open_at(OpenAgenticOptions, "flag")
    for name, sentence in sentences(OpenAgenticOptions)[heading].items():
        if name in flagged:
            flag, _, metavar = flagged[name].doors.flag.partition(" ")
            about = sentence[0].lower() + sentence[1:].removesuffix(".").replace("%", "%%")
            form = _form(flagged[name].kind, metavar, getattr(OpenAgenticOptions, name))
            parser.add_argument(flag, dest=name, **{**form, "help": about + form.get("help", "")})


def _form(kind: Any, metavar: str, default: Any) -> dict[str, Any]:
    """The argparse settings for a flag of an option of this type."""
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind), "default": default}
    if get_origin(kind) is Sequence:
        return {"metavar": metavar, "action": "append", "default": [], "type": _absolute, "help": " (repeatable)"}
    if kind is int:
        default_note = "" if default is None else " (default: %(default)s)"
        return {"metavar": metavar, "type": positive, "default": default, "help": default_note}
    note = f" (default: {default})" if isinstance(default, str) else ""
    return {"metavar": metavar, "type": kind if isinstance(kind, type) else str, "default": default, "help": note}


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose a session, and those of `add_fork_flags`."""
    session = parser.add_argument_group("the session")
    session.add_argument("--resume", metavar="ID", help=f"continue this session: {ID_HELP}")
    add_option_flags(session, "Session")
    add_fork_flags(parser, session)


def add_fork_flags(parser: argparse.ArgumentParser, session: argparse._ActionsContainer | None = None) -> None:
    """Add the flags for a session except those that choose it, and the flags of `add_agent_flags`."""
    session = session or parser.add_argument_group("the session")
    session.add_argument("--cwd", metavar="DIR", help="the working directory of the tools (default: the current one)")
    add_list_flag(session, "--tag", metavar="NAME", help="tag a new session, for costs and limits")
    add_option_flags(session, "Telemetry")
    session.add_argument(
        "--sign-record",
        action="store_true",
        help="sign the record with this installation's key at the end of each run",
    )
    session.add_argument(
        "--plain", action="store_true", help="print line by line without colours or rewriting, for screen readers"
    )
    add_agent_flags(parser)


def add_agents_flag(parser: argparse._ActionsContainer, *, required: bool = True) -> None:
    """Add `--agents`, for commands with which others start agents; `agents.load_agents` reads it."""
    parser.add_argument(
        "--agents",
        metavar="WHERE",
        required=required,
        help="the agents that may be started: a TOML file, or MODULE:NAME in Python",
    )


def tcp_port(text: str) -> int:
    """Parse the number of a TCP port; 0 means any free port.

    Raises ValueError or `argparse.ArgumentTypeError` for other text.
    """
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {number}")
    return number


def positive(text: str) -> int:
    """Parse a positive integer that every store accepts.

    Raises ValueError or `argparse.ArgumentTypeError` for other text.
    """
    number = int(text)
    if not 1 <= number <= 10**15:
        raise argparse.ArgumentTypeError(f"must be from 1 to 10 ** 15, not {number}")
    return number


def seconds(text: str) -> float:
    """Parse a number of seconds that a thread can wait. Raises ValueError or `argparse.ArgumentTypeError` for other text."""
    number = float(text)
    if not 0 <= number <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 to {TIMEOUT_MAX:g}, not {text:.100}")
    return number


def _signers() -> list[Signer]:
    from ..parts.record.signers import InstallationKey  # late: it runs other programs, which few runs need

    return [InstallationKey()]


def build_options(
    args: argparse.Namespace, gate: PermissionGate, store: SessionStore | None = None
) -> OpenAgenticOptions:
    """Build the options that the flags configure. Raises an `OptionsError` that names the flag to set."""
    cwd = Path(args.cwd or working_dir()).expanduser().absolute()
    if not cwd.is_dir():
        raise OptionsError(f"--cwd {str(cwd)!r} is not a folder: name one that exists")
    store = store or open_session_store(args.store)
    names = tuple(name.strip() for name in args.setting_sources.split(",") if name.strip() and name.strip() != "none")
    wrong = [name for name in names if name not in SETTING_SOURCES]
    if wrong:
        raise OptionsError(f"--setting-sources accepts user, project, local and none, not {wrong[0]!r}")
    return OpenAgenticOptions(
        provider=build_provider(args),
        model=find_model(args),
        cwd=str(cwd),
        project_dir=find_project_root(cwd),
        setting_sources=names,
        permission_gate=gate,
        trust_project=True if args.trust else None,
        redact=not args.no_redact,
        session_store=store,
        record_signers=_signers() if args.sign_record else (),
        resume=None if args.resume is None else find_session(store, args.resume),
        session_metadata={TAGS_KEY: args.tag} if args.tag else {},
        **{name: getattr(args, name) for name in open_at(OpenAgenticOptions, "flag") if name in args},
    )


def add_model_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags for the model and its endpoint."""
    parser.add_argument("--script", metavar="FILE", help="use a scripted model from a JSON file, without a network")
    parser.add_argument("--provider", choices=PROVIDERS, help="the provider (default: openai, or --base-url)")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the model's name at the provider, or both as openai:gpt-4o "
        f"(default: ${MODEL_VARIABLE}, or the project's settings)",
    )
    add_list_flag(parser, "--fallback", metavar="MODEL", help="a model to use if the first one fails")
    parser.add_argument(
        "--base-url", metavar="URL", help="an OpenAI-compatible endpoint, such as http://127.0.0.1:11434/v1"
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="the environment variable with the key (openai: OPENAI_API_KEY)"
    )


def build_provider(args: argparse.Namespace) -> Provider:
    """Build the provider that the flags select, with retries for temporary failures. Raises `OptionsError`."""
    if args.script:
        from ..testing.scripted import ScriptedProvider

        if args.provider or args.base_url:
            raise OptionsError("--script plays a model from a file: remove --provider and --base-url, or --script")
        return ScriptedProvider.from_file(args.script)
    provider_name, model = _model_word(args)
    provider_name = args.provider or provider_name
    endpoint = find_provider(provider_name, base_url=args.base_url, api_key_env=args.api_key_env, model=model)
    return guarded(endpoint, fallback=args.fallback)


def find_model(args: argparse.Namespace) -> str | None:
    """The model's name; None leaves it to the project's settings."""
    return _model_word(args)[1] or ("scripted" if args.script else None)


def _model_word(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """The provider and the model that `--model` names; only the model if another flag names the provider.

    With `--base-url`, a prefix names a provider only if it is that of a local or custom server: a router may call a model
    `openai:gpt-4o`.
    """
    word = args.model or os.environ.get(MODEL_VARIABLE) or None
    if args.provider or args.script:
        return None, word
    provider, model = split_model(word)
    is_other = args.base_url and provider not in (COMPATIBLE, *LOCAL_SERVERS)
    return (None, word) if is_other else (provider, model)


def with_files(text: str, cwd: str, attached: Sequence[str] = (), *, typed: bool) -> OnePrompt:
    """Return the prompt with its files: `attached`, and `@path` in a `typed` text.

    Mentions are paths relative to `cwd`. A mention that names no file stays plain text; text from a pipe is not searched.
    Raises `OptionsError` for an attached file that does not exist.
    """
    paths = [Path(path).expanduser().absolute() for path in attached]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise OptionsError(f"--attach {missing[0]!r} is not a file: name one that exists")
    mentions = _MENTION.findall(text) if typed else ()
    mentioned_paths = [
        next((path for path in (word, word.rstrip(".,;:!?)")) if Path(cwd, path).is_file()), None) for word in mentions
    ]
    files = dict.fromkeys([*map(str, paths), *(path for path in mentioned_paths if path)])
    if not files:
        return text
    return [{"type": "text", "text": text}, *({"type": "file", "path": path} for path in files)]


def text_or_file(value: str, flag: str) -> str:
    """Return the text of a flag, or of the file that it names. Raises `OptionsError` for a file that cannot be read."""
    try:
        if not os.path.isfile(value):  # unlike a Path's, false for a text that is too long to be a path
            return value
        return read_regular(value, _MAX_TEXT_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise OptionsError(f"{flag} {value!r:.200} cannot be read: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise OptionsError(f"{flag} {value!r:.200} cannot be read: {reason_of(error)}") from None
