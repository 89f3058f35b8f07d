"""Define an eval: cases, variants and scorers, as Python values or in a TOML file, with the same validation."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

from ..agents import import_name, plain_options, read_agent, require_no_arguments
from ..errors import OptionsError, SuiteError, ToolInputError
from ..events import Outcome, StopReason
from ..ground.checks import TEXT, check_settings
from ..ground.disk import MAX_TOML_BYTES, read_regular, read_toml
from ..ground.frozen import frozen
from ..ground.patterns import regex
from ..ground.schemas import compiled
from ..ground.schemas.reading import Schema
from ..ground.schemas.typed import json_schema
from ..ground.system import reason_of, working_dir
from ..ground.threads import error_words
from ..options import OpenAgenticOptions, check_options, with_model
from ..permissions.gate import PermissionGate
from ..permissions.policy import PermissionMode
from ..testing.scripted import ScriptedProvider
from .apart import load_file
from .scorers import CALL_LISTS, SCORERS, Call, Calls, Function, JsonSchema, Judge, Regex, Scorer, as_call

CaseMode = Literal["replay", "whatif", "live"]
SuiteOnNew = Literal["stop", "live"]
PLAIN = "plain"
# The settings of a variant and of a judge that select the model and its endpoint.
_ASKED_AT = ("provider", "base_url", "api_key_env", "script")
_ID = regex(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}\Z")


@frozen(kw_only=True)
class Case:
    """One case. Exactly one of `prompt`, `session`, `tag`, `search` and `log` defines its input.

    prompt      a person's prompt to a new session
    session     the id of a recorded session
    tag, search the recorded sessions with a tag, or with an event that contains all the words (as beginnings of words): one
                case each, at most `limit`, newest first
    log         a file of events, relative to the suite
    mode        how it runs: `replay` plays the recorded answers through the present agent, offline; `whatif` continues from
                an event with the variant's model, answering recorded calls with their results; `live` sends the recorded
                prompts to a new session. Default: live for a prompt, whatif if `at` is given, otherwise replay
    at          for whatif: the last event to keep (default: the first prompt, so that everything is asked again)
    on_new      for whatif: what to do about a call without a recorded result, `stop` the run or run it `live`
    strict      for replay: whether a request, decision or result that differs from the recording fails the case
    ends        the stop reasons that are not failures (default: `end`)
    scores      scorers of this case, in addition to the suite's
    variants    the variants to run it under (default: all)
    """

    id: str = ""
    prompt: str | None = None
    session: str | None = None
    tag: str | None = None
    search: str | None = None
    log: str | None = None
    mode: CaseMode | None = None
    at: int | None = None
    on_new: SuiteOnNew = "stop"
    strict: bool = True
    ends: Sequence[StopReason] = ("end",)
    limit: int = 50
    scores: Sequence[Any] = ()
    variants: Sequence[str] = ()

    @property
    def run_mode(self) -> CaseMode:
        """The mode, or the default if none is given."""
        return self.mode or ("live" if self.prompt is not None else "replay" if self.at is None else "whatif")


@frozen(kw_only=True)
class Variant:
    """Changes to the suite's agent; None and empty values change nothing.

    `tools` are the only tools offered; `skills` are active from the start, `skill_paths` are additional folders of skills;
    `allow` and `deny` are additional rules. `agent` (`module:name`) replaces the whole agent, and `change`, in Python, is a
    function from options to options.
    """

    agent: str | None = None
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    script: str | None = None
    system_prompt: str | None = None
    system_prompt_file: str | None = None
    skills: Sequence[str] = ()
    skill_paths: Sequence[str] = ()
    tools: Sequence[str] | None = None
    disallowed_tools: Sequence[str] = ()
    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    permission_mode: PermissionMode | None = None
    max_steps: int | None = None
    timeout_s: float | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_context_tokens: int | None = None
    change: Any = None


@frozen(kw_only=True)
class Suite:
    """The definition of an eval: an agent and its variants, cases to run them on, and scorers of the runs.

    `agent` is an `Agent` or options, a function that creates them for each run, a table as in `agents.toml`, or
    `module:name` of an agent, options or a function; without an agent, cases can only be replayed. `parallel` limits
    concurrent runs. `max_cost_usd` limits the total cost of all runs and judges, `timeout_s` the duration of a run.
    `live_tools` run for real in a replay. Paths are relative to `folder`; `source` is where the suite was loaded from.
    """

    name: str
    cases: Sequence[Case]
    agent: Any = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    scores: Sequence[Any] = ()
    repeats: int = 1
    parallel: int = 4
    max_cost_usd: float | None = None
    timeout_s: float = 600.0
    live_tools: Sequence[str] = ()
    folder: str = "."
    source: str = ""

    def digest(self) -> str:
        """The digest of the suite's definition, with the text of the files that it names or that define its functions."""
        files = [name for variant in self.variants.values() if (name := variant.system_prompt_file) is not None]
        definition = [replace(self, folder="", source=""), [_text_of(Path(self.folder, name)) for name in files]]
        return hashlib.sha256(json.dumps(definition, default=_digest_form, sort_keys=True).encode()).hexdigest()

    def base(self) -> OpenAgenticOptions | None:
        """Create the options of the agent for one run; None without an agent. Raises `OptionsError`."""
        return _agent(self.agent, self.folder, offline=False)

    def options(self, variant: str, *, offline: bool = False) -> OpenAgenticOptions | None:
        """Create the options of one run under a variant, not shared with any other run; None without an agent.

        `offline` skips providers and keys, for a replay. Raises `OptionsError`.
        """
        check_settings({"variant": variant}, {"variant": TEXT})
        variant_settings = self.variants.get(variant, Variant())
        base = _agent(
            self.agent if variant_settings.agent is None else variant_settings.agent, self.folder, offline=offline
        )
        if base is None:
            return None
        run_options = varied(base, variant_settings, self.folder, offline=offline)
        check_options(replace(run_options, provider=ScriptedProvider()) if offline else run_options)
        return run_options

    def judged_by(self, judge: Judge, base: OpenAgenticOptions | None) -> OpenAgenticOptions:
        """Create the options of a judge: the agent's, overridden by the judge's own. Raises `OptionsError`."""
        settings = {name: getattr(judge, name) for name in ("model", *_ASKED_AT)}
        start = OpenAgenticOptions() if base is None else base
        return varied(start, Variant(**settings), self.folder)


