"""Interpret an endpoint's error: one reader for every vendor's error body, and whether a retry can help.

Errors are classified as in the official SDKs (408, 409, 429 and 5xx may be temporary; `x-should-retry` overrides this),
with two exceptions: a retry does not help against a 429 about money, nor against a prompt that is too long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import (
    ContextLengthError,
    IncompleteResponseError,
    ProviderError,
    ProviderHTTPError,
    ProviderResponseError,
)
from ..ground.patterns import regex
from ..ground.words import plural, shortened

RETRYABLE_STATUSES = frozenset({408, 409, 429})
MAX_MESSAGE_CHARS = 1000

_MONEY_CODES = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "enforced_spend_limit_reached",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
    }
)
_MONEY = regex(r"exceeded your current quota|credit balance is too low|insufficient (balance|credits|funds)", re.I)
# Google's per-minute limits, reported in the words of a quota: `google.rpc.RetryInfo` and the sentence that repeats it. A
# limit of 0 or per day looks the same, but waiting does not help.
_WAIT = regex(r'"retryDelay"\s*:\s*"([\d.]+)s"|\bplease retry in ([\d.]+)s', re.I)
_USED_UP = regex(r'"quotaId"\s*:\s*"[^"]*PerDay|\blimit: 0\b')
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"})
# How endpoints without a code for it report that the prompt is too long: OpenAI and its copies, vLLM, llama.cpp,
# Anthropic, Gemini, Bedrock ("Input Tokens Exceeded"), Groq, Mistral, xAI, Perplexity, LiteLLM.
_CONTEXT = regex(
    r"maximum context length|context (length|window|size)[^.]{0,40}(exceed|too)|exceed[^.]{0,40}(context|token limit)"
    r"|\b(prompt|input|conversation) (is |was )?too long\b|\binput tokens?\b[^.]{0,60}\bexceed"
    r"|\b(number of|total)( input| prompt)? tokens[^.]{0,60}\bexceed"
    r"|too many tokens in (the )?(prompt|request)"
    r"|reduce the length of the (messages|prompt|input)|too large for model with \d+ maximum context"
    r"|maximum prompt length|longer than the model's context|ContextWindowExceeded|request_too_large",
    re.I,
)
_WITHOUT_VERSION = regex(r"https?://[^/]+/(chat/completions|responses|models)")
_SECRET_HEADERS = regex(r"authorization|key|token|secret|cookie|password", re.I)


def http_error(
    status: int, headers: Mapping[str, str], body: bytes | str, *, endpoint: str = "", secrets: tuple[str, ...] = ()
) -> ProviderHTTPError:
    """The error for an answer with an error status. `secrets` are hidden in its message and body."""
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    text = hide_secrets(text, secrets)
    message, code = read_error_text(text)
    return _judged_error(message or f"HTTP status {status}", code, status, dict(headers), text, endpoint)


def error_in_body(data: Any) -> ProviderHTTPError | None:
    """The error that a body or chunk with status 200 describes; None if it describes none."""
    if isinstance(data, list) and data and isinstance(data[0], Mapping) and data[0].get("error"):
        data = data[0]
    if not isinstance(data, Mapping):
        return None
    marked = data.get("object") == "error" or (data.get("type") == "error" and "choices" not in data)
    if not data.get("error") and not marked:
        return None
    message, code = _read_error(data)
    return _judged_error(message or "unknown error", code, 200, {}, json.dumps(data)[:4000], "")


def unexpected(what: str, body: Any) -> ProviderResponseError:
    """The error for JSON that is not in the protocol's form; `what` names the fault: "answer has no choices"."""
    return ProviderResponseError(f"the endpoint's {what}; it is {json.dumps(body)[:200]}")


def cut_answer(text: str, end: str) -> IncompleteResponseError:
    """The error for an answer that stopped after `text`; `end` names the missing end marker."""
    size = plural(len(text), "character")
    return IncompleteResponseError(f"the answer stopped after {size} without {end}", partial_text=text)


