"""A fold of the prompts in a log that have request ids, and of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ...errors import RequestConflictError
from ...events import AssistantMessage, Result, SessionRewound, SystemInit, UserMessage
from ...ground.frozen import frozen
from ...serialization import event_from_dict, event_to_dict

_Counts = SystemInit | AssistantMessage | UserMessage | SessionRewound | Result
# Stop reasons of a run whose last answer a hook or guardrail refused.
REFUSED = ("blocked:stop", "blocked:after_model_call", "blocked:input_guardrail", "blocked:output_guardrail")


@frozen
class KeyedRequest:
    """A prompt or rewind with a request id: its newest `seq`, the digest of a prompt's content (None in older logs), and
    the end of the run that answered it, None until then.
    """

    seq: int
    prompt_sha256: str | None = None
    answer: Result | None = None


class Requests(dict[str, KeyedRequest]):
    """The requests of a log by id.

    `asked` are the ids of the newest prompt (None without one) and of the messages sent while it was being worked on.
    """

    asked: tuple[str | None, ...] = ()
    _is_answered = False

    @classmethod
    def restored(cls, kept: Mapping[str, Any]) -> Requests:
        """Rebuild the requests from the return value of `kept`."""
        requests = cls()
        for name, (seq, digest, answer) in kept["by_id"].items():
            requests[name] = KeyedRequest(seq, digest, cast(Result, event_from_dict(answer)) if answer else None)
        requests.asked = tuple(kept["asked"])
        requests._is_answered = kept["is_answered"]
        return requests

    def kept(self) -> Mapping[str, Any]:
        """Return the requests as JSON values, for `restored`."""
        by_id = {name: (r.seq, r.prompt_sha256, r.answer and event_to_dict(r.answer)) for name, r in self.items()}
        return {"by_id": by_id, "asked": self.asked, "is_answered": self._is_answered}

    def apply(self, event: _Counts, last_text: str) -> None:
        """Apply one more event; `last_text` is the newest answer of its run."""
        was_answered, self._is_answered = self._is_answered, isinstance(event, AssistantMessage)
        if isinstance(event, AssistantMessage | SystemInit):
            return
        if isinstance(event, Result):
            # Older logs do not name the request: it is the one of the newest prompt.
            if event.stop_reason == "end" and event.request_id in (None, *self.asked):
                self._answer(event)
            elif event.stop_reason in REFUSED:
                self.asked = ()  # the model is to answer a prompt, not to continue its own answer
            return
        if isinstance(event, SessionRewound):
            # An undone prompt is no longer asked.
            self.asked = tuple(name for name in self.asked if name is not None and self[name].seq <= event.to_seq)
        elif event.origin == "user":
            if was_answered and self.asked:  # by the previous turn, with a source of prompts
                self._answer(Result(last_text, "", "end", request_id=self.asked[0]))
            self.asked = (event.request_id,)
        elif event.request_id is not None:
            self.asked = (*self.asked, event.request_id)
        if event.request_id is not None:
            digest = event.prompt_sha256 if isinstance(event, UserMessage) else None
            self[event.request_id] = KeyedRequest(event.seq or 0, digest, self.answer_to(event.request_id))

    def _answer(self, end: Result) -> None:
        for name in filter(None, self.asked):
            self[name] = replace(self[name], answer=self[name].answer or end)

    def answer_to(self, request_id: str | None) -> Result | None:
        """The end of the run that answered this prompt, or None until then."""
        request = None if request_id is None else self.get(request_id)
        return None if request is None else request.answer

    def is_due(self, request_id: str | None) -> bool:
        """Whether to store a prompt with this id: it has no answer, and is neither the newest nor sent while that ran."""
        return request_id is None or (request_id not in self.asked and self.answer_to(request_id) is None)

    def check(self, request_id: str, prompt_sha256: str, session_id: str) -> None:
        """Raise `RequestConflictError` for a request id that was used for other content, if the log has its digest."""
        request = self.get(request_id)
        if request is not None and request.prompt_sha256 not in (None, prompt_sha256):
            raise RequestConflictError(request_id, session_id, "with another prompt")
