"""`openagentic-sdk workflow ...`: check, run, show, answer, retry and end workflows."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...agents import import_name
from ...assemble import trust_store
from ...errors import OptionsError, RequestConflictError, SessionLockedError, SessionNotFoundError
from ...events import AUTHORIZING, Event, Result, UserMessage
from ...flows import Workflow
from ...ground.frozen import values_of
from ...ground.system import working_dir
from ...ground.text import on_one_line, printable
from ...ground.words import look_alikes, plural
from ...kernel.prompt import Said, prompt_sha256
from ...options import OpenAgenticOptions
from ...parts.masking import environment_redactor, mask_value
from ...parts.project.claude import find_project_root
from ...parts.workflows.fold import StepsFold
from ...parts.workflows.inbox import CANCEL, check_sent_name, deliver, inbox_of
from ...parts.workflows.lint import check_paths
from ...parts.workflows.progress import StepProgress, WorkflowProgress, retry_step
from ...runs.background import answer_questions, cancel_session
from ...runs.turns import Turns
from ...serialization import dumps_json, loads_json
from ...sessions.authority import Authority
from ...sessions.base import SessionStore
from ...sessions.core import new_session_id
from ...sessions.folds.summary import calendar_time
from ...sessions.resume import load_view
from ...sessions.seal import KEY_FILE_NAME, Seal
from ..actions import ActionList, add_list_flag, run_over_store
from ..exits import FAILED, INTERRUPTED, OK, WAITING
from ..loop import event_loop, run_async
from ..output.questions import Asker, somebody_is_there
from ..output.terminal import Screen
from ..output.turn import JsonPrinter, Turn
from ..stored.change import add_answer, store_answer
from ..stored.stores import (
    NEWEST,
    add_id,
    add_store_flag,
    check_new_id,
    find_session,
    open_session_store,
    store_flag,
)
from .sessions import age

_STYLES = {
    **dict.fromkeys(("done", "ended"), "green"), **dict.fromkeys(("failed", "denied", "unknown", "cancelled"), "red"),
    **dict.fromkeys(("waiting", "running", "suspended"), "yellow"),
}  # fmt: skip
_ALLOWED = """A comment permits intended uses: `# workflow: allow` everything on its line, `# workflow: allow clock, files`
only these kinds. Exit code 1 if something was found. Nothing is imported or run."""
_RUN = """The code of MODULE is executed: it is searched for as in Python, then in this folder. Code that you have
refused to trust (`openagentic-sdk trust`) is not run without --trust.

