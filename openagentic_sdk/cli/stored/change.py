"""`sessions answer`, `fork`, `rename`, `tag`, `archive`, `restore`, `copy` and `delete`: change stored sessions."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing

from ...errors import (
    InvalidEventError,
    LogCorruptError,
    OptionsError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
)
from ...ground.text import on_one_line
from ...ground.words import plural
from ...parts.record.archive import archive_session, restore_session
from ...parts.record.lifecycle import copy_missing, delete_session, fork_session, rename_session, tag_session
from ...sessions.base import SessionStore
from ..actions import ActionList, add_yes_flag
from ..exits import FAILED, OK
from ..loop import run_async
from ..output.questions import is_agreed
from ..output.terminal import Screen
from .stores import ID_HELP, Progress, add_id, find_session, open_session_store, store_flag


def add_actions(actions: ActionList) -> None:
    """Add the actions of this module, from `answer` to `delete`, to the command line."""
    answer = actions.add("answer", _answer, "store the answer to a session's open question, for its next run")
    add_id(answer)
    add_answer(answer)
    answer.add_argument("--json", action="store_true", help="print one JSON object")
    fork = actions.add("fork", _fork, "create a new session as a copy of this one")
    add_id(fork)
    fork.add_argument("--at-seq", type=int, metavar="N", help="copy up to event N (default: all)")
    rename = actions.add("rename", _rename, "give a session a title")
    add_id(rename)
    rename.add_argument("title", metavar="TITLE", help="an empty text removes the title")
    tag = actions.add("tag", _tag, "add and remove tags")
    add_id(tag)
    tag.add_argument("tags", nargs="+", metavar="TAG", help="a tag to add; one that begins with ^ is removed")
    archive = actions.add("archive", _archive, "write a session and its subagents' sessions to one file")
    add_id(archive)
    archive.add_argument("file", metavar="FILE", help="the zip file to write, which must not exist")
    archive.add_argument("--remove", action="store_true", help="delete them once the file is complete and verified")
    restore = actions.add("restore", _restore, "restore the sessions of an archive")
    restore.add_argument("file", metavar="FILE", help="the zip file that `sessions archive` wrote")
    copy = actions.add("copy", _copy, "copy sessions, with their blobs and their subagents' sessions, to another store")
    copy.add_argument("ids", nargs="*", metavar="ID", help=ID_HELP)
    copy.add_argument("--all", action="store_true", help="every session of the store")
    copy.add_argument("--to", required=True, metavar="STORE", help="the target: a folder, or an address")
    delete = actions.add("delete", _delete, "delete a session and its subagents' sessions permanently")
    delete.add_argument("id", metavar="ID", help="the complete id")
    add_yes_flag(delete)


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `store_answer` reads."""
    parser.add_argument("answer", metavar="ANSWER", help="one of the choices, or a text if the question takes one")
    parser.add_argument("--question", metavar="ID", help="the question to answer, if the run waits for several")


def store_answer(
    store: SessionStore, session_id: str, open_ids: Sequence[str], args: argparse.Namespace, *, then: str, look: str
) -> int:
    """Store `args.answer` to the session's one open question, or to the one that `args.question` names.

    `then` states what continues with the answer; `look` is the command that shows the session's state. Raises `OptionsError`
    if no question is open, or several are and `args.question` is not set.
    """
    from ...runs.background import answer_questions  # late: no other action of this module answers

    chosen = [args.question] if args.question else list(open_ids)
    if not chosen:
        raise OptionsError(f"session {session_id!r} has no open question: `{look}` prints its state")
    if len(chosen) > 1:
        raise OptionsError(
            f"session {session_id!r} waits for {plural(len(chosen), 'question')}: name one with --question"
            f" ({', '.join(chosen)})"
        )
    run_async(answer_questions(store, session_id, {chosen[0]: args.answer}))
    message = f"answered: {on_one_line(args.answer, 200)}; {then}"
    Screen(sys.stdout).tell(args.json, {"session_id": session_id, "question_id": chosen[0]}, [message])
    return OK


