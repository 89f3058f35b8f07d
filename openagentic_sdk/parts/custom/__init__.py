"""User-defined parts: code that accompanies a run from start to end, with a state stored in the log.

A hook is called at one point and keeps no state; a part has a state, which is in the log before the run continues, and may
append messages for the model. A part receives copies, and returns only texts and its state: it can neither change an event,
nor run a tool, nor read text that is masked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from threading import TIMEOUT_MAX
from types import CodeType, FunctionType
from typing import Any, ClassVar, Literal, cast, get_args

from ...errors import OptionsError
from ...events import StopReason
from ...ground.checks import number, shown
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...kernel.part import Part, kind_of
from ...sessions.folds.view import Fold

# Limits on a part's state, as JSON, and on its text for the model: both are stored whole in the log at each change.
MAX_STATE_BYTES = 64 * 1024
MAX_BLOCK_BYTES = 64 * 1024
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_SECONDS, _VERSION = number(0, most=TIMEOUT_MAX), number(1, whole=True)


@frozen
class PartPlace:
    """The run that a part belongs to. `agent_name` is the subagent's name, None in the caller's run."""

    session_id: str
    cwd: str
    project_dir: str
    agent_name: str | None = None


@frozen
class SeenPrompt:
    """A prompt as stored in the log. `origin` is `user`, or `steering` for a message to the running turn."""

    text: str
    origin: str = "user"


@frozen
class SeenResult:
    """A call and its result as stored in the log. `output` is what the model reads, truncated if long."""

    tool_use_id: str
    tool: str
    input: Mapping[str, Any]
    output: Any
    outcome: str
    error_message: str | None = None


@frozen
class SeenAnswer:
    """The model's text as stored in the log: a final answer, or text accompanying calls.

    Each of those calls is also passed on as a `SeenResult`. `is_cut` is true if the answer was truncated.
    """

    text: str
    is_cut: bool = False


@frozen
class SeenCost:
    """The usage and cost of one request to the model; requests for summaries count too, as do cut-off answers with a usage.

    `usage` has `input_tokens`, `cached_input_tokens`, `cache_write_tokens`, `output_tokens` and `reasoning_tokens`; it is
    None if the endpoint did not report it. `cost_usd` is None without a known price.
    """

    model: str | None
    usage: Mapping[str, int] | None = None
    cost_usd: float | None = None


EndReason = Literal["end", "budget", "interrupted"]


class EndRun(Exception):
    """An exception by which a seam ends the run in an orderly way, with this text and `stop_reason`; in `end`, it is only a
    notice.
    """

    def __init__(self, text: str, stop_reason: EndReason = "interrupted") -> None:
        super().__init__(text)
        if stop_reason not in get_args(EndReason):
            raise OptionsError(
                f"EndRun: stop_reason must be one of {', '.join(get_args(EndReason))}, not {stop_reason!r}"
            )
        self.stop_reason: StopReason = stop_reason


class CustomPart:
    """The base class of user-defined parts. Each run and each subagent creates one of each class in the options' `parts`.

    Every method is a seam that a part may override, async (except `state`) or synchronous; synchronous code runs in a
    thread. `EndRun` ends the run in an orderly way. A seam that raises any other exception, or exceeds `timeout_s`, ends the
    run with a `PartError`; in `end` this is a notice instead. The seams of one part are called one at a time.

    `name` is the part's name in the log, `version` that of its state: increment the version if the structure of `state`
    changes.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    timeout_s: ClassVar[float] = 60.0

    def state(self) -> Any:
        """Return the state as a JSON value of at most 64 KiB, or None if there is no state yet. Synchronous only.

        The state is requested after the other seams. A changed state is in the log, masked, before the run continues.
        """
        return None

    def restore(self, state: Any, version: int) -> Awaitable[None] | None:
        """Continue from a state in the log, before `begin`. `version` is the version of the part that stored it.

        The part may ignore an incompatible state, and start from scratch.
        """
        return None

    def begin(self, place: PartPlace) -> Awaitable[None] | None:
        """Called when a run begins, on a new session or a resumed one."""
        return None

    def see_prompt(self, prompt: SeenPrompt) -> Awaitable[None] | None:
        """Called with a prompt that was stored."""
        return None

    def see_answer(self, answer: SeenAnswer) -> Awaitable[None] | None:
        """Called with the model's text once it was stored."""
        return None

    def see_cost(self, cost: SeenCost) -> Awaitable[None] | None:
        """Called with the usage and cost of a request once its answer was stored, before `see_answer`."""
        return None

    def see_result(self, result: SeenResult) -> Awaitable[None] | None:
        """Called with a result that was stored.

        Prompts, costs, answers and results arrive in log order, before the next step or the end of the run. If the part has
        a state, events that the process did not deliver before it died are delivered when the session is resumed, so that
        each is counted in the state exactly once.
        """
        return None

    def before_step(self) -> Awaitable[None] | None:
        """Called before the model is asked."""
        return None

    def block(self) -> Awaitable[str | None] | str | None:
        """Return a text of at most 64 KiB that the model must have read by now, or None. Requested before each step.

        A new or changed text is appended as a message, so that the earlier request prefix is unchanged.
        """
        return None

    def may_end(self, answer: str) -> Awaitable[str | None] | str | None:
        """Decide whether the run may end with this answer: None accepts it, a string sends the model back to work."""
        return None

    def end(self, stop_reason: StopReason) -> Awaitable[None] | None:
        """Called when the run ends. The resulting state is still stored in the session."""
        return None