The same command with the same --session continues where the workflow stopped; steps recorded in the log are not repeated.
Ctrl-C and SIGTERM suspend it; then that command is printed. Exit code 0: it has ended; 3: it waits for a person, a time or
an event; 1: it failed; 130: Ctrl-C suspended it; 143: SIGTERM did."""
_MAX_VALUE_CHARS = 100


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "workflow",
        description="Run functions whose steps are durable (docs/workflows.md); inspect, answer, retry and end them.",
    )
    actions = ActionList(parser)
    run = actions.add("run", _run, "run a workflow, or continue one", epilog=_RUN)
    _add_code(run)
    run.add_argument("arguments", metavar="NAME=VALUE", nargs="*", help="an argument, as JSON or plain text")
    run.add_argument("--session", metavar="ID", help="its session: a new one, or the one to continue")
    add_list_flag(run, "--deny", metavar="RULE", help="a step, or a call of an agent, to forbid")
    rows = actions.add("list", _list, "list workflows, waiting ones first")
    rows.add_argument("--limit", type=int, default=50, metavar="N", help="examine N sessions (default: %(default)s)")
    show = actions.add("show", _show, "show the steps of one workflow, with what each waits for and its cost")
    tail = actions.add("tail", _tail, "follow a workflow, step by step, until it ends or waits")
    answer = actions.add("answer", _answer, "answer the question that a workflow waits for")
    send = actions.add(
        "send", _send, "deliver an event, for `flow.wait_for(EVENT)`; it is kept until the workflow waits for it"
    )
    query = actions.add("query", _query, "print what a workflow has published (`flow.publish`) so far, as JSON")
    replay = actions.add(
        "replay", _replay, "replay the code of a workflow against a session's log without running anything"
    )
    replay.epilog = "Exit code 1 if the code makes steps that differ from the log's; the output shows both places."
    cancel = actions.add("cancel", _cancel, "permanently end a workflow that no process runs")
    retry = actions.add("retry", _retry, "repeat, in the next run, a step that failed or may not have run")
    _add_code(replay)
    for action in (show, tail):
        add_id(action, default=NEWEST)
    for action in (answer, query, replay, cancel, retry):
        add_id(action)
    about = f"the complete id of its session, which may not exist yet; {NEWEST} is the newest workflow"
    send.add_argument("id", metavar="ID", help=about)
    add_answer(answer)
    send.add_argument("event", metavar="EVENT", help="the name of the event")
    send.add_argument("payload", metavar="JSON", nargs="?", default="null", help="its data (default: null)")
    send.add_argument(
        "--event-id", metavar="ID", help="deliver an event with this id only once, even if it is sent again"
    )
    query.add_argument("name", metavar="NAME", nargs="?", help="one value (default: all, as an object)")
    retry.add_argument("step", metavar="STEP", help="its number in `workflow show`")
    for action in (run, rows, show, tail, answer, send, query, replay, cancel, retry):
        add_store_flag(action)
        action.add_argument("--json", action="store_true", help="print JSON: one event per line, otherwise one object")
    check = actions.add(
        "check", _check, "find code that would behave differently on replay: clock, randomness, files and the like"
    )
    check.epilog = _ALLOWED
    check.add_argument("paths", metavar="PATH", nargs="+", help="a Python file, or a folder of them")
    check.add_argument("--json", action="store_true", help="print one JSON object")


def _add_code(action: argparse.ArgumentParser) -> None:
    action.add_argument("workflow", metavar="MODULE:NAME", help="the workflow, in Python")
    action.add_argument(
        "--app-dir", metavar="DIR", help="the last folder in which MODULE is searched for (default: this folder)"
    )
    action.add_argument("--trust", action="store_true", help="also run the code of a folder that you refused to trust")


def run(args: argparse.Namespace) -> int:
    if args.action in ("check", "run"):
        code: int = args.run_action(args, Screen(sys.stdout))
        return code
    return run_over_store(args)


def _check(args: argparse.Namespace, screen: Screen) -> int:
    report = check_paths(args.paths)
    workflows = f"{plural(len(report.workflows), 'workflow')} in {plural(report.files, 'file')}"
    lines = [on_one_line(str(finding)) for finding in report.findings]
    lines.append(f"{workflows}: {plural(len(report.findings), 'finding') if report.findings else 'nothing found'}")
    names = ("path", "line", "column", "kind", "message", "function", "workflow")
    findings = [{name: getattr(finding, name) for name in names} for finding in report.findings]
    data = {"ok": not report.findings, "files": report.files, "workflows": report.workflows, "findings": findings}
    screen.tell(args.json, data, lines)
    return FAILED if report.findings else OK


# --- run -------------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace, screen: Screen) -> int:
    flow = load_workflow(args.workflow, args.app_dir or working_dir(), is_trusted=args.trust)
    own = flow.options.session_store if args.store is None else None
    store = open_session_store(own or args.store) if own is None or isinstance(own, str) else own
    session = args.session or new_session_id()
    with closing(store):
        exists = store.session_exists(session)
        check_new_id(store, session)
        message = _first_message(flow, args.arguments, store, session, exists)
        options = flow.to_options(replace(flow.options, session_store=store))
        options = replace(options, disallowed_tools=(*options.disallowed_tools, *args.deny))
        place: dict[str, Any] = (
            {"resume": session} if exists else {"session": session, "request_id": f"workflow:{session}"}
        )
        printer = JsonPrinter() if args.json else ProgressPrinter(screen, _progress_of(store, session))
        asker = Asker(screen) if somebody_is_there() and not args.json else None
        with event_loop() as runner:
            while True:
                code, result = _play(runner, replace(options, **place), message, printer)
                progress = _progress_of(store, session)
                if isinstance(printer, ProgressPrinter):
                    with _without_terminal(code):
                        printer.end()
                    # The store may have been removed or renamed while the workflow ran.
                    progress = progress if progress.is_workflow else printer.progress
                if code != WAITING or asker is None:
                    break
                if not _ask_one(runner, asker, store, session, progress, options.key_file):
                    break
                place, message = {"resume": session}, None
    with _without_terminal(code):
        if not args.json:
            screen.lines(_outcome(progress, screen))
        if result is not None and result.stop_reason == "error" and progress.state != "failed":
            words = printable(result.error_message or "the run failed")
            print(f"openagentic-sdk: {words}", file=sys.stderr, flush=True)
        if (code == WAITING or code > 128) and not progress.is_over:
            print(f"to continue: {on_one_line(_command_to_continue(args, session))}", file=sys.stderr, flush=True)
    return code


def _command_to_continue(args: argparse.Namespace, session: str) -> str:
    words = ["openagentic-sdk", "workflow", "run", args.workflow, "--session", session]
    words += ["--store", args.store] if args.store else []
    words += ["--app-dir", args.app_dir] if args.app_dir else []
    return shlex.join(words)


def _ask_one(
    runner: asyncio.Runner,
    asker: Asker,
    store: SessionStore,
    session: str,
    progress: WorkflowProgress,
    key_file: str | None,
) -> bool:
    """Ask the person the first open question, and store the answer; return whether there was an answer."""
    question = next(iter(progress.questions.values()), None)
    answer = None if question is None else runner.run(asker(question))
    if question is None or not answer:
        return False
    runner.run(answer_questions(store, session, {question.question_id: answer}, key_file=key_file))
    return True


def _without_terminal(code: int) -> AbstractContextManager[None]:
    """Ignore output errors during the block if a signal ended the run: the terminal may be gone."""
    return suppress(OSError) if code > 128 else nullcontext()


def _first_message(
    flow: Workflow[..., Any], arguments: Iterable[str], store: SessionStore, session: str, exists: bool
) -> Said | None:
    """Return the message with the arguments for a session that has none yet, otherwise None.

    Raises `OptionsError` for the session of another workflow, and for arguments other than those that it began with.
    """
    # The process may have died after creating the session and before storing the arguments.
    goes_on = exists and any(isinstance(event, UserMessage) for event in store.iter_events(session))
    words = _read_arguments(arguments)
    if goes_on:
        earlier = _progress_of(store, session)
        if earlier.is_workflow and earlier.name != flow.name:
            raise OptionsError(
                f"session {session!r} belongs to the workflow {earlier.name!r:.200}, not {flow.name!r}: "
                "use another --session"
            )
        if not words:
            return None
    message = Said(flow.prompt(**flow.read_words(words)), request_id=f"workflow:{session}", names_files=False)
    if not goes_on:
        return message
    try:
        load_view(store, session)[0].requests.check(f"workflow:{session}", prompt_sha256(message), session)
    except RequestConflictError:
        raise OptionsError(
            f"session {session!r} began with other arguments: leave them out to continue it, or give another --session"
        ) from None
    return None


def _play(
    runner: asyncio.Runner, options: OpenAgenticOptions, message: Said | None, printer: Any
) -> tuple[int, Result | None]:
    turns = Turns(options, parks=True)
    code = Turn(turns, printer, tick=getattr(printer, "tick", None), suspends=True).play(runner, message)
    is_waiting = turns.result is not None and turns.result.stop_reason == "waiting"
    return WAITING if is_waiting else code, turns.result


def load_workflow(where: str, folder: str, *, is_trusted: bool = False) -> Workflow[..., Any]:
    """Load the workflow `MODULE:NAME`; `folder` is searched last.

    Raises `OptionsError` if there is no such workflow and, unless `is_trusted`, for code of a project that the person
    refused to trust, or whose files have changed since it was trusted.
    """
    module, colon, name = where.rpartition(":")
    if not colon or not module or not name:
        raise OptionsError(f"{where!r:.200} is not a workflow: write MODULE:NAME")
    folder = str(Path(folder).expanduser().absolute())
    if not is_trusted and _is_below(module, folder):
        answer = trust_store().look_up(find_project_root(Path(folder)))
        if answer.decision in ("refused", "changed"):
            raise OptionsError(
                f"{module} of {folder} is not run: {answer.reason}; allow it with `openagentic-sdk trust add` or --trust"
            )
    try:
        flow = import_name(module, name, folder)
    except (ImportError, AttributeError, ValueError) as error:
        found = getattr(sys.modules.get(module), "__dict__", {})  # empty if the module could not be imported
        near = look_alikes(name, [key for key, value in found.items() if isinstance(value, Workflow)], 0.6)
        advice = f"; did you mean {' or '.join(near)}?" if near else ""
        raise OptionsError(f"workflow {where!r} cannot be imported: {error}{advice}") from error
    if not isinstance(flow, Workflow):
        raise OptionsError(f"{where!r} is {flow!r:.200}, not a workflow: decorate an async function with @workflow")
    return flow


def _is_below(module: str, folder: str) -> bool:
    """Whether the code would come from this folder, determined without running any of it."""
    top = module.partition(".")[0]
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return True  # not installed: it is looked for in this folder next
    places = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(Path(place).is_relative_to(folder) for place in places if place)


def _read_arguments(words: Iterable[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise OptionsError(
                f"{word!r:.200} is not an argument: write NAME=VALUE, with a value as JSON or as plain text"
            )
        arguments[name] = text
    return arguments


def _read_value(text: str) -> Any:
    try:
        return loads_json(text)
    except ValueError:
        return text


class ProgressPrinter:
    """A printer of each step that ends, and below, on a terminal, of the running steps, the cost and the time left.

    `planned` returns the number of steps that have not begun, for the estimate of the time left.
    """

    def __init__(self, screen: Screen, progress: WorkflowProgress, planned: Callable[[], int] = lambda: 0) -> None:
        self._screen, self.progress, self._planned = screen, progress, planned

    def show(self, event: Event) -> None:
        """Apply an event to the progress, print each step that it ends, and redraw the rows below the text."""
        before = {number: step.state for number, step in self.progress.steps.items()}
        self.progress.apply(event)
        for number, step in self.progress.steps.items():
            if step.state != before.get(number) and step.state not in ("waiting", "running"):
                self._screen.line(step_line(step, self._screen))
        if not isinstance(event, Result):
            self.tick()

    def tick(self) -> None:
        """Redraw the rows below the text."""
        progress, now = self.progress, time.time()
        running = [step for step in progress.steps.values() if step.state == "running"]
        rows = [summary_line(progress, now, progress.left_s(self._planned(), now))]
        rows += [
            f"  {on_one_line(step.name, 40)} {step.number}  {_span(now - (step.began or now))}" for step in running[:8]
        ]
        rows += [f"  and {len(running) - 8} more"] if len(running) > 8 else []
        self._screen.show_below(rows)

    def end(self) -> None:
        """Remove the rows below the text."""
        self._screen.show_below([])


def step_line(step: StepProgress, screen: Screen) -> str:
    """Describe a step on one line."""
    state = screen.styled(f"{step.state:9}", _STYLES.get(step.state, ""))
    took = _span(step.ended - step.began) if step.began and step.ended else ""
    cost = "" if step.cost_usd is None else f"${step.cost_usd:.4f}"
    attempt = f" (attempt {step.attempt})" if step.attempt > 1 else ""
    due = f"until {_moment(step.due)}" if step.due and not step.ended else ""
    words = on_one_line(" ".join(filter(None, (step.name + attempt, step.at, due, step.message))), 300)
    return f"{state} {step.number:<8} {took:>7} {cost:>8}  {words}".rstrip()


def summary_line(progress: WorkflowProgress, now: float, left_s: float | None = None) -> str:
    """The number of steps in each state, the cost, the duration and, if known, the time left, on one line."""
    counts = ", ".join(f"{count} {state}" for state, count in progress.counts().items()) or "no steps"
    cost = "" if progress.cost_usd is None else f"; ${progress.cost_usd:.4f}"
    ran = "" if progress.began is None else f"; {_span(now - progress.began)}"
    time_left = "" if left_s is None else f", about {_span(left_s)} left"
    return f"{on_one_line(progress.name, 60)}: {counts}{cost}{ran}{time_left}"


def _moment(ts: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(calendar_time(ts)))


def _span(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _outcome(progress: WorkflowProgress, screen: Screen) -> list[str]:
    """The lines about a workflow's state, its open questions, the time at which it continues, and its error or output."""
    lines = [
        f"{summary_line(progress, progress.updated)}: {screen.styled(progress.state, _STYLES.get(progress.state, ''))}"
    ]
    for key, each in progress.questions.items():
        choices = f" ({', '.join(each.choices)})" if each.choices else ""
        lines.append(f"? {on_one_line(each.prompt, 500)}{on_one_line(choices, 200)}  question {on_one_line(key)}")
    if progress.wake_at is not None and progress.state == "waiting":
        lines.append(f"continues at {_moment(progress.wake_at)}")
    if progress.message and progress.state == "failed":
        lines.append(screen.styled(on_one_line(progress.message, 2000), "red"))
    if progress.state == "ended":
        text = progress.output if isinstance(progress.output, str) else dumps_json(progress.output)
        lines.append(on_one_line(text, 5000))
    return lines