def varied(base: OpenAgenticOptions, variant: Variant, folder: str, *, offline: bool = False) -> OpenAgenticOptions:
    """Apply a variant to options; `offline` is as in `Suite.options`. Raises `OptionsError`, and `SuiteError` for an
    unreadable file.
    """
    same = ("model", "max_steps", "timeout_s", "max_tokens", "max_cost_usd", "max_context_tokens", "system_prompt")
    changes: dict[str, Any] = {name: value for name in same if (value := getattr(variant, name)) is not None}
    if variant.system_prompt_file is not None:
        changes["system_prompt"] = _text_of(Path(folder, variant.system_prompt_file))
    endpoint = {name: value for name in _ASKED_AT if (value := getattr(variant, name))}
    if endpoint and not offline:
        other = read_agent("variant", endpoint, Path(folder)).options
        assert isinstance(other, OpenAgenticOptions), "a table yields options"
        changes |= {"provider": other.provider, "api_key": None}
        changes.setdefault("model", other.model or base.model)
    elif variant.model is not None and not offline:
        model_options = with_model(base, variant.model)
        changes |= {"provider": model_options.provider, "model": model_options.model, "api_key": model_options.api_key}
    if variant.disallowed_tools or variant.deny:
        changes["disallowed_tools"] = (*base.disallowed_tools, *variant.disallowed_tools, *variant.deny)
    if variant.allow:
        changes["allowed_tools"] = (*base.allowed_tools, *variant.allow)
    if variant.skills:
        changes["skills"] = (*base.skills, *variant.skills)
    if variant.skill_paths:
        changes["skill_paths"] = (*base.skill_paths, *(str(Path(folder, path)) for path in variant.skill_paths))
    # Permissions granted in one run must not carry over to another, and nobody is at the terminal.
    gate = (base.permission_gate or PermissionGate(clock=base.clock)).forgetful()
    gate = gate if variant.permission_mode is None else gate.with_mode(variant.permission_mode)
    gate = gate if variant.tools is None else gate.narrowed(tools=variant.tools, source="variant")
    changes["permission_gate"] = replace(gate, interactive=False, interactive_approver=None)
    result = replace(base, **changes)
    return result if variant.change is None else _options_of(lambda: variant.change(result), "change")