def read_error_text(text: str) -> tuple[str, str | None]:
    """Read the message, and the code or None, of an error body: any vendor's JSON, plain text, or a web page."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        plain = re.sub(r"<(script|style).*?</\1>|<[^>]{0,1000}>", " ", text[:20_000], flags=re.S | re.I)
        return _short(" ".join(plain.split())), None
    message, code = _read_error(data)
    return message or _short(text), code


def hide_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """The text with `[hidden]` in place of each secret of at least four characters."""
    for secret in secrets:
        if len(secret) >= 4:  # hiding a shorter value would mangle ordinary words
            text = text.replace(secret, "[hidden]")
    return text


def hide_secrets_in(error: ProviderError, secrets: tuple[str, ...]) -> None:
    """Remove the secrets from an error that quotes the endpoint."""
    error.args = tuple(hide_secrets(part, secrets) if isinstance(part, str) else part for part in error.args)
    if isinstance(error, ProviderHTTPError):
        error.body = hide_secrets(error.body, secrets)


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values in a request's headers that must never be shown, longest first."""
    values = [value for name, value in headers.items() if _SECRET_HEADERS.search(name)]
    # The bare key in `Bearer KEY` is a secret too; longest first, so that no remainder of a longer secret is left.
    return tuple(
        sorted({part for value in values for part in (value, value.rpartition(" ")[2])}, key=len, reverse=True)
    )


def _read_error(data: Any) -> tuple[str, str | None]:
    if isinstance(data, list):
        data = data[0] if data else {}
    if not isinstance(data, Mapping):
        return _short(str(data)), None
    inner = data.get("error")
    if isinstance(inner, str):
        return _short(inner), _code(data)
    holder = inner if isinstance(inner, Mapping) else data
    message = holder.get("message") or holder.get("detail") or data.get("message") or data.get("detail") or ""
    message = message if isinstance(message, str) else json.dumps(message)
    return _short(message), _code(holder)


def _code(holder: Mapping[str, Any]) -> str | None:
    details = holder.get("details")
    nested = details.get("error_code") if isinstance(details, Mapping) else None
    for value in (nested, holder.get("code"), holder.get("status_code"), holder.get("type")):
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return None


def _judged_error(
    message: str, code: str | None, status: int, headers: dict[str, str], body: str, endpoint: str
) -> ProviderHTTPError:
    kind = code if code and not code.isdigit() else None
    judged_status = int(code) if status == 200 and code and code.isdigit() and 400 <= int(code) < 600 else status
    wait = _WAIT.search(body) if judged_status in (429, 503) else None
    if wait is not None and not _USED_UP.search(body):
        headers = {"retry-after": wait[1] or wait[2], **headers}
        is_quota = False
    else:
        is_quota = bool(_MONEY.search(message))
    about_money = judged_status == 402 or kind in _MONEY_CODES or is_quota
    too_long = kind in _CONTEXT_CODES or (judged_status in (200, 400, 413, 422, 500) and bool(_CONTEXT.search(message)))
    retryable = not about_money and not too_long and _may_pass(judged_status, kind, headers)
    error_class = ContextLengthError if too_long else ProviderHTTPError
    where = endpoint or "the endpoint"
    code_text = f" ({code})" if code and code != str(status) else ""
    verdict = f"with an error{code_text}" if status == 200 else f"{status}{code_text}"
    text = f"{where} answered {verdict}: {message}{_advice(judged_status, about_money, too_long, endpoint)}"
    return error_class(text, status=status, code=code, headers=headers, body=body, retryable=retryable)


def _may_pass(status: int, code: str | None, headers: Mapping[str, str]) -> bool:
    hint = headers.get("x-should-retry")
    if hint in ("true", "false"):
        return hint == "true"
    if status == 200:
        # An error inside an accepted response has no status of its own; these words point to the server, not the request.
        words = ("server", "overload", "rate_limit", "timeout", "unavailable", "slow_down", "api_error", "internal")
        return any(word in (code or "server").lower() for word in words)
    return status in RETRYABLE_STATUSES or status >= 500


def _advice(status: int, about_money: bool, too_long: bool, endpoint: str) -> str:
    if about_money:
        return " (add credit or use another key: repeating the request does not help)"
    if too_long:
        return (
            " (the conversation exceeds the model's context window: use a model with a larger one, or start a new "
            "session)"
        )
    if status == 413:
        return (
            " (the endpoint or its proxy does not accept a request of this size: attach less, or start a new session)"
        )
    if status in (401, 403):
        return " (check the API key and its permissions)"
    if status == 407:
        return " (the proxy requires a user and a password: put them into its URL, http://user:password@host:port)"
    if status in (404, 405) and _WITHOUT_VERSION.fullmatch(endpoint):
        return " (check base_url, which has no path and probably ends in /v1)"
    if status == 404:
        return " (check base_url and the model's name)"
    return ""


def _short(text: str) -> str:
    return shortened(text.strip(), MAX_MESSAGE_CHARS)
