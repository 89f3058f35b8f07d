"""Named agents: a registry of options, by the names under which clients, editors, queues and other agents may start them.

A client sends a name, never a definition. Code, folders, tools and rules are defined here, by the owner of the machine; a
client may only ask for less than the registry grants, and for one of the permission modes that `Agents.modes` returns.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field, replace
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from .errors import AgentNotFoundError, OptionsError
from .events import Mode
from .ground.checks import MAX_NUMBER, NAME, TEXT, TEXTS, Check, check_settings, is_a, number, or_none, shown
from .ground.disk import read_toml
from .ground.frozen import frozen
from .ground.patterns import regex
from .ground.settings import Doors, open_at
from .ground.system import reason_of, working_dir
from .options import OpenAgenticOptions, check_options
from .parts.project.claude import claude_folders
from .parts.project.settings import read_settings
from .permissions.gate import PermissionGate
from .permissions.layers import read_mode
from .permissions.policy import STRICTER, STRICTEST_FIRST
from .providers.base import Provider
from .providers.named import find_provider, split_model
from .providers.wrappers.guarded import guarded
from .testing.scripted import ScriptedProvider

# The metadata key for the name of the agent that a session belongs to.
AGENT_KEY = "agent"
# The additions to a prompt that a client's request may contain, if the owner of the agent permits them.
ACCEPTABLE = ("instructions", "history", "format")
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
# The valid locations of a repository: none contains a password, and git reads none as an option or a transport helper
# (`ext::`).
_PLACE = regex(
    r"(?P<scheme>https|http|ssh)://(?:(?<=ssh://)[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?/[!-~]+\Z"
    r"|(?P<file>file):///[!-~]+\Z|(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?![:-]|//)[!-~]+\Z"
)
_TRANSPORTS = ("https", "ssh")


@frozen(kw_only=True)
class Repository:
    """A git repository; each run gets its own checkout (see `fleet.workspace`).

    `url` is `https://host/path`, `ssh://user@host/path` or `user@host:path`; `allow` permits the other transports "file" and
    "http". `ref` is the default branch, tag or commit; HEAD is the repository's own default. The changes of a run are kept
    as a patch; with `branches`, a name prefix (`agents/`), they are also pushed to the branch named by that prefix and the
    session's id. `token_env` is the environment variable with the token for https.
    """

    url: str
    ref: str = "HEAD"
    branches: str = ""
    allow: tuple[str, ...] = ()
    token_env: str | None = None

    @property
    def transport(self) -> str:
        """The transport of `url`: `https`, `http`, `ssh` or `file`; empty for an invalid location."""
        match = _PLACE.match(self.url)
        return (match["scheme"] or match["file"] or "ssh") if match and "::" not in self.url else ""


@frozen
class NamedAgent:
    """One entry of the registry. `description` is for people and for models that choose an agent.

    `options` may be a function that creates new ones for each run. `client_modes` are permission modes that a client may
    choose in addition to the agent's own and every stricter one; never `bypass`. `workspaces` are the places that runs on
    many hosts may choose, a shared folder or a `Repository`; `default` is used if a run names none. `rate_key` is the name
    of the provider's key in limits (default: the provider's name). With `client_files`, a client's prompt attaches project
    files that it names as `@file`, if the gate allows reading them. `accepts` lists the additions that a Responses request
    may contain: `instructions`, `history` and `format` (docs/serving.md). With `ends_with_call`, an MCP client that cancels
    its call of the agent ends the run; otherwise the run continues.
    """

    options: OpenAgenticOptions | Callable[[], OpenAgenticOptions]
    description: Annotated[str, Doors(toml=True)] = ""
    client_modes: Annotated[Sequence[str], TEXTS, Doors(toml=True)] = ()
    workspaces: Mapping[str, str | os.PathLike[str] | Repository] = field(default_factory=dict)
    rate_key: Annotated[str, Doors(toml=True)] = ""
    client_files: Annotated[bool, Doors(toml=True)] = False
    accepts: Annotated[Sequence[str], TEXTS, Doors(toml=True)] = ()
    ends_with_call: Annotated[bool, Doors(toml=True)] = False

    def made(self) -> OpenAgenticOptions:
        """Return the options, newly created if they are given as a function."""
        return self.options() if callable(self.options) else self.options


@runtime_checkable
class HasOptions(Protocol):
    """A value that is translated to options: an `Agent` or a `Workflow`."""

    def to_options(self) -> OpenAgenticOptions | Coroutine[Any, Any, OpenAgenticOptions]:
        """Return the options of a run, or a coroutine that returns them."""


def plain_options(source: Any) -> Any:
    """Return the options of an `Agent` or a `Workflow`, and anything else unchanged. Raises the errors of `to_options`."""
    options = source.to_options() if isinstance(source, HasOptions) else source
    if not isinstance(options, Coroutine):
        return options
    with ThreadPoolExecutor(1) as thread:  # not in this one: an event loop may be running here
        return thread.submit(asyncio.run, options).result()


class Agents(Mapping[str, NamedAgent]):
    """The registry of named agents. An `Agent` or a `Workflow` is converted to options once, here, without its handoffs.

    Raises `OptionsError` for an invalid name or entry, and if there are no agents.
    """

    def __init__(self, agents: Mapping[str, NamedAgent | OpenAgenticOptions | HasOptions]) -> None:
        if not isinstance(agents, Mapping):
            raise OptionsError(
                f"agents must be a mapping of names to agents, such as {{'tea': agent}}, not {shown(agents)}"
            )
        if not agents:
            raise OptionsError("no agents are defined: define at least one")
        self._agents = {name: _checked(name, agent) for name, agent in agents.items()}

    def __getitem__(self, name: str) -> NamedAgent:
        try:
            return self._agents[name]
        except (KeyError, TypeError):  # a list cannot be a key
            raise AgentNotFoundError(name, list(self._agents)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._agents

    @property
    def default(self) -> str:
        """The agent for requests that name none: the one called `default`, otherwise the first."""
        return "default" if "default" in self else next(iter(self))

    def modes(self, name: str) -> tuple[Mode, ...]:
        """The permission modes that a client may choose for this agent, strictest first; never `bypass`.

        Raises `AgentNotFoundError`.
        """
        agent = self[name]
        own = _mode_of(agent.made())
        may = {own, *STRICTER[own], *map(read_mode, agent.client_modes)} - {"bypass"}
        return tuple(mode for mode in STRICTEST_FIRST if mode in may)

    def check_no_looser(self, name: str, wishes: Mapping[str, Any] | None) -> None:
        """Raise `OptionsError` if the `permission_mode` in `wishes` is neither the agent's own nor a stricter one.

        Call this for senders who may not answer questions.
        """
        check_settings({"wishes": wishes}, _WISHES)
        own, mode = _mode_of(self[name].made()), (wishes or {}).get("permission_mode")
        if mode is not None and mode not in (own, *STRICTER[own]):
            raise OptionsError(
                f"callers who may not answer questions cannot select permission_mode {mode!r:.100}: "
                f"they may select {', '.join((own, *STRICTER[own]))}"
            )

    def options(self, name: str, wishes: Mapping[str, Any] | None = None, **ours: Any) -> OpenAgenticOptions:
        """Build the options of one run of this agent; no other run shares them.

        `wishes` come from a client: a `permission_mode` of `modes(name)`, limits (`max_steps`, `timeout_s`, `max_tokens`,
        `max_cost_usd`) of at most the registry's, and an `output_schema` if the agent accepts `format`. `ours` are options
        set by the caller (`session_store`, `resume`, `request_id` ...). Raises `AgentNotFoundError`, and `OptionsError` for
        an unknown or excessive wish.
        """
        check_settings({"wishes": wishes}, _WISHES)
        agent = self[name]
        options = agent.made()
        # An approval in one session must not apply in another.
        gate = (options.permission_gate or PermissionGate(clock=options.clock)).forgetful()
        limits, lowered = open_at(OpenAgenticOptions, "client"), dict[str, Any]()
        for wish, value in (wishes or {}).items():
            if wish == "permission_mode":
                gate = gate.with_mode(self._allowed_mode(name, value))
            elif wish == "output_schema" and "format" in agent.accepts:
                lowered[wish] = value
            elif wish in limits:
                most = getattr(options, wish)
                check_settings({wish: value}, {wish: number(0, most=MAX_NUMBER if most is None else most)})
                lowered[wish] = value
            else:
                raise OptionsError(
                    f"a client cannot set {wish!r:.100}: it may ask for permission_mode, {', '.join(limits)}"
                )
        metadata = {**options.session_metadata, AGENT_KEY: name, **ours.pop("session_metadata", {})}
        run_options = replace(options, permission_gate=gate, **lowered, session_metadata=metadata, **ours)
        check_options(run_options)
        return run_options

    def _allowed_mode(self, name: str, mode: Any) -> Mode:
        allowed = self.modes(name)
        if not isinstance(mode, str) or mode not in allowed:
            raise OptionsError(
                f"clients of {name!r} may not select permission_mode {mode!r:.100}: select one of {', '.join(allowed)}"
            )
        return read_mode(mode)


def _checked(name: str, definition: NamedAgent | OpenAgenticOptions | HasOptions) -> NamedAgent:
    if not isinstance(name, str) or not _NAME.match(name):
        raise OptionsError(
            f"agent name {name!r:.100} is invalid: use 1 to 64 letters, digits, ., _ and -, beginning with a letter or digit"
        )
    try:
        definition = plain_options(definition)
    except OptionsError as error:
        raise OptionsError(f"agent {name!r}: {error}") from error
    agent = NamedAgent(definition) if isinstance(definition, OpenAgenticOptions) else definition
    if not isinstance(agent, NamedAgent):
        raise OptionsError(
            f"agent {name!r} must be an Agent, a workflow, OpenAgenticOptions(...) or NamedAgent(...), not "
            f"{definition!r:.200}"
        )
    check_settings(agent, _ENTRY, f"agent {name!r}: ")
    options = agent.made()
    check_options(options)
    places = (options.resume, options.session, options.session_id, options.request_id)
    if any(place is not None for place in places) or options.continue_last:
        raise OptionsError(
            f"agent {name!r} names a session: resume, continue_last, session, session_id and request_id belong to a "
            "run, so set them when you start it"
        )
    if "bypass" in map(read_mode, agent.client_modes):
        raise OptionsError(f"client_modes of agent {name!r} contain bypass, which no client may choose: remove it")
    if unknown := set(agent.accepts) - set(ACCEPTABLE):
        raise OptionsError(
            f"accepts of agent {name!r} contains {min(unknown)!r:.100}: its values are {', '.join(ACCEPTABLE)}"
        )
    for workspace, place in agent.workspaces.items():
        _check_workspace(f"workspace {workspace!r:.100} of agent {name!r}", workspace, place)
    return agent


_ENTRY: Mapping[str, Check] = {
    **{name: setting.check for name, setting in open_at(NamedAgent, "toml").items() if setting.check},
    "workspaces": is_a(Mapping, "a mapping of names to folders and repositories"),
}
_REPOSITORY: Mapping[str, Check] = {"url": TEXT, "allow": TEXTS, "token_env": or_none(TEXT)}
_WISHES: Mapping[str, Check] = {"wishes": or_none(is_a(Mapping, "a mapping of settings to values"))}


def check_ref(ref: str, of: str = "", *, is_prefix: bool = False) -> None:
    """Raise `OptionsError` for an invalid branch, tag or commit, or start of one (git-check-ref-format(1), and stricter).

    `of` follows the value in the error and names its setting, such as ", the `ref` of workspace 'site',".
    """
    whole = f"{ref}x" if is_prefix else ref
    plain = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}", whole) if isinstance(ref, str) else None
    if not plain or re.search(r"\.\.|//|/\.|/-|[./]\Z|\.lock(/|\Z)", whole):
        place = "at the start of a branch" if is_prefix else "as a branch, tag or commit"
        end = "" if is_prefix else ", and not ending in ., / or .lock"
        raise OptionsError(
            f"{ref!r:.100}{of} cannot be used {place}: use at most 200 letters, digits and _ . / + -, beginning with a "
            f"letter, digit or _, without .., //, /. and /-{end}"
        )


def _check_workspace(where: str, name: Any, place: Any) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise OptionsError(
            f"{where} is invalid: its name must be 1 to 64 letters, digits, ., _ and -, and begin with a letter or digit"
        )
    if isinstance(place, str | os.PathLike):
        if not os.path.isabs(place):
            raise OptionsError(
                f"{where} is {str(place)!r:.200}: give the folder's absolute path, the same on all hosts"
            )
        return
    if not isinstance(place, Repository):
        raise OptionsError(f"{where} must be a folder or Repository(...), not {place!r:.200}")
    check_settings(place, _REPOSITORY, f"{where}: ")
    if place.transport not in (*_TRANSPORTS, *place.allow):
        raise OptionsError(
            f"{where} has the unsupported address {place.url!r:.200}: give https://host/path, ssh://user@host/path or "
            "user@host:path, without a password (token_env names a variable); `allow` permits http and file"
        )
    check_ref(place.ref, f", the `ref` of {where},")
    if place.branches:
        check_ref(place.branches, f", the `branches` of {where},", is_prefix=True)


def _mode_of(options: OpenAgenticOptions) -> Mode:
    """The mode of an agent if the client names none: its own, or a stricter one from the settings of its project."""
    gate = options.permission_gate or PermissionGate()
    root, cwd = options.project_root(), options.working_dir()
    folders = claude_folders(root, cwd=cwd, setting_sources=options.setting_sources, home=options.home)
    project_mode = None if gate.is_mode_given else read_settings(folders).default_mode
    return next((mode for mode in STRICTER[gate.mode] if mode == project_mode), gate.mode)


# --- loading the registry --------------------------------------------------------------------------------------------


def load_agents(where: str) -> Agents:
    """Load the registry from a TOML file, or from `module:name`: an `Agents`, a mapping of names to agents, one agent, or
    a function that returns one of these.

    Modules are also searched for in the current folder, after Python's own path. Raises `OptionsError` for a file or
    module that cannot be read or contains no valid registry. Also raises the errors of the module's own code.
    """
    check_settings({"agents": where}, {"agents": NAME})
    module, colon, name = where.rpartition(":")
    if where.endswith(".toml") or not colon or os.sep in where:
        return _read_toml(Path(where).expanduser().absolute())
    try:
        registry = import_name(module, name, working_dir())
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionsError(f"agents {where!r} cannot be imported: {error}") from error
    if callable(registry):
        require_no_arguments(registry, f"agents {where!r}")
        registry = registry()
    if isinstance(registry, HasOptions | OpenAgenticOptions):
        registry = {name.rpartition(".")[2]: registry}
    if not isinstance(registry, Mapping):
        raise OptionsError(f"agents {where!r} must be an Agent or a mapping of names to agents, not {registry!r:.200}")
    return registry if isinstance(registry, Agents) else Agents(registry)


def require_no_arguments(function: Callable[..., Any], where: str) -> None:
    """Raise `OptionsError` for a function that cannot be called without arguments, with `where` it was named."""
    try:
        signature(function).bind()
    except TypeError as error:
        raise OptionsError(
            f"{where} is a function that is called without arguments ({error}): name one that has only defaults, or a value"
        ) from None
    except ValueError:  # a function written in C has no readable signature
        return


def import_name(module: str, name: str, folder: str) -> Any:
    """Import a module, searching this folder last, and return its attribute `name`, which may be dotted.

    Raises `ImportError` or `AttributeError` if the module or attribute does not exist. Also raises the errors of the
    module's own code.
    """
    if module.endswith(".py"):
        raise ImportError(
            f"name the module instead of its file, as {module.removesuffix('.py').replace('/', '.')}:{name}"
        )
    if module.startswith("."):
        raise ImportError(f"the module {module!r} is relative: name it from its root, as package.module")
    sys.path.append(folder)
    try:
        return attrgetter(name)(importlib.import_module(module))
    finally:
        with suppress(ValueError):  # the module's code may have removed it
            # The last one: the folder may be on the path for other reasons, at a place that matters.
            del sys.path[-1 - sys.path[::-1].index(folder)]


def _read_toml(path: Path) -> Agents:
    try:
        data = read_toml(path)
    except (OSError, ValueError) as error:
        other = "" if path.suffix == ".toml" else "; give a TOML file, or MODULE:NAME for an agent in Python"
        raise OptionsError(f"agents {str(path)!r} cannot be read: {reason_of(error)}{other}") from error
    agents = data.pop("agents", None)
    if data or not isinstance(agents, dict) or not all(isinstance(table, dict) for table in agents.values()):
        others = f", not {min(data)!r:.100}" if data else ""
        raise OptionsError(
            f"the agents file {str(path)!r} must contain {'only ' if data else ''}tables [agents.NAME]{others}"
        )
    return Agents({name: read_agent(name, table, path.parent) for name, table in agents.items()})


# The keys of a table that differ from the options in form: the model's endpoint, and the folder of the project.
_FORMS = {**dict.fromkeys(("provider", "base_url", "api_key_env", "script", "project"), TEXT), "fallback": TEXTS}


def read_agent(name: str, table: Mapping[str, Any], folder: Path, *, offline: bool = False) -> NamedAgent:
    """Read an agent from its table; `project` and `script` are relative to the folder of the file. Raises `OptionsError`.

    `offline` needs neither a provider nor a key: the agent is only replayed.
    """
    own, rules, settings = (open_at(cls, "toml") for cls in (NamedAgent, PermissionGate, OpenAgenticOptions))
    setting_names = (*_FORMS, *own, *rules, "workspaces", *settings)
    unknown = sorted(set(table) - set(setting_names))
    if unknown:
        raise OptionsError(f"agent {name!r} has no setting {unknown[0]!r}: the settings are {', '.join(setting_names)}")
    checks = {**_FORMS, **{key: setting.check for key, setting in {**own, **rules}.items() if setting.check}}
    check_settings(table, {key: checks[key] for key in table if key in checks}, f"agent {name!r}: ")
    plain = _subset(settings, table)
    if "script" in table:
        plain.setdefault("model", "scripted")
    elif not table.keys() & {"provider", "base_url"} and (word := split_model(plain.get("model")))[0]:
        table, plain["model"] = {**table, "provider": word[0]}, word[1]
    options = OpenAgenticOptions(
        provider=ScriptedProvider() if offline else _provider_of(table, folder),
        cwd=str(folder / Path(table.get("project", ".")).expanduser()),
        permission_gate=PermissionGate(**_subset(rules, table), source="agents"),
        **plain,
    )
    spaces = table.get("workspaces", {})
    if not isinstance(spaces, dict) or not all(isinstance(space, dict) for space in spaces.values()):
        raise OptionsError(f"workspaces of agent {name!r} must be tables [agents.{name}.workspaces.NAME]")
    workspaces = {
        each: _workspace_of(f"workspace {each!r:.100} of agent {name!r}", spaces[each], folder) for each in spaces
    }
    return NamedAgent(options, workspaces=workspaces, **_subset(own, table))


def _subset(keys: Iterable[str], table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def _workspace_of(where: str, table: Mapping[str, Any], folder: Path) -> str | Repository:
    """Read a workspace: a `folder`, relative to the folder of the file, or the fields of a `Repository`."""
    texts = {key: value for key, value in table.items() if key != "allow"}
    allow = table.get("allow", [])
    keys = {"folder"} if "folder" in table else {"url", "ref", "branches", "allow", "token_env"}
    if set(table) - keys or not ({"folder", "url"} & set(table)):
        raise OptionsError(
            f"{where} must contain `folder`, or `url` and optionally ref, branches, allow and token_env, not "
            f"{', '.join(map(repr, table)) or 'nothing'}"
        )
    if not all(isinstance(text, str) for text in texts.values()):
        raise OptionsError(f"the values of {where}, except that of `allow`, must be strings, not {texts!r:.200}")
    if not isinstance(allow, list) or any(word not in ("file", "http") for word in allow):
        raise OptionsError(f'allow of {where} must be a list of "file" and "http", not {allow!r:.100}')
    return (
        str(folder / Path(texts["folder"]).expanduser())
        if "folder" in texts
        else Repository(**texts, allow=tuple(allow))
    )


def _provider_of(table: Mapping[str, Any], folder: Path) -> Provider:
    if "script" in table:
        # Each session plays the script from its start and, when resumed, continues where it was, in any process.
        return ScriptedProvider.from_file(folder / Path(table["script"]).expanduser(), resumable=True)
    endpoint = {key: table[key] for key in ("base_url", "api_key_env", "model") if key in table}
    return guarded(find_provider(table.get("provider"), **endpoint), fallback=table.get("fallback", ()))