def options_of(where: str, folder: str) -> OpenAgenticOptions:
    """Import the options that `module:name` in a folder is or returns. Raises `OptionsError`."""
    options = _agent(where, folder, offline=False)
    assert options is not None, "a name yields options"
    return options


def _agent(agent: Any, folder: str, *, offline: bool) -> OpenAgenticOptions | None:
    """Create the options that a suite or a variant names; None if it names none."""
    if isinstance(agent, Mapping):
        source: Any = read_agent("agent", agent, Path(folder), offline=offline).options
    else:
        source = _import_value(agent, folder, "agent") if isinstance(agent, str) else agent
    if source is None:
        return None
    return _options_of(source if callable(source) else lambda: source, "agent")


def _options_of(make: Callable[[], Any], field: str) -> OpenAgenticOptions:
    """Call a function of a suite and return its result. Raises `SuiteError` if it fails or returns anything but options."""
    try:
        options = plain_options(make())
    except OptionsError:
        raise
    except (Exception, SystemExit) as error:  # third-party code may raise anything: the suite is invalid
        raise SuiteError(f"the function raised {': '.join(error_words(error))}", field=field) from error
    if not isinstance(options, OpenAgenticOptions):
        raise SuiteError(
            f"must be an Agent, OpenAgenticOptions(...) or a function that returns one, not {options!r:.200}",
            field=field,
        )
    return options


def _import_value(where: str, folder: str, what: str) -> Any:
    """Import the value named by `module:name` or `file.py:name`; modules are also searched for in the suite's folder."""
    module, _, name = where.rpartition(":")
    if not module or not name:
        raise SuiteError(f"{where!r:.200} is not of the form module:name or file.py:name", field=what)
    try:
        if module.endswith(".py"):
            path = Path(folder, module).resolve()
            return attrgetter(name)(sys.modules.get(_module_name(path)) or load_file(path, _module_name(path)))
        return import_name(module, name, folder)
    except (Exception, SystemExit) as error:  # third-party code may raise anything: the suite is invalid
        raise SuiteError(f"{where!r:.200} cannot be imported ({': '.join(error_words(error))})", field=what) from error


def _module_name(path: Path) -> str:
    return f"openagentic_suite_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"


