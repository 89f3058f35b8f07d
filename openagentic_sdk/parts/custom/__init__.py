"""A part of one's own: code that stays with a run from its begin to its end, with a state that the log keeps.

A hook is called at one point and forgets; a part has a state, which is in the log before the run goes on, and may tell the
model something behind what it has read already. It is given copies and returns texts: nothing in its hands can change an
event, run a tool or read what was masked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from threading import TIMEOUT_MAX
from typing import Any, ClassVar, Literal, cast

from ...errors import OptionsError
from ...events import StopReason
from ...ground.checks import number, shown
from ...ground.frozen import frozen
from ...ground.patterns import regex
from ...kernel.part import Part, kind_of
from ...sessions.folds.view import Fold

# The state of a part, as JSON, and what it tells the model. Both stand whole in the log each time they change.
MAX_STATE_BYTES = 64 * 1024
MAX_BLOCK_BYTES = 64 * 1024
_NAME = regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_SECONDS, _VERSION = number(0, most=TIMEOUT_MAX), number(1, whole=True)


@frozen
class PartPlace:
    """Where a part is at work. `agent_name` is that of a subagent, None in the run that the caller started."""

    session_id: str
    cwd: str
    project_dir: str
    agent_name: str | None = None


@frozen
class SeenPrompt:
    """A prompt as the log holds it. `origin` is `user`, or `steering` for a message to the running turn."""

    text: str
    origin: str = "user"


@frozen
class SeenResult:
    """A call's result as the log holds it, and the call. `output` is what the model reads; a long one is cut."""

    tool_use_id: str
    tool: str
    input: Mapping[str, Any]
    output: Any
    outcome: str
    error_message: str | None = None


@frozen
class SeenAnswer:
    """What the model wrote, as the log holds it: a final answer, or words beside calls, each of which comes as a
    `SeenResult` too. `is_cut` when the answer ended before its time."""

    text: str
    is_cut: bool = False


class EndRun(Exception):
    """Raised by a seam to end the run in order, with this text and `stop_reason`; at `end` it is too late for that."""

    def __init__(self, text: str, stop_reason: Literal["end", "budget", "interrupted"] = "interrupted") -> None:
        super().__init__(text)
        self.stop_reason: StopReason = stop_reason


class CustomPart:
    """The base of one's own parts. A run makes one of each class in `OpenAgenticOptions.parts`; so does each subagent.

    Every method is a seam, which a part overrides or leaves alone, async or as plain code; plain code runs in a thread.
    `EndRun` ends the run in order. A seam that raises anything else, or takes longer than `timeout_s`, ends the run with a
    `PartError`; at `end` it is a notice. The seams of one part are called one at a time.

    `name` is the part's name in the log, `version` that of its state: raise it when `state` returns something of another
    shape.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    timeout_s: ClassVar[float] = 60.0

    def state(self) -> Any:
        """The state as a JSON value, None for none yet. Plain code only.

        It is asked for behind the other seams. Where it has changed, it is in the log, masked, before the run goes on.
        """
        return None

    def restore(self, state: Any, version: int) -> Awaitable[None] | None:
        """Go on from a state that the log holds, before `begin`. `version` says which version of the part kept it.

        What is not understood may be left: then the part begins anew.
        """
        return None

    def begin(self, place: PartPlace) -> Awaitable[None] | None:
        """A run begins, on a new session or on one that is resumed."""
        return None

    def see_prompt(self, prompt: SeenPrompt) -> Awaitable[None] | None:
        """Look at a prompt that was stored."""
        return None

    def see_answer(self, answer: SeenAnswer) -> Awaitable[None] | None:
        """Look at what the model wrote, once it was stored."""
        return None

    def see_result(self, result: SeenResult) -> Awaitable[None] | None:
        """Look at a result that was stored.

        Prompts, answers and results come in the order of the log, before the next step or the end of the run. What the
        process did not get to before it died comes when the session is resumed: with a state, each is taken into account
        once.
        """
        return None

    def before_step(self) -> Awaitable[None] | None:
        """The model is about to be asked."""
        return None

    def block(self) -> Awaitable[str | None] | str | None:
        """What the model must have read by now, None for nothing. Asked before each step.

        It is appended as a message when it is new or has changed, so all that was sent before stays as it was.
        """
        return None

    def may_end(self, answer: str) -> Awaitable[str | None] | str | None:
        """Whether the run may end with this answer: None lets it, a text sends the model back to work with it."""
        return None

    def end(self, stop_reason: StopReason) -> Awaitable[None] | None:
        """The run ends. The session still takes the state that this leaves."""
        return None


class PackagePart(Part):
    """A part of this package that options bring, for a feature that is no option: it meets the kernel itself.

    `folds` are what its runs fold from the log besides what all runs do.
    """

    folds: ClassVar[tuple[type[Fold], ...]] = ()


def folds_of(openers: Iterable[Any]) -> tuple[type[Fold], ...]:
    """The folds of the parts of this package among these, which `check_parts` has let pass."""
    kinds = [cast("type[PackagePart]", kind_of(opener)) for opener in openers if is_of_package(opener)]
    return tuple(dict.fromkeys(fold for kind in kinds for fold in kind.folds))


# Makes a part: its class, or a `functools.partial` of it with its settings.
CustomPartOpener = Callable[[], CustomPart]


def is_of_package(opener: Any) -> bool:
    """Whether an opener, which `check_parts` has let pass, opens a part of this package."""
    return issubclass(cast(type, kind_of(opener)), PackagePart)


def class_of(opener: Any) -> type[CustomPart]:
    """The class that an opener makes a part of, which `check_parts` has let pass."""
    return cast("type[CustomPart]", kind_of(opener))


def check_parts(openers: Any) -> None:
    """Raise `OptionsError` for what lists no parts of one's own, and for names that are odd or come twice."""
    if not isinstance(openers, Collection) or isinstance(openers, str | bytes | Mapping):
        raise OptionsError(f"parts must be a list of classes made from CustomPart, not {shown(openers)}")
    known: set[str] = set()
    for at, opener in enumerate(openers):
        where, kind = f"parts[{at}]", kind_of(opener)
        if isinstance(kind, CustomPart):
            raise OptionsError(
                f"{where} is a {type(kind).__name__} made already: list the class, or functools.partial of it, since each "
                "run makes its own"
            )
        if isinstance(kind, type) and issubclass(kind, PackagePart):
            continue
        if not isinstance(kind, type) or not issubclass(kind, CustomPart):
            raise OptionsError(
                f"{where} must be a class made from CustomPart, or functools.partial of one, not {shown(opener)}"
            )
        name = kind.name
        if not isinstance(name, str) or not _NAME.match(name):
            raise OptionsError(
                f"{where}: the name of {kind.__name__} is {shown(name)}: 1 to 64 letters, digits, _, - and . make one"
            )
        if name in known:
            raise OptionsError(f"{where}: there are two parts {name!r}: give {kind.__name__} another name")
        known.add(name)
        for setting, check in (("version", _VERSION), ("timeout_s", _SECONDS)):
            wanted = check(getattr(kind, setting))
            if wanted is not None:
                raise OptionsError(
                    f"{where}: {setting} of {name!r} must be {wanted}, not {shown(getattr(kind, setting))}"
                )