class PackagePart(Part):
    """A part of this package that is enabled by options, for an optional feature: it accesses the kernel directly.

    `folds` are the additional folds that its runs need.
    """

    folds: ClassVar[tuple[type[Fold], ...]] = ()


def folds_of(openers: Iterable[Any]) -> tuple[type[Fold], ...]:
    """The folds that this package's parts among `openers` need. `check_parts` must have accepted the openers."""
    kinds = [cast("type[PackagePart]", kind_of(opener)) for opener in openers if is_of_package(opener)]
    return tuple(dict.fromkeys(fold for kind in kinds for fold in kind.folds))


# Creates a part: its class, or a `functools.partial` of it with its settings.
CustomPartOpener = Callable[[], CustomPart]


def is_of_package(opener: Any) -> bool:
    """Whether an opener that `check_parts` accepted creates a part of this package."""
    return issubclass(cast(type, kind_of(opener)), PackagePart)


def class_of(opener: Any) -> type[CustomPart]:
    """The class of the part that an opener creates. `check_parts` must have accepted it."""
    return cast("type[CustomPart]", kind_of(opener))


def check_parts(openers: Any) -> None:
    """Raise `OptionsError` unless these create user-defined parts with valid, unique names, or parts of this package."""
    if not isinstance(openers, Collection) or isinstance(openers, str | bytes | Mapping):
        raise OptionsError(f"parts must be a list of subclasses of CustomPart, not {shown(openers)}")
    names: set[str] = set()
    for at, opener in enumerate(openers):
        where, kind = f"parts[{at}]", kind_of(opener)
        if isinstance(kind, CustomPart):
            raise OptionsError(
                f"{where} is a {type(kind).__name__} instance: list the class, or functools.partial of it, since each "
                "run creates its own"
            )
        if isinstance(kind, type) and issubclass(kind, PackagePart):
            continue
        if not isinstance(kind, type) or not issubclass(kind, CustomPart):
            raise OptionsError(
                f"{where} must be a subclass of CustomPart, or functools.partial of one, not {shown(opener)}"
            )
        name = kind.name
        if not isinstance(name, str) or not _NAME.match(name):
            raise OptionsError(
                f"in {where}, the name of {kind.__name__} is {shown(name)}: use 1 to 64 letters, digits, _, - and ."
            )
        _check_seams(kind, where)
        if name in names:
            raise OptionsError(f"two parts are named {name!r}: give {kind.__name__} ({where}) another name")
        names.add(name)
        for setting, check in (("version", _VERSION), ("timeout_s", _SECONDS)):
            requirement = check(getattr(kind, setting))
            if requirement is not None:
                raise OptionsError(
                    f"{where}: {setting} of {name!r} must be {requirement}, not {shown(getattr(kind, setting))}"
                )


_SEAMS = frozenset(name for name in vars(CustomPart) if not name.startswith("_"))


def _check_seams(kind: type[CustomPart], where: str) -> None:
    """Raise `OptionsError` for a public name that is one slip away from a seam, and that the part itself never uses."""
    own = [vars(base) for base in kind.__mro__ if base not in CustomPart.__mro__]
    used_names = {name for members in own for member in members.values() for name in _names_in(member)}
    for name in sorted({name for members in own for name in members} - _SEAMS - used_names):
        # `send` and `lock` are not misspellings of `end` and `block`: the first letter is rarely mistyped.
        near = [seam for seam in sorted(_SEAMS) if seam[0] == name[0] and _is_one_slip(_letters(name), _letters(seam))]
        if near:
            raise OptionsError(
                f"{where}: {kind.__name__}.{name} is not a seam of CustomPart, and no method of the part uses it; did you "
                f"mean {' or '.join(near)}? A name of your own that is this similar must begin with _"
            )


def _names_in(member: object) -> Iterator[str]:
    """Yield the names that a method uses, including those used in functions inside it."""
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    codes = [function.__code__] if isinstance(function, FunctionType) else []
    for code in codes:
        yield from code.co_names
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]


def _letters(name: str) -> str:
    return name.replace("_", "").casefold()


def _is_one_slip(name: str, seam: str) -> bool:
    """Whether two names are equal, or differ by one letter or by two swapped neighbours."""
    same = next((at for at, (a, b) in enumerate(zip(name, seam, strict=False)) if a != b), min(len(name), len(seam)))
    a, b = name[same:], seam[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[2:] == b[2:] and a[:2] == b[1::-1])