# --- contents of the store -------------------------------------------------------------------------------------------


def _progress_of(store: SessionStore, session_id: str) -> WorkflowProgress:
    try:
        progress = WorkflowProgress.of(store.iter_events(session_id))
        if progress.state == "running" and store.is_held(session_id) is False:
            # Its process died; from the log alone, it would seem to be running.
            progress.state = "waiting" if progress.questions else "stopped"
        return progress
    except SessionNotFoundError:
        return WorkflowProgress()


def _workflow(store: SessionStore, args: argparse.Namespace) -> tuple[str, WorkflowProgress]:
    """Find the workflow session that a person referred to (`newest` is the newest workflow), and its progress.

    Raises `OptionsError` for another kind of session.
    """
    session_id = find_session(store, args.id)
    if args.id == NEWEST:
        rows = (row.id for row in store.list_session_summaries() if row.first_prompt.startswith('{"workflow":'))
        session_id = next(rows, session_id)
    progress = _progress_of(store, session_id)
    if not progress.is_workflow:
        raise OptionsError(
            f"session {session_id!r} is not a workflow: {_what_it_is(store, session_id, store_flag(args))}"
        )
    return session_id, progress


def _require_key(store: SessionStore, session_id: str) -> None:
    """Raise `OptionsError` if a workflow was last run with another key: it would ignore what is stored with this one."""
    authority, newest = Authority(session_id, Seal()), None
    with suppress(SessionNotFoundError):
        for event in store.iter_events(session_id):
            authority.apply(event)
            newest = event if event.__class__ in AUTHORIZING and event.mac is not None else newest
    if newest is not None and not authority.is_ours(newest):
        raise OptionsError(
            f"workflow {session_id!r:.200} was last run with another key, so it would ignore what this command stores: set "
            f"${KEY_FILE_NAME} to the key file of its program (key_file)"
        )