def _text_of(path: Path) -> str:
    try:
        return read_regular(path, MAX_TOML_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise SuiteError(f"{str(path)!r} cannot be read: {reason_of(error)}") from None


def _digest_form(value: Any) -> Any:
    """Return the JSON value that represents a non-JSON value in the digest."""
    if isinstance(value, Suite | Case | Variant | Call) or type(value) in SCORERS.values():
        return {"is": type(value).__name__, **{each.name: getattr(value, each.name) for each in fields(value)}}
    code = getattr(value, "__code__", None)
    if code is None:
        return type(value).__name__
    place = Path(code.co_filename)
    text = hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""
    return [getattr(value, "__qualname__", ""), text]


# --- loading -------------------------------------------------------------------------------------------------------------


def load_suite(where: str) -> Suite:
    """Load and validate the suite in `suite.toml`, in `suite.py` (a variable `suite`), or at `module:name`.

    Raises `SuiteError`.
    """
    _require(isinstance(where, str) and where, "suite", "must be a file (suite.toml, suite.py) or module:name", where)
    path = Path(where).expanduser().absolute()
    if path.suffix == ".toml":
        return _read_toml(path)
    if path.suffix == ".py":
        if not path.is_file():
            raise SuiteError("the file does not exist", source=str(path))
        try:
            module = load_file(path, _module_name(path))
            suite = _suite_of(getattr(module, "suite", None), str(path))
        except SuiteError:
            raise
        except (Exception, SystemExit) as error:  # third-party code may raise anything: the suite is invalid
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
            line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
            raise SuiteError(": ".join(error_words(error)), source=str(path), line=line) from error
        folder = str(path.parent) if suite.folder == "." else suite.folder
        return check_suite(replace(suite, folder=folder, source=suite.source or str(path)))
    suite = _import_value(where, working_dir(), "suite")
    return check_suite(_suite_of(suite, where))


def _suite_of(value: Any, source: str) -> Suite:
    if callable(value):
        try:
            require_no_arguments(value, "the suite")
            value = value()
        except SuiteError:
            raise
        except (Exception, SystemExit) as error:  # third-party code may raise anything: the suite is invalid
            raise SuiteError(
                f"the function raised {': '.join(error_words(error))}", field="suite", source=source
            ) from error
    if not isinstance(value, Suite):
        raise SuiteError(
            f"must be Suite(...) or a function that returns one, not {value!r:.200}", field="suite", source=source
        )
    return value


def _read_toml(path: Path) -> Suite:
    try:
        data = read_toml(path)
    except OSError as error:
        raise SuiteError(f"the suite cannot be read ({error.strerror or error})", source=str(path)) from None
    except ValueError as error:
        at = re.search(r"\(at line (\d+)", str(error))
        raise SuiteError(
            f"the suite is not TOML ({error})", source=str(path), line=int(at[1]) if at else None
        ) from None
    try:
        own = {"name": path.stem, **data, "folder": str(path.parent), "source": str(path)}
        _fits(own, Suite, "")
        folder = str(path.parent)
        cases = []
        for number, table in enumerate(_tables(own, "cases", "cases")):
            where = f"cases[{number}]"
            _fits(table, Case, where)
            scores = _scorers(table, folder, f"{where}.scores")
            cases.append(Case(**{**table, "scores": scores}))
        variants = {}
        for name, table in own.get("variants", {}).items():
            _fits(table, Variant, f"variants.{name}")
            if "change" in table:
                raise SuiteError("can be used only in suites in Python", field=f"variants.{name}.change")
            variants[name] = Variant(**table)
        scores = _scorers(own, folder, "scores")
        return check_suite(Suite(**{**own, "cases": cases, "variants": variants, "scores": scores}))
    except SuiteError as error:
        line = error.line or line_of(_text_of(path), error.field)
        raise SuiteError(error.message, field=error.field, source=error.source or str(path), line=line) from None


def _tables(data: Mapping[str, Any], key: str, where: str) -> Sequence[Mapping[str, Any]]:
    tables = data.get(key, ())
    if not isinstance(tables, list | tuple) or not all(isinstance(table, Mapping) for table in tables):
        raise SuiteError(f"must be tables, as in [[{key}]]", field=where)
    return tables


def _scorers(data: Mapping[str, Any], folder: str, where: str) -> list[Scorer]:
    scorers = []
    for number, table in enumerate(_tables(data, "scores", where)):
        here = f"{where}[{number}]"
        kind = SCORERS.get(table["type"]) if isinstance(table.get("type"), str) else None
        if kind is None:
            raise SuiteError(
                f"must be one of {', '.join(SCORERS)}, not {table.get('type')!r:.100}", field=f"{here}.type"
            )
        values = {key: value for key, value in table.items() if key != "type"}
        _fits(values, kind, here)
        if kind is Calls:
            values |= {key: [as_call(entry) for entry in values[key]] for key in CALL_LISTS if key in values}
        if kind is Function:
            values["check"] = _import_value(str(values["check"]), folder, f"{here}.check")
        scorers.append(kind(**values))
    return scorers


@cache
def _schema_of(kind: Any) -> Schema:
    """The schema of a suite's table; fields that hold other tables or functions may have any value."""
    schema = json_schema(kind)
    loose = {"cases", "scores", "agent", "change", "check"} | ({"variants"} if kind is Suite else set())
    return Schema({**schema, "properties": {k: {} if k in loose else v for k, v in schema["properties"].items()}})


def _fits(table: Mapping[str, Any], kind: Any, where: str) -> None:
    """Raise `SuiteError` for a field that is missing, unknown or of the wrong type."""
    try:
        _schema_of(kind).check(dict(table), kind.__name__)
    except ToolInputError as error:
        path = ".".join(part for part in (where, error.path) if part)
        words = str(error).removeprefix(f"{kind.__name__}: ").removeprefix(error.path or "the value").strip()
        raise SuiteError(words, field=path) from None


_HEADER = regex(r"\s*\[(\[?)\s*([A-Za-z0-9_.\"' -]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = regex(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\")\s*(?:\.|=)")


def line_of(text: str, path: str) -> int | None:
    """The line of a TOML text with a field such as `cases[2].scores[0].pattern`, else with its nearest container, if any."""
    target = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
    best: tuple[int, int | None] = (0, None)
    counts: dict[tuple[Any, ...], int] = {}
    here: list[Any] = []
    is_inside = ""  # the quotes of the multi-line string around this line
    for number, line in enumerate(text.split("\n"), 1):
        quotes = re.findall(r'"""|\'\'\'', line)
        was_inside, key = is_inside, None
        for quote in quotes:
            is_inside = "" if is_inside == quote else is_inside or quote
        if was_inside:
            continue
        if header := _HEADER.match(line):
            here = []
            parts = [part.strip(" \"'") for part in header[2].split(".")]
            for depth, part in enumerate(parts, 1):
                here.append(part)
                if depth == len(parts) and header[1]:
                    counts[tuple(here)] = counts.get(tuple(here), -1) + 1
                if tuple(here) in counts:
                    here.append(counts[tuple(here)])
        elif match := _KEY.match(line):
            key = match[1].strip('"')
        place = here if key is None else [*here, key]
        if place == target[: len(place)] and len(place) > best[0]:
            best = len(place), number
    return best[1]


# --- validation ------------------------------------------------------------------------------------------------------


def check_suite(suite: Suite) -> Suite:
    """Return the suite, with an id for each case. Raises `SuiteError` for the first invalid field."""
    _require(isinstance(suite, Suite), "suite", "must be Suite(...)", suite)
    _fits(vars(suite), Suite, "")
    _require(_is_list(suite.cases), "cases", "must be a list of Case(...)", suite.cases)
    is_mapping = isinstance(suite.variants, Mapping)
    _require(is_mapping, "variants", "must be a mapping of names to Variant(...)", suite.variants)
    _require(suite.cases, "cases", "must contain at least one case")
    for name in ("repeats", "parallel"):
        number = getattr(suite, name)
        _require(1 <= number <= 1_000, name, "must be from 1 to 1000", number)
    _require(0 < suite.timeout_s < inf, "timeout_s", "must be above 0", suite.timeout_s)
    cost = suite.max_cost_usd
    _require(cost is None or 0 <= cost < inf, "max_cost_usd", "must be a number of dollars, 0 or more", cost)
    for name, variant in suite.variants.items():
        field = f"variants.{name}"
        is_named = _ID.match(name) and isinstance(variant, Variant)
        _require(
            is_named,
            field,
            "must be Variant(...) under a name of letters, digits, ., _, - and / that begins with a letter or digit",
        )
        _fits(vars(variant), Variant, field)
    _check_scores(suite.scores, "scores")
    cases: dict[str, Case] = {}
    for place, case in enumerate(suite.cases):
        _check_case(case, suite, f"cases[{place}]")
        name = case.id or f"case-{place + 1}"
        _require(name not in cases, f"cases[{place}].id", f"{name!r} is the id of more than one case")
        cases[name] = replace(case, id=name)
    _check_agents(suite)
    for scores in (suite.scores, *(case.scores for case in suite.cases)):
        for judge in (scorer for scorer in scores if isinstance(scorer, Judge)):
            has_model = suite.agent is not None or judge.provider or judge.script or judge.base_url
            _require(
                has_model, "scores", "a judge needs a provider, since the suite has no agent whose model it could use"
            )
    return replace(suite, cases=tuple(cases.values()))


def _require(holds: object, field: str, words: str, value: Any = ...) -> None:
    """Raise `SuiteError` unless the condition is true, quoting the given value if there is one."""
    if not holds:
        raise SuiteError(words if value is ... else f"{words}, not {value!r:.200}", field=field)


def _check_agents(suite: Suite) -> None:
    """Raise `SuiteError` for an agent, or a variant of it, that no run could use."""
    is_offline = all(case.run_mode == "replay" for case in suite.cases)
    field = "agent"
    try:
        for field in ("agent", *(f"variants.{name}" for name in suite.variants)):
            suite.options(field.removeprefix("variants."), offline=is_offline)
    except SuiteError as error:
        raise SuiteError(error.message, field=error.field or field, source=suite.source) from None
    except OptionsError as error:
        raise SuiteError(str(error), field=field, source=suite.source) from None


def _check_case(case: Case, suite: Suite, where: str) -> None:
    _require(isinstance(case, Case), where, "must be Case(...)", case)
    _fits(vars(case), Case, where)
    sources = [name for name in ("prompt", "session", "tag", "search", "log") if getattr(case, name) is not None]
    source_list = " and ".join(sources) or "none of them"
    _require(
        len(sources) == 1,
        where,
        f"must have exactly one of prompt, session, tag, search and log, and has {source_list}",
    )
    is_usable = not case.id or _ID.match(case.id)
    _require(
        is_usable,
        f"{where}.id",
        f"{case.id!r} must be up to 100 letters, digits, ., _, - and /, and begin with a letter or digit",
    )
    is_recorded = case.prompt is None or case.run_mode == "live"
    _require(is_recorded, f"{where}.mode", f"{case.run_mode} needs a recorded session, and this case is a prompt")
    has_agent = case.run_mode == "replay" or suite.agent is not None
    _require(has_agent, f"{where}.mode", f"{case.run_mode} needs an agent, and the suite names none: set its `agent`")
    is_place = case.at is None or (case.at >= 1 and case.run_mode == "whatif")
    _require(is_place, f"{where}.at", "must be the number of an event, 1 or more, and is only for whatif")
    variants = list(suite.variants) or [PLAIN]
    for name in case.variants:
        _require(
            name in variants, f"{where}.variants", f"unknown variant {name!r}: the variants are {', '.join(variants)}"
        )
    _check_scores(case.scores, f"{where}.scores")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _check_scores(scores: Sequence[Any], where: str) -> None:
    _require(_is_list(scores), where, "must be a list of scorers such as Exact(...)", scores)
    for number, scorer in enumerate(scores):
        here = f"{where}[{number}]"
        _require(type(scorer) in SCORERS.values(), here, "must be a scorer such as Exact(...)", scorer)
        values = {key: value for key, value in vars(scorer).items() if value is not None}
        if isinstance(scorer, Calls):
            lists = {key: values[key] for key in CALL_LISTS if isinstance(values.get(key), list | tuple)}
            values |= {key: [vars(c) if isinstance(c, Call) else c for c in calls] for key, calls in lists.items()}
        _fits(values, type(scorer), here)
        seconds = values.get("timeout_s", 1)
        _require(0 < seconds < inf, f"{here}.timeout_s", "must be above 0", seconds)
        match scorer:
            case Regex():
                _check_pattern(scorer.pattern, f"{here}.pattern")
            case JsonSchema():
                problems = compiled(scorer.schema).problems
                _require(not problems, f"{here}.schema", "; ".join(problems))
            case Calls():
                for key in CALL_LISTS:
                    _check_calls(getattr(scorer, key) or (), f"{here}.{key}")
            case Function():
                _require(callable(scorer.check), f"{here}.check", "must be a function", scorer.check)
            case Judge():
                _require(scorer.rubric.strip(), f"{here}.rubric", "is empty: describe a good answer")


def _check_calls(calls: Sequence[Any], where: str) -> None:
    outcomes = (None, *get_args(Outcome))
    for number, call in enumerate(map(as_call, calls)):
        for name, pattern in (call.matches or {}).items():
            _check_pattern(pattern, f"{where}[{number}].matches.{name}")
        place = f"{where}[{number}].outcome"
        _require(call.outcome in outcomes, place, f"must be one of {', '.join(outcomes[1:])}", call.outcome)


def _check_pattern(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SuiteError(f"is not a regular expression: {error}", field=where) from None
