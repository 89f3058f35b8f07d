"""Ask a person at the terminal: show the effect of a call, read one answer.

`y` and `yes` allow. `always` allows and keeps the offered rules, `always save` also saves them in settings, `no because
...` gives the model a reason, `edit ...` runs something else instead. An invalid answer repeats the question at most twice,
then the call is denied; an empty line and end of input deny at once.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable

from ..events import UserAnswer, UserQuestion
from ..ground.system import user_name
from ..ground.text import visible, visible_lines
from ..ground.threads import run_in_thread
from ..sessions.answers import answers_of, read_answer
from .display import coloured

# How often a person at a terminal is asked, and the answer if no valid one was typed.
TRIES = 3
UNANSWERED = {"permission": "no", "question": ""}
LONG_LINES, LONG_CHARS = 15, 1_200
_one_at_a_time = threading.Lock()


class InteractiveApprover:
    """A channel to the person at the terminal, who is asked one question at a time.

    `input_fn` shows a prompt and returns a line, like `input`; it runs in a thread, so that the run continues meanwhile.
    With `colour` None, colours are used only if standard output is a terminal.
    """

    def __init__(self, input_fn: Callable[[str], str] = input, *, colour: bool | None = None) -> None:
        self.input_fn = input_fn
        self.colour = colour

    async def answer(self, question: UserQuestion) -> str:
        """Ask the question; return the answer, empty if the person entered nothing. After `TRIES` invalid lines, return the
        one in `UNANSWERED`.
        """
        answer = await run_in_thread(functools.partial(self._read, question), name="openagentic-question", moment_s=0)
        return answer if isinstance(answer, str) else ""

    def _read(self, question: UserQuestion) -> str:
        text = question_text(question, colour=sys.stdout.isatty() if self.colour is None else self.colour)
        with _one_at_a_time:
            for _ in range(TRIES):
                try:
                    reply = str(self.input_fn(text)).strip()
                except EOFError:
                    return ""
                if not reply:
                    return ""
                answer = read_answer(question, reply)
                if answer is not None:
                    return answer
                text = f"{unclear(question, reply)}: "
        return UNANSWERED[question.kind]


def unclear(question: UserQuestion, reply: str) -> str:
    """The message after an invalid answer."""
    return visible(f"{reply!r:.80} is not an answer; the answers are {', '.join(answers_of(question))}")


def typed_here(question: UserQuestion, answer: str) -> UserAnswer:
    """Attribute an answer typed at the terminal of this process to the user reported by the system."""
    return UserAnswer(question.question_id, answer, approver={"name": user_name(), "how": "operating system"})


def question_text(question: UserQuestion, *, colour: bool = False) -> str:
    """A question as shown on a terminal: the effect, the reason, the rules that `always` would keep, the choices."""
    details = question.details
    lines = visible_lines(question.prompt)
    preview = details.get("preview")
    if isinstance(preview, (list, tuple)):
        # Our own questions are already sanitized; one from elsewhere may not be.
        preview_lines = [visible(str(line)) for line in preview]
        lines += coloured(preview_lines) if colour else preview_lines
    size = sum(len(line) + 1 for line in lines)
    if len(lines) > LONG_LINES or size > LONG_CHARS:
        # Placed next to the prompt, because the important part may have scrolled off the screen.
        lines.append(f"(this request has {len(lines):,} lines and {size:,} characters: review all of it)")
    if details.get("reason"):
        lines.append(f"asked because {visible(str(details['reason']))}")
    offers = details.get("offers")
    if isinstance(offers, (list, tuple)) and offers:
        lines.append("always: " + "  ".join(visible(str(offer)) for offer in offers))
    if "always save" in question.choices:
        lines.append("always save: the same, and store it in the project's settings for later sessions")
    choices = "/".join(visible(str(choice)) for choice in question.choices)
    return "\n".join([*lines, f"[{choices}] " if choices else "> "])
