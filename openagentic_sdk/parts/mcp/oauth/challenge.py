"""Parse a `WWW-Authenticate` header (RFC 9110, section 11.6.1), which explains why a server refused a client."""

from __future__ import annotations

from ....ground.frozen import frozen
from ....ground.patterns import regex

MAX_HEADER_CHARS = 8192

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = regex(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))[ \t]*(?=,|$)')
_SCHEME = regex(rf"({_TOKEN})(?=[ \t,]|$)")
_ESCAPED = regex(r"\\(.)")


@frozen
class Challenge:
    """The Bearer challenge of a header (RFC 6750, section 3, and RFC 9728, section 5.1). A missing parameter is None."""

    resource_metadata: str | None = None
    scope: str | None = None
    error: str | None = None

    @property
    def wants_more_scope(self) -> bool:
        """Whether the token was accepted but its scope is insufficient."""
        return self.error == "insufficient_scope"


def read_challenge(header: str | None) -> Challenge:
    """Parse the first Bearer challenge of a header, whose value may be several headers joined with commas.

    Without a Bearer challenge, all parameters are None. Invalid parts are skipped up to the next comma; of duplicates, the
    first applies.
    """
    text, at = (header or "")[:MAX_HEADER_CHARS], 0
    parameters: dict[str, str] | None = None
    is_bearer = False
    while at < len(text):
        if text[at] in " \t,":
            at += 1
        elif parameter := _PARAMETER.match(text, at):
            name, quoted, plain = parameter.groups()
            if is_bearer and parameters is not None:
                parameters.setdefault(name.lower(), plain if quoted is None else _ESCAPED.sub(r"\1", quoted))
            at = parameter.end()
        elif scheme := _SCHEME.match(text, at):
            if parameters is not None:
                is_bearer = False  # the first challenge has ended
            elif scheme[1].lower() == "bearer":
                parameters, is_bearer = {}, True
            at = scheme.end()
        else:
            comma = text.find(",", at)
            at = len(text) if comma < 0 else comma
    parameters = parameters or {}
    return Challenge(parameters.get("resource_metadata"), parameters.get("scope"), parameters.get("error"))