def _answer(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, where = find_session(store, args.id), store_flag(args)
    then = f"its next run without a prompt continues with it, for example agent.run_sync(session={session_id!r})"
    if store.read_summary(session_id).first_prompt.startswith('{"workflow":'):
        then = f"the next `openagentic-sdk workflow run MODULE:NAME --session {session_id}{where}` continues with it"
    look = f"openagentic-sdk sessions why {session_id}{where}"
    return store_answer(store, session_id, store.open_question_ids(session_id), args, then=then, look=look)


def _fork(store: SessionStore, args: argparse.Namespace) -> int:
    return _say(fork_session(store, find_session(store, args.id), at_seq=args.at_seq))


def _rename(store: SessionStore, args: argparse.Namespace) -> int:
    return _say(rename_session(store, find_session(store, args.id), args.title).label)


def _tag(store: SessionStore, args: argparse.Namespace) -> int:
    removed = [tag[1:] for tag in args.tags if tag.startswith("^")]
    added = [tag for tag in args.tags if not tag.startswith("^")]
    row = tag_session(store, find_session(store, args.id), add=added, remove=removed)
    return _say(", ".join(row.tags) or "no tags")


def _archive(store: SessionStore, args: argparse.Namespace) -> int:
    session_id, had_file = find_session(store, args.id), os.path.lexists(args.file)
    try:
        names = archive_session(store, session_id, args.file, remove=args.remove)
    except SessionError as error:
        if had_file or not os.path.lexists(args.file):
            raise
        text = f"{args.file} is complete, but not everything in it was removed from the store: {error}"
        raise SessionError(text, session_id=session_id) from error
    return _say(f"{len(names)} session{'' if len(names) == 1 else 's'} in {args.file}")


def _restore(store: SessionStore, args: argparse.Namespace) -> int:
    return _say(*restore_session(store, args.file))


def _delete(store: SessionStore, args: argparse.Namespace) -> int:
    if not store.session_exists(args.id):  # the start of an id is not enough to delete
        raise SessionNotFoundError(args.id)
    if not is_agreed(f"delete session {on_one_line(args.id)} and its subagents' sessions permanently?", args):
        return FAILED
    try:
        return _say(*(f"deleted {name}" for name in delete_session(store, args.id)))
    except KeyboardInterrupt:
        if store.session_exists(args.id):
            print("stopped: sessions of subagents may be deleted; the same command deletes the rest", file=sys.stderr)
        raise


def _say(*lines: str) -> int:
    Screen(sys.stdout).lines(map(on_one_line, lines))
    return OK


def _copy(store: SessionStore, args: argparse.Namespace) -> int:
    if bool(args.ids) == args.all:
        raise OptionsError("name the sessions to copy, or give --all")
    # The oldest first, so that the lists of both stores have the same order.
    names = store.list_sessions()[::-1] if args.all else [find_session(store, text) for text in args.ids]
    screen, copied, failed, seen = Screen(sys.stdout), 0, 0, set[str]()
    with closing(open_session_store(args.to)) as target:
        for place, root in enumerate(names, start=1):
            try:
                for name, is_new in copy_missing(store, target, root):
                    if name in seen:
                        continue
                    seen.add(name)
                    copied += is_new
                    state = f"{target.last_seq(name)} events" if is_new else "exists already"
                    screen.line(f"{place}/{len(names)}  {on_one_line(name)}  {state}")
            except (LogCorruptError, SessionExistsError, SessionNotFoundError, InvalidEventError) as error:
                # This concerns one session: the others can be copied. A store that fails ends the command.
                if not args.all:
                    raise
                failed += 1
                print(on_one_line(str(error)), file=sys.stderr)
        target.update_search(Progress())
    not_copied = f", {failed} not" if failed else ""
    screen.line(f"{plural(copied, 'session')} copied{not_copied}")
    return FAILED if failed else OK
