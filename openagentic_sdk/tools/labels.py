"""A tool's declaration about its inputs and results, for the rules on labels (see `parts.labels`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Literal, get_args

from ..errors import OptionsError
from ..ground.checks import shown
from ..ground.frozen import frozen
from ..ground.text import existing

_SourceName = Literal["trusted", "untrusted", "files", "derived"]
Source = _SourceName | Callable[[Mapping[str, Any], Any], str | None]


@frozen
class ToolLabels:
    """A tool's labels: the origin of its results, who may learn them, and which arguments determine a call's target.

    source          "trusted" for results that only the user or their own systems write, "untrusted" for all others, "files"
                    for results as trusted as the files that the call names, "derived" for results made from what the session
                    has read so far, or a plain function of input and output that returns the source in a few words, None for
                    a trusted one; if it fails or returns anything else, the result is untrusted
    trusted_fields  fields of an untrusted structured result that are trusted: dotted names, `*` for every item of a list
    secret          who may learn the result: anyone the user chooses (False), only the user (True), or the named readers, as
                    they appear in control arguments (an address, a channel)
    control         names of the arguments that determine the target of the call: a recipient, an amount, a URL, a path, a
                    command; None means all arguments. An argument that the tool's schema does not name also counts
    sink            whether something leaves the machine; None means true for each tool whose effect is not `read`
    described_by    who wrote the tool's name, description and schema, if not the author of the program: once the model
                    receives the tool, the session has read untrusted text

    Raises `OptionsError` for any other value.
    """

    source: Source = "untrusted"
    trusted_fields: Sequence[str] = ()
    secret: bool | Sequence[str] = False
    control: Sequence[str] | None = None
    sink: bool | None = None
    described_by: str | None = None

    def __post_init__(self) -> None:
        if callable(self.source):
            if iscoroutinefunction(self.source):
                raise _refused("source", self.source, "a function that is not async")
        elif self.source not in get_args(_SourceName):
            raise _refused("source", self.source, f"one of {', '.join(get_args(_SourceName))}, or a function")
        names = [("trusted_fields", self.trusted_fields), ("control", () if self.control is None else self.control)]
        names += [("secret", () if isinstance(self.secret, bool) else self.secret)]
        for field, value in names:
            is_list = isinstance(value, list | tuple | set | frozenset)
            if not is_list or not all(isinstance(name, str) and name.strip() for name in value):
                raise _refused(field, value, "a list of names" if field != "secret" else "a bool or a list of readers")
        if not isinstance(self.secret, bool) and not self.secret:
            raise _refused("secret", self.secret, "a bool or a list of readers")
        if not isinstance(self.sink, bool | None):
            raise _refused("sink", self.sink, "True, False or None")
        if not isinstance(self.described_by, str | None):
            raise _refused("described_by", self.described_by, "a string or None")

    def check_arguments(self, tool: str, names: Sequence[str]) -> None:
        """Raise `OptionsError` for a control argument that is not among the tool's arguments."""
        for name in self.control or ():
            if name not in names:
                raise OptionsError(
                    f"the label control of tool {tool} names {name!r}, which is not one of its arguments: "
                    f"{existing('arguments', names)}"
                )


def _refused(field: str, value: object, requirement: str) -> OptionsError:
    return OptionsError(f"labels: {field} must be {requirement}, not {shown(value)}")


# A tool that acts on the session itself.
OWN_SESSION = ToolLabels("derived", control=(), sink=False)
# A file tool: its changes are subject to confinement, permissions and undo, and no path in it leaves the machine.
LOCAL_FILES = ToolLabels("files", control=(), sink=False)
