"""Write a recorded session as a test: a unittest file that sets up the user's own agent, and the log beside it, trimmed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import OptionsError
from ..events import Event, ModelRequest, PermissionDecision, SystemInit
from ..permissions.shell import word_set
from ..serialization import dumps_event
from ..tools.defaults import default_tools

# The events that a replay needs; hooks, decisions, retries and the like explain a session but do not affect its requests.
_NEEDED = word_set("""
    system.init user.message model.context model.request model.response assistant.reasoning assistant.message tool.use
    tool.result permission.decision user.question user.answer session.compacted session.rewound
""")

_TEST = '''"""Session {session_id}, replayed by the agent as it is configured now."""

import asyncio
{imports}import unittest
from pathlib import Path

from openagentic_sdk.runs.agent_replay import replay_agent
from openagentic_sdk.serialization import loads_event
{setup}
HERE = Path(__file__).resolve().parent
LOG = HERE / {log_name!r}
# Tools that actually run; the others return their recorded results.
LIVE_TOOLS = {live!r}


class {class_name}(unittest.TestCase):
    def test_the_agent_behaves_as_recorded(self):
        events = [loads_event(line, strict=False) for line in LOG.read_bytes().split(b"\\n") if line]
        report = asyncio.run(replay_agent(events, {options}, live_tools=LIVE_TOOLS))
        if not report.ok:
            self.fail(report.text)


if __name__ == "__main__":
    unittest.main()
'''
_OWN_SETUP = """
sys.path.insert(0, str(Path(__file__).resolve().parent / {folder!r}))

from {module} import {name}  # noqa: E402
"""
# A session of the command line: its agent was not created by the user's code.
_PLAIN_SETUP = """from openagentic_sdk import OpenAgenticOptions, PermissionGate
"""
_PLAIN_OPTIONS = (
    "OpenAgenticOptions(provider=None, model={model!r}, cwd=str(HERE / {folder!r}), setting_sources={sources!r}, "
    "permission_gate=PermissionGate(permission_mode={mode!r}, allow={allow!r}, deny={deny!r}))"
)


def emit_test(
    events: Iterable[Event],
    path: str | os.PathLike[str],
    *,
    session_id: str = "",
    agent: str | None = None,
    app_dir: str | os.PathLike[str] | None = None,
    live_tools: Sequence[str] = (),
) -> tuple[Path, Path]:
    """Write `path`, with or without `.py`, and the log that it replays beside it; return both paths.

    `agent` names the options, or a function that creates them, as `module:name` below `app_dir` (the session's folder if
    None). Without `agent`, the test uses the command line's agent, which is possible only if the session's agent had no
    custom tools. `live_tools` names the tools that the test runs instead of replaying their results. Raises `OptionsError`
    for a log without requests, or if `agent` is invalid or must be given, and `OSError` if a file cannot be written.
    """
    target = Path(path)
    target = target if target.suffix == ".py" else target.with_name(target.name + ".py")
    needed_events = [event for event in events if event.type in _NEEDED]
    if not any(isinstance(event, ModelRequest) and event.purpose == "turn" for event in needed_events):
        raise OptionsError("this session has no recorded requests, so a test of it could not fail")
    init = next(event for event in needed_events if isinstance(event, SystemInit))
    folder = os.path.relpath(app_dir or init.cwd, target.resolve().parent)
    log = target.with_suffix(".jsonl")
    setup, options = _own(agent, folder) if agent is not None else _plain(init, needed_events, folder)
    name = "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", target.stem)) or "Replay"
    text = _TEST.format(
        session_id=session_id,
        imports="import sys\n" if agent is not None else "",
        setup=setup,
        log_name=log.name,
        live=tuple(live_tools),
        class_name=f"{name}Test" if name[0].isalpha() else f"Test{name}",
        options=options,
    )
    log.write_text("".join(dumps_event(event) + "\n" for event in needed_events), encoding="ascii")
    target.write_text(text, encoding="utf-8")
    return target, log


def _own(agent: str, folder: str) -> tuple[str, str]:
    module, _, name = agent.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise OptionsError(f"agent {agent!r} is not of the form module:name, such as my_app.agent:make_options")
    return _OWN_SETUP.format(folder=folder, module=module, name=name), f"{name}() if callable({name}) else {name}"


def _plain(init: SystemInit, events: Sequence[Event], folder: str) -> tuple[str, str]:
    built_in = default_tools({"any": ""}).names()
    own = [name for name in init.tools if name not in built_in and not name.startswith("mcp__")]
    if own:
        raise OptionsError(
            f"the agent of this session has custom tools ({', '.join(own[:5])}), so it was created by code: name it "
            "with --agent module:function, and its folder with --app-dir DIR"
        )
    rules: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for event in events:
        if isinstance(event, PermissionDecision) and event.rule and event.source == "command line":
            rules[event.allowed][event.rule] = None
    options = _PLAIN_OPTIONS.format(
        model=init.model,
        folder=folder,
        sources=("project",) if "Task" in init.tools else (),  # any setting source adds the built-in agents
        mode=init.permission_mode,
        allow=tuple(rules[True]),
        deny=tuple(rules[False]),
    )
    return _PLAIN_SETUP, options
