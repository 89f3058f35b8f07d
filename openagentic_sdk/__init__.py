"""Run an LLM agent whose every step is a durable event, with nothing but Python's standard library.

Names are imported on first use, so that `import openagentic_sdk` itself is nearly free.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip enforces pyproject.toml; a checkout or a bundle does not
    # A person who types a command gets one sentence; a program that imports the package can catch the error.
    _typed = sys.argv[:1] == ["-m"] or sys.argv[0].endswith((".pyz", "openagentic-sdk"))
    raise (SystemExit if _typed else ImportError)(
        f"openagentic_sdk needs Python 3.11 or newer, and this is {sys.version.split()[0]}: start a newer one"
    )

if (sys.argv[:1] and os.path.basename(sys.argv[0]) == "openagentic-sdk") or (
    sys.argv[:1] == ["-m"] and sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] == [__name__]
):
    if sys.argv[0] == "-m":
        # `python3 -m openagentic_sdk` looks for every module in the current folder first, which may be a stranger's project.
        # Unless this package lives there, remove the folder from the path before anything else is imported.
        try:
            _here = os.path.realpath(os.curdir)
        except OSError:  # it was removed: nothing can be imported from it
            _here = ""
        if os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir)) != _here:
            sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != _here]

    # Until `__main__` starts the command, Ctrl-C ends the process without a traceback.
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        raise SystemExit(130) from None

from importlib import import_module
from typing import Any

from .ground.rooms import MissingRooms, is_whole

sys.meta_path.append(MissingRooms)

# The public names, each once, by the module that defines it; `errors` and `events` are whole modules. Editors and type
# checkers read the stub that `python3 -m tests.guards.generated` generates from this table. Names behind a bar are not
# listed: they are for programs that already import them from here.
_NAMES = {
    "": "errors events",
    "agent": "Agent AgentResult",
    "api": "RunResult query run run_sync | compact_session",
    "client": "AgentClient",
    "errors": "OpenAgentSdkError OptionsError RunFailedError StepFailedError StepUnknownError ToolError "
    "WorkflowChangedError WorkflowError | EventLoopError",
    "events": "AnyEvent Event Result UserQuestion | Outcome StopReason",
    "flows": "Flow Retries Workflow WorkflowReplay WorkflowResult workflow",
    "hooks.engine": "HookEngine",
    "hooks.models": "HookDecision HookMatcher",
    "kernel.registry": "| ToolRegistry",
    "kernel.tool": "ToolContext ToolOutput",
    "options": "AgentDefinition OpenAgenticOptions",
    "parts.mcp.server_config": "McpServer",
    "parts.record.async_store": "| AsyncSessionStore AsyncStore",
    "parts.record.folds.metrics": "| RunMetrics",
    "parts.record.interop": "| ClaudeSessionStore",
    "parts.record.lifecycle": "| fork_session",
    "permissions.gate": "ApprovalResult PermissionGate",
    "permissions.policy": "| PermissionMode",
    "permissions.redact": "| Redactor",
    "providers.anthropic": "AnthropicProvider",
    "providers.base": "| Done ModelOutput TextDelta ToolCall ToolCallReady",
    "providers.openai": "OpenAIProvider",
    "providers.openai_compatible": "OpenAICompatibleProvider",
    "providers.openai_responses": "OpenAIResponsesProvider",
    "providers.wrappers.fallback": "Fallback",
    "providers.wrappers.retry": "RetryPolicy",
    "runs.background": "BackgroundRun answer_question answer_questions submit | BackgroundResult",
    "runs.forked": "| query_forked",
    "runs.replay": "| replay_events",
    "runs.whatif": "| what_if",
    "serialization": "| dumps_event loads_event",
    "sessions.base": "SessionStore",
    "sessions.follow": "follow",
    "sessions.memory": "MemorySessionStore",
    "sessions.rebuild": "| rebuild_messages",
    "sessions.store": "FileSessionStore",
    "sessions.stores.locate": "open_store",
    "tools.base": "Tool",
    "tools.code": "| CodeLimits CodeTool",
    "tools.defaults": "| default_tools",
    "tools.function": "tool",
    "version": "__version__",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.partition("|")[0].split()}
_UNLISTED = {name: home for home, names in _NAMES.items() for name in names.partition("|")[2].split()}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # without the names of rooms that are not installed
        return sorted(name for name, home in _HOMES.items() if is_whole(home))
    home = _HOMES.get(name, _UNLISTED.get(name))
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name) if home else import_module(f".{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
