"""Run an LLM agent whose every step is a durable event, with nothing but Python's standard library.

A name is imported when it is first used, so that `import openagentic_sdk` itself costs next to nothing.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip keeps to pyproject.toml, a checkout and a bundle do not
    # Whoever types a command reads a sentence; a program that imports the package can catch the error.
    _typed = sys.argv[:1] == ["-m"] or sys.argv[0].endswith((".pyz", "openagentic-sdk"))
    raise (SystemExit if _typed else ImportError)(
        f"openagentic_sdk needs Python 3.11 or newer, and this is {sys.version.split()[0]}: start a newer one"
    )

if sys.argv[:1] == ["-m"] and sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] == [__name__]:
    # `python3 -m openagentic_sdk` looks for every module in the folder one stands in first: in a stranger's project, in the
    # stranger's files. Unless that is where this package lives, the folder goes before anything else is imported.
    try:
        _here = os.path.realpath(os.curdir)
    except OSError:  # it was removed: nothing can be imported from it
        _here = ""
    if os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir)) != _here:
        sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != _here]

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import errors as errors
    from . import events as events
    from .api import RunResult as RunResult
    from .api import compact_session as compact_session
    from .api import query as query
    from .api import run as run
    from .api import run_sync as run_sync
    from .client import AgentClient as AgentClient
    from .errors import EventLoopError as EventLoopError
    from .errors import OpenAgentSdkError as OpenAgentSdkError
    from .errors import OptionsError as OptionsError
    from .errors import RunFailedError as RunFailedError
    from .errors import ToolError as ToolError
    from .events import Event as Event
    from .events import Outcome as Outcome
    from .events import Result as Result
    from .events import StopReason as StopReason
    from .events import UserQuestion as UserQuestion
    from .hooks.engine import HookEngine as HookEngine
    from .hooks.models import HookDecision as HookDecision
    from .hooks.models import HookMatcher as HookMatcher
    from .kernel.registry import ToolRegistry as ToolRegistry
    from .kernel.tool import ToolContext as ToolContext
    from .kernel.tool import ToolOutput as ToolOutput
    from .options import AgentDefinition as AgentDefinition
    from .options import OpenAgenticOptions as OpenAgenticOptions
    from .parts.mcp.server_config import McpServer as McpServer
    from .parts.record.async_store import AsyncSessionStore as AsyncSessionStore
    from .parts.record.async_store import AsyncStore as AsyncStore
    from .parts.record.folds.metrics import RunMetrics as RunMetrics
    from .parts.record.interop import ClaudeSessionStore as ClaudeSessionStore
    from .parts.record.lifecycle import fork_session as fork_session
    from .permissions.gate import ApprovalResult as ApprovalResult
    from .permissions.gate import PermissionGate as PermissionGate
    from .permissions.policy import PermissionMode as PermissionMode
    from .permissions.redact import Redactor as Redactor
    from .providers.anthropic import AnthropicProvider as AnthropicProvider
    from .providers.base import Done as Done
    from .providers.base import ModelOutput as ModelOutput
    from .providers.base import TextDelta as TextDelta
    from .providers.base import ToolCall as ToolCall
    from .providers.base import ToolCallReady as ToolCallReady
    from .providers.openai import OpenAIProvider as OpenAIProvider
    from .providers.openai_compatible import OpenAICompatibleProvider as OpenAICompatibleProvider
    from .providers.openai_responses import OpenAIResponsesProvider as OpenAIResponsesProvider
    from .providers.wrappers.fallback import Fallback as Fallback
    from .providers.wrappers.retry import RetryPolicy as RetryPolicy
    from .runs.background import BackgroundResult as BackgroundResult
    from .runs.background import BackgroundRun as BackgroundRun
    from .runs.background import answer_question as answer_question
    from .runs.background import answer_questions as answer_questions
    from .runs.background import submit as submit
    from .runs.forked import query_forked as query_forked
    from .runs.replay import replay_events as replay_events
    from .runs.whatif import what_if as what_if
    from .serialization import dumps_event as dumps_event
    from .serialization import loads_event as loads_event
    from .sessions.base import SessionStore as SessionStore
    from .sessions.follow import follow as follow
    from .sessions.memory import MemorySessionStore as MemorySessionStore
    from .sessions.rebuild import rebuild_messages as rebuild_messages
    from .sessions.store import FileSessionStore as FileSessionStore
    from .sessions.stores.locate import open_store as open_store
    from .tools.base import Tool as Tool
    from .tools.code import CodeLimits as CodeLimits
    from .tools.code import CodeTool as CodeTool
    from .tools.defaults import default_tools as default_tools
    from .tools.function import tool as tool

# Where each public name lives. `errors` and `events` are modules, whole.
_HOMES = {
    "AgentClient": "client",
    "AgentDefinition": "options",
    "AnthropicProvider": "providers.anthropic",
    "ApprovalResult": "permissions.gate",
    "AsyncSessionStore": "parts.record.async_store",
    "AsyncStore": "parts.record.async_store",
    "BackgroundResult": "runs.background",
    "BackgroundRun": "runs.background",
    "ClaudeSessionStore": "parts.record.interop",
    "CodeLimits": "tools.code",
    "CodeTool": "tools.code",
    "Done": "providers.base",
    "Event": "events",
    "EventLoopError": "errors",
    "Fallback": "providers.wrappers.fallback",
    "FileSessionStore": "sessions.store",
    "HookDecision": "hooks.models",
    "HookEngine": "hooks.engine",
    "HookMatcher": "hooks.models",
    "McpServer": "parts.mcp.server_config",
    "MemorySessionStore": "sessions.memory",
    "ModelOutput": "providers.base",
    "OpenAICompatibleProvider": "providers.openai_compatible",
    "OpenAIProvider": "providers.openai",
    "OpenAIResponsesProvider": "providers.openai_responses",
    "OpenAgentSdkError": "errors",
    "OpenAgenticOptions": "options",
    "OptionsError": "errors",
    "Outcome": "events",
    "PermissionGate": "permissions.gate",
    "PermissionMode": "permissions.policy",
    "Redactor": "permissions.redact",
    "Result": "events",
    "RetryPolicy": "providers.wrappers.retry",
    "RunMetrics": "parts.record.folds.metrics",
    "RunFailedError": "errors",
    "RunResult": "api",
    "SessionStore": "sessions.base",
    "StopReason": "events",
    "TextDelta": "providers.base",
    "Tool": "tools.base",
    "ToolCall": "providers.base",
    "ToolCallReady": "providers.base",
    "ToolContext": "kernel.tool",
    "ToolError": "errors",
    "ToolOutput": "kernel.tool",
    "ToolRegistry": "kernel.registry",
    "UserQuestion": "events",
    "answer_question": "runs.background",
    "answer_questions": "runs.background",
    "compact_session": "api",
    "default_tools": "tools.defaults",
    "dumps_event": "serialization",
    "errors": "",
    "events": "",
    "follow": "sessions.follow",
    "fork_session": "parts.record.lifecycle",
    "loads_event": "serialization",
    "open_store": "sessions.stores.locate",
    "query": "api",
    "query_forked": "runs.forked",
    "rebuild_messages": "sessions.rebuild",
    "replay_events": "runs.replay",
    "run": "api",
    "run_sync": "api",
    "submit": "runs.background",
    "tool": "tools.function",
    "what_if": "runs.whatif",
}

__all__ = [
    "AgentClient",
    "AgentDefinition",
    "AnthropicProvider",
    "ApprovalResult",
    "AsyncSessionStore",
    "AsyncStore",
    "BackgroundResult",
    "BackgroundRun",
    "ClaudeSessionStore",
    "CodeLimits",
    "CodeTool",
    "Done",
    "Event",
    "EventLoopError",
    "Fallback",
    "FileSessionStore",
    "HookDecision",
    "HookEngine",
    "HookMatcher",
    "McpServer",
    "MemorySessionStore",
    "ModelOutput",
    "OpenAICompatibleProvider",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "OpenAgentSdkError",
    "OpenAgenticOptions",
    "OptionsError",
    "Outcome",
    "PermissionGate",
    "PermissionMode",
    "Redactor",
    "Result",
    "RetryPolicy",
    "RunFailedError",
    "RunMetrics",
    "RunResult",
    "SessionStore",
    "StopReason",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolCallReady",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolRegistry",
    "UserQuestion",
    "__version__",
    "answer_question",
    "answer_questions",
    "compact_session",
    "default_tools",
    "dumps_event",
    "errors",
    "events",
    "follow",
    "fork_session",
    "loads_event",
    "open_store",
    "query",
    "query_forked",
    "rebuild_messages",
    "replay_events",
    "run",
    "run_sync",
    "submit",
    "tool",
    "what_if",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name) if home else import_module(f".{name}", __name__)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