def _what_it_is(store: SessionStore, session_id: str, where: str) -> str:
    """Describe a session that is not a workflow, and name the command for it; `where` is the flag for its store."""
    if open_ids := store.open_question_ids(session_id):
        return (
            f"it waits for {plural(len(open_ids), 'answer')}; `openagentic-sdk sessions why {session_id}{where}` shows "
            f"the question, and `openagentic-sdk sessions answer {session_id} ANSWER{where}` answers it"
        )
    parent_id = store.read_metadata(session_id)["metadata"].get("parent_session_id")
    if isinstance(parent_id, str) and _progress_of(store, parent_id).is_workflow:
        return f"it belongs to a step of the workflow {on_one_line(parent_id)!r}: give that id to this command"
    return (
        f"it waits for nothing, and `openagentic-sdk sessions why {session_id}{where}` shows its state; "
        f"`openagentic-sdk workflow list{where}` lists the workflows"
    )


def _list(store: SessionStore, args: argparse.Namespace) -> int:
    screen, rows = Screen(sys.stdout), list[tuple[Any, WorkflowProgress]]()
    for row in store.list_session_summaries(limit=args.limit):
        if row.first_prompt.startswith('{"workflow":') and (progress := _progress_of(store, row.id)).is_workflow:
            rows.append((row, progress))
    for row, progress in sorted(rows, key=lambda pair: pair[1].state != "waiting"):
        label = screen.styled(f"{progress.state:9}", _STYLES.get(progress.state, ""))
        line = f"{on_one_line(row.id)} {age(row.updated):>7} {label} {summary_line(progress, progress.updated)}"
        data = {"session_id": row.id, **progress.to_dict()}
        screen.tell(args.json, {key: value for key, value in data.items() if key != "steps"}, [line])
    if not rows and not args.json:
        screen.line("no workflows")
    return OK


