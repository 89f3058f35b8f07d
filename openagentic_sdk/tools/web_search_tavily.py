"""Search the web with the Tavily service.

Results are untrusted text: only four string fields per hit reach the model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ToolError
from ..ground.loose import as_mapping, as_mappings
from ..kernel.tool import ToolContext
from .labels import ToolLabels
from .schema import array, integer, object_schema, string
from .web.fetch import FetchingTool, FetchRequest, FetchSignal, resolve
from .web_fetch import ask

SEARCH_URL = "https://api.tavily.com/search"
KEY_VARIABLE = "TAVILY_API_KEY"
MAX_ANSWER_BYTES = 4 * 1024 * 1024

SearchTransport = Callable[[str, Mapping[str, str], Mapping[str, Any]], Mapping[str, Any]]

_DOMAINS: Mapping[str, Any] = {"items": {"type": "string"}, "maxItems": 50}


class WebSearchTool(FetchingTool):
    """A tool that searches the web: it returns `{"query", "results": [{"title", "url", "content", "source"}]}`.

    All values are strings; there are at most `max_results` results, or as many as the call's `max_results`.
    `transport(url, headers, payload)` returns the service's answer as a dict. Without `api_key`, the variable
    `TAVILY_API_KEY` is read at each call.
    """

    name = "WebSearch"
    labels = ToolLabels(control=(), sink=True)
    description = "Search the web. Returns titles, addresses and excerpts; use WebFetch to read a whole page."
    input_schema = object_schema(
        {
            "query": string("What to search for.", minLength=1, maxLength=2000),
            "max_results": integer("How many hits at most.", minimum=1, maximum=20),
            "allowed_domains": array("Only these domains.", **_DOMAINS),
            "blocked_domains": array("Not these domains.", **_DOMAINS),
        },
        required=["query"],
    )
    effect = "read"

    def __init__(
        self,
        *,
        transport: SearchTransport | None = None,
        api_key: str | None = None,
        max_results: int = 5,
        timeout_s: float = 30.0,
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._api_key = api_key
        self._max_results = max_results

    def fetch(self, input: Mapping[str, Any], signal: FetchSignal, ctx: ToolContext) -> dict[str, Any]:
        max_results = input.get("max_results", self._max_results)
        payload: dict[str, Any] = {"query": input["query"], "max_results": max_results}
        for ours, theirs in (("allowed_domains", "include_domains"), ("blocked_domains", "exclude_domains")):
            if input.get(ours):
                payload[theirs] = list(input[ours])
        signal.deadline = time.monotonic() + self._timeout_s
        if self._transport is not None:
            answer = self._transport(SEARCH_URL, self._headers(), payload)
        else:
            answer = _post(SEARCH_URL, self._headers(), payload, signal)
        results = as_mapping(answer).get("results")
        if not isinstance(results, list):
            excerpt = repr(answer)[:200]
            raise ToolError(f"the search service responded without a list of results ({excerpt}): try again later")
        return {
            "query": input["query"],
            "results": [
                {
                    "title": _text(result.get("title")),
                    "url": _text(result.get("url")),
                    "content": _text(result.get("content")) or _text(result.get("snippet")),
                    "source": "tavily",
                }
                for result in as_mappings(results)
            ][:max_results],
        }

    def _headers(self) -> dict[str, str]:
        key = self._api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise ToolError(
                f"web search needs a key: set {KEY_VARIABLE} to one from tavily.com, or work without searching"
            )
        return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _post(url: str, headers: Mapping[str, str], payload: Mapping[str, Any], signal: FetchSignal) -> Mapping[str, Any]:
    from ipaddress import ip_address  # only runs that search the web need addresses

    from .web.address import parse_web_url

    service, body = parse_web_url(url), json.dumps(payload).encode("utf-8")
    try:
        addresses = [ip_address(answer) for answer in resolve(service.host)]
    except OSError as error:
        raise ToolError(f"the search service cannot be looked up ({error}): try again later") from error
    response = ask(FetchRequest(service, addresses, headers, MAX_ANSWER_BYTES, body), signal)
    if response.status != 200:
        excerpt = response.body[:200].decode("utf-8", "replace")
        advice = f"check {KEY_VARIABLE}" if response.status in (401, 403) else "try again later"
        raise ToolError(f"the search service responded with status {response.status} ({excerpt}): {advice}")
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise ToolError(
            f"the search service responded with something that is not JSON ({error}): try again later"
        ) from error
    return as_mapping(answer)
