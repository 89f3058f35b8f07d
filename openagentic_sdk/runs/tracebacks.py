"""Read a traceback in Python's format: where the error was raised, and which error caused it or is inside its group."""

from __future__ import annotations

from collections.abc import Iterator

from ..ground.frozen import frozen
from ..ground.patterns import regex

_FRAME = regex(r'  File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?(?:\n    ([^\n]*))?')
_LIBRARY = regex(r"/lib/python3|/site-packages/|^<frozen ")
_HEADER, _GROUP = "Traceback (most recent call last):", "Exception Group "
# The prefix of each line of a group.
_MARGIN = regex(r"(?m)^ *[|+] ")


@frozen
class RaisedError:
    """An error of a traceback: its type and message on one line, and its place in the code; each is empty if unknown."""

    words: str
    place: str
    is_group: bool = False


def read_traceback(trace: str) -> tuple[str, ...]:
    """The lines that describe an error: its place, then the error that caused it; for a group, its first error and place.

    The place is the deepest frame outside of libraries, otherwise the deepest. Empty if the traceback names none.
    """
    errors = list(_errors(trace))
    groups = [at for at, error in enumerate(errors) if error.is_group]
    if groups:
        inside = next((error for error in errors[groups[0] + 1 :] if not error.is_group), errors[groups[0]])
        words = () if inside.is_group or not inside.words else (f"the first error inside: {inside.words}",)
        return (*words, *([f"at {inside.place}"] if inside.place else []))
    if not errors:
        return ()
    last, root = errors[-1], errors[0]
    lines = (f"at {last.place}",) if last.place else ()
    if root is last or not root.place or root.place == last.place:
        return lines
    return (*lines, f"caused by {root.words or 'an error'}, at {root.place}")


def _errors(trace: str) -> Iterator[RaisedError]:
    """Yield the errors of a traceback in the order in which Python prints them: a cause comes before its consequence."""
    if _GROUP + _HEADER in trace:
        trace = _MARGIN.sub("", trace)
    before, *blocks = trace.split(_HEADER)
    for block in blocks:
        frames = [frame.groups() for frame in _FRAME.finditer(block)]
        own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
        places = (
            f"{path}:{line}{f' in {name}' if name else ''}{f': {code.strip()}' if code else ''}"
            for path, line, name, code in (own or frames)[-1:]
        )
        words = next((line for line in block.split("\n")[1:] if line[:1].strip()), "")
        yield RaisedError(words, next(places, ""), before.endswith(_GROUP))
        before = block
