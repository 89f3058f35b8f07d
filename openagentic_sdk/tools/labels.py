"""What a tool declares about the data it gives and takes, for the rules on labels (see `parts.labels`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ..ground.frozen import frozen

Source = Literal["trusted", "untrusted", "files", "derived"] | Callable[[Mapping[str, Any], Any], str | None]


@frozen
class ToolLabels:
    """Where results come from, who may learn them, and which arguments decide where to and on what a call acts.

    source          "trusted" for results that only the user or their own systems write, "untrusted" for all others, "files"
                    for what is trusted where the files that the call names are, "derived" for what is made of what the
                    session has read so far, or a function of input and output that returns the source in a few words,
                    None for a trusted one
    trusted_fields  fields of an untrusted structured result that are trusted: dotted names, `*` for every item of a list
    secret          who may learn the result: False is anyone whom the user tells, True only the user; names are those
                    of readers, as they stand in control arguments (an address, a channel)
    control         names of the arguments that decide where to or on what the call acts: a recipient, an amount, a URL, a
                    path, a command; None is all of them
    sink            whether something leaves the machine; None is true of each tool whose effect is not `read`
    """

    source: Source = "untrusted"
    trusted_fields: Sequence[str] = ()
    secret: bool | Sequence[str] = False
    control: Sequence[str] | None = None
    sink: bool | None = None


# A tool that acts on the session itself.
OWN_SESSION = ToolLabels("derived", control=(), sink=False)
# A file tool: confinement, the permission gate and undo hold what it changes, and no path of it leaves the machine.
LOCAL_FILES = ToolLabels("files", control=(), sink=False)