def _show(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, progress = _workflow(store, args)
    screen = Screen(sys.stdout)
    arguments = on_one_line(dumps_json(progress.arguments), _MAX_VALUE_CHARS)
    lines = [f"{on_one_line(progress.name)} {arguments} in session {on_one_line(session_id)}"]
    lines += [step_line(step, screen) for step in progress.steps.values()]
    lines += _outcome(progress, screen)
    if progress.state in ("waiting", "stopped", "suspended", "interrupted") and not progress.is_over:
        how = ["openagentic-sdk", "workflow", "run", "MODULE:NAME", "--session", session_id]
        how += ["--store", args.store] if args.store else []
        lines.append(f"to continue: {on_one_line(shlex.join(how))}")
    screen.tell(args.json, {"session_id": session_id, **progress.to_dict()}, lines)
    return OK


def _tail(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, _ = _workflow(store, args)
    screen = Screen(sys.stdout)
    printer = JsonPrinter() if args.json else ProgressPrinter(screen, WorkflowProgress())
    after = 0
    try:
        while True:
            last: Event | None = None
            for last in store.iter_events(session_id, after_seq=after):
                after = last.seq or after
                printer.show(last)
            if isinstance(last, Result) or (last is None and store.read_summary(session_id).state != "running"):
                break
            time.sleep(0.2)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if isinstance(printer, ProgressPrinter):
            printer.end()
    if not args.json:
        screen.lines(_outcome(_progress_of(store, session_id), screen))
    return OK


def _answer(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, progress = _workflow(store, args)
    return store_answer(
        store,
        session_id,
        list(progress.questions),
        args,
        then="the next `workflow run` continues with it",
        look=f"openagentic-sdk workflow show {session_id}{store_flag(args)}",
    )


def _send(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, exists = _receiver(store, args)
    similar_ids = [] if exists else [name for name in store.ids_beginning(session_id) if name != inbox_of(session_id)]
    _require_key(store, session_id)
    payload, redact = _read_value(args.payload), environment_redactor()
    is_masked = mask_value(payload, redact) != payload
    check_sent_name(args.event)
    is_new = deliver(store, session_id, args.event, payload, event_id=args.event_id, redact=redact)
    lines = ["delivered; the next run of the workflow receives it" if is_new else "it had been delivered before"]
    if not exists:
        meant = f"; if you meant {on_one_line(similar_ids[0])!r}, send it to this complete id" if similar_ids else ""
        lines.append(f"no session has the id {on_one_line(session_id)!r} yet: the workflow must be run with it{meant}")
    if is_masked and is_new:
        lines.append(
            "a secret in its data was masked, so the workflow does not receive it: send the name of the secret"
        )
    Screen(sys.stdout).tell(args.json, {"session_id": session_id, "delivered": is_new, "masked": is_masked}, lines)
    return OK


def _receiver(store: SessionStore, args: argparse.Namespace) -> tuple[str, bool]:
    """The session that an event is for, and whether it exists. A prefix is not completed: it may be the id of a new one.

    Raises `OptionsError` for a session that is not a workflow.
    """
    exists = args.id == NEWEST or store.session_exists(args.id)
    # A process that died after creating a workflow's session has stored no message in it.
    if args.id == NEWEST or (exists and any(isinstance(event, UserMessage) for event in store.iter_events(args.id))):
        return _workflow(store, args)[0], True
    return args.id, exists


def _query(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, _ = _workflow(store, args)
    published = load_view(store, session_id, (StepsFold,))[0].fold(StepsFold).published
    if args.name is not None and args.name not in published:
        names = ", ".join(map(on_one_line, published)) or "nothing yet"
        raise OptionsError(f"workflow {session_id} has not published {args.name!r:.200}: it has published {names}")
    value = published if args.name is None else published[args.name]
    Screen(sys.stdout).tell(args.json, {"session_id": session_id, "value": value}, [printable(dumps_json(value))])
    return OK


def _replay(store: SessionStore, args: argparse.Namespace) -> int:
    flow = load_workflow(args.workflow, args.app_dir or working_dir(), is_trusted=args.trust)
    session_id, _ = _workflow(store, args)
    options = replace(flow.options, session_store=store)
    replay = run_async(flow.replay(session_id, options=options))
    verdict = f"{plural(replay.steps, 'step')}: " + (
        "the code matches them" if replay.ok else "the code does NOT match them"
    )
    lines = [*([] if replay.ok else [printable(replay.difference or "")]), verdict]
    Screen(sys.stdout).tell(args.json, values_of(replay), lines)
    return OK if replay.ok else FAILED


def _cancel(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, progress = _workflow(store, args)
    message, was_open = "it had already ended", not progress.is_over
    if was_open:
        _require_key(store, session_id)
        is_new = deliver(store, session_id, CANCEL, event_id=CANCEL)
        try:
            was_open = run_async(cancel_session(store, session_id)) or is_new
            state = "cancelled: its questions and calls are closed" if was_open else "it had already been cancelled"
            message = f"{state}; the next `workflow run` of this session lets it clean up"
        except SessionLockedError:
            message = "asked to end: the process that runs it lets it clean up"
    Screen(sys.stdout).tell(args.json, {"session_id": session_id, "cancelled": was_open}, [message])
    return OK if was_open else FAILED


def _retry(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, before = _workflow(store, args)
    _require_key(store, session_id)
    call_id = retry_step(store, session_id, args.step)
    where = ["--session", session_id, *(["--store", args.store] if args.store else [])]
    how = ["openagentic-sdk", "workflow", "run", "MODULE:NAME", *where]
    if before.was_enqueued(args.step):  # only a worker of the fleet can enqueue the step's run again
        how = ["openagentic-sdk", "fleet", "enqueue", "--agents", "FILE", before.name, *where]
    message = f"step {on_one_line(args.step)} runs again in: {on_one_line(shlex.join(how))}"
    Screen(sys.stdout).tell(args.json, {"session_id": session_id, "call_id": call_id}, [message])
    return OK
