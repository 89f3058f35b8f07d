"""Mask secrets in text before it is stored: values that we know, in the forms they travel in, and tokens by their shape.

A mask says what stood there (`[masked: OPENAI_API_KEY]`). What a program has changed on purpose (split, reversed,
encrypted) cannot be seen; this keeps secrets out of logs by accident, it does not stop a thief.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from ..ground.patterns import regex
from ..tools.shell.environment import PASSWORD_IN_URL, is_secret_name

MIN_SECRET_CHARS = 8

# Tokens by their shape: a name, a text that must be there (looked for first, it is quick), and the expression. A group of
# the expression, where it has one, is what is masked. Each takes time in proportion to the text, whatever is in it: where a
# beginning may stand in every letter of what follows it, the next beginning ends it.
_SHAPES: tuple[tuple[str, str, str], ...] = (
    (
        "private key",
        "PRIVATE KEY-----",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    ),
    ("Anthropic key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{16,}"),
    ("OpenAI key", "sk-", r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    *(("GitHub token", f"gh{kind}_", rf"\bgh{kind}_[A-Za-z0-9]{{30,}}") for kind in "pousr"),
    ("GitHub token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    ("GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("AWS key id", "AKIA", r"\bAKIA[A-Z0-9]{16}\b"),
    ("AWS key id", "ASIA", r"\bASIA[A-Z0-9]{16}\b"),
    ("AWS secret", "aws", r"(?i)aws_?secret_?access_?key[\"']?\s*[:=]\s*[\"']?([A-Za-z0-9/+=]{40})\b"),
    ("Google key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
    ("Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("Slack webhook", "hooks.slack.com", r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})"),
    ("Stripe key", "k_live_", r"\b[rs]k_live_[A-Za-z0-9]{16,}"),
    ("Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    ("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI token", "pypi-", r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("Tavily key", "tvly-", r"\btvly-[A-Za-z0-9_-]{16,}"),
    ("SendGrid key", "SG.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("JSON web token", "eyJ", r"\beyJ(?:(?!-eyJ)[A-Za-z0-9_-]){8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("bearer token", "earer ", r"\b[Bb]earer ([A-Za-z0-9._~+/=-]{16,})"),
    ("password in an address", "://", r"://[^\s/:@]*:([^\s/@]{3,})@"),
)
_PATTERNS = tuple((name, hint, regex(text)) for name, hint, text in _SHAPES)


class Redactor:
    """Masks secrets in text. Callable, so that it fits the option `redact`.

    `secrets` maps the name that a mask shows to the value; values of fewer than 8 characters are left alone, they would
    mask innocent text. `shapes` switches the tokens that are known by their form. `counts` says what was masked how often.
    """

    def __init__(self, secrets: Mapping[str, str] | None = None, *, shapes: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        forms = {form: name for name, value in (secrets or {}).items() for form in _forms(value)}
        # The longest first: a secret may be a part of another.
        self._forms = sorted(forms.items(), key=lambda pair: -len(pair[0]))
        self._shapes = _PATTERNS if shapes else ()
        # Two that know the same mask the same.
        self.known = (*[form for form, _ in self._forms], *[hint for _, hint, _ in self._shapes])

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], more: Mapping[str, str] | None = None, *, shapes: bool = True
    ) -> Redactor:
        """A redactor that knows the values of all variables whose names or values look secret, and `more`."""
        return cls({**secrets_of(environment), **(more or {})}, shapes=shapes)

    def __call__(self, text: str) -> str:
        """The text with every secret replaced by a mask that names it."""
        # Most texts are short or hold no part of anything that is looked for.
        if len(text) < MIN_SECRET_CHARS or not any(map(text.__contains__, self.known)):
            return text
        for form, name in self._forms:
            if form in text:
                self.counts[name] += text.count(form)
                text = text.replace(form, _mask(name))
        for name, hint, pattern in self._shapes:
            if hint in text:
                text = self._without_shape(text, name, pattern)
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where in a text something is masked."""
        found = []
        for form, _ in self._forms:
            at = text.find(form)
            while at >= 0:
                found.append((at, at + len(form)))
                at = text.find(form, at + 1)
        for _, hint, pattern in self._shapes:
            if hint in text:
                found += [match.span(pattern.groups) for match in pattern.finditer(text)]
        return found

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it masked; keys stay as they are."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(inner) for inner in value]
        return value

    def _without_shape(self, text: str, name: str, pattern: re.Pattern[str]) -> str:
        def masked(match: re.Match[str]) -> str:
            secret = match[pattern.groups] if pattern.groups else match[0]
            if secret.startswith("[masked"):
                return match[0]
            self.counts[name] += 1
            return match[0].replace(secret, _mask(name))

        return pattern.sub(masked, text)


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold secrets: by their names, and passwords inside addresses."""
    found: dict[str, str] = {}
    for name, value in environment.items():
        password = PASSWORD_IN_URL.search(value) if "@" in value else None
        if password:
            found[name] = password[1]
        elif is_secret_name(name) and not value.startswith("/") and not value.isdigit():  # no path, no limit of tokens
            found[name] = value
    return found


def _mask(name: str) -> str:
    return f"[masked: {name}]"


def _forms(value: str) -> Iterator[str]:
    """The spellings in which a secret travels: as it is, in JSON, in an address, in base64 at any offset, in hex."""
    if len(value.strip()) < MIN_SECRET_CHARS:
        return
    yield value
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield quote_plus(value)
    data = value.encode("utf-8", "surrogatepass")
    yield data.hex()
    for offset in range(3):
        # The letters at both ends also depend on the neighbours; those in between do not.
        first = (0, 2, 3)[offset]
        last = (offset + len(data)) // 3 * 4
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * offset + data)[first:last].decode("ascii")
