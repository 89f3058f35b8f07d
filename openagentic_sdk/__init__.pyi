"""Run an LLM agent whose every step is a durable event, with nothing but Python's standard library.

Names are imported on first use, so that `import openagentic_sdk` itself is nearly free.

Made by `python3 -m tests.guards.generated`.
"""

from . import errors, events
from .agent import Agent, AgentResult
from .api import RunResult, query, run, run_sync
from .api import compact_session as compact_session
from .client import AgentClient
from .errors import EventLoopError as EventLoopError
from .errors import (
    OpenAgentSdkError,
    OptionsError,
    RunFailedError,
    StepFailedError,
    StepUnknownError,
    ToolError,
    WorkflowChangedError,
    WorkflowError,
)
from .events import AnyEvent, Event, Result, UserQuestion
from .events import Outcome as Outcome
from .events import StopReason as StopReason
from .flows import Flow, Retries, Workflow, WorkflowReplay, WorkflowResult, workflow
from .hooks.engine import HookEngine
from .hooks.models import HookDecision, HookMatcher
from .kernel.registry import ToolRegistry as ToolRegistry
from .kernel.tool import ToolContext, ToolOutput
from .options import AgentDefinition, OpenAgenticOptions
from .parts.mcp.server_config import McpServer
from .parts.record.async_store import AsyncSessionStore as AsyncSessionStore
from .parts.record.async_store import AsyncStore as AsyncStore
from .parts.record.folds.metrics import RunMetrics as RunMetrics
from .parts.record.interop import ClaudeSessionStore as ClaudeSessionStore
from .parts.record.lifecycle import fork_session as fork_session
from .permissions.gate import ApprovalResult, PermissionGate
from .permissions.policy import PermissionMode as PermissionMode
from .permissions.redact import Redactor as Redactor
from .providers.anthropic import AnthropicProvider
from .providers.base import Done as Done
from .providers.base import ModelOutput as ModelOutput
from .providers.base import TextDelta as TextDelta
from .providers.base import ToolCall as ToolCall
from .providers.base import ToolCallReady as ToolCallReady
from .providers.openai import OpenAIProvider
from .providers.openai_compatible import OpenAICompatibleProvider
from .providers.openai_responses import OpenAIResponsesProvider
from .providers.wrappers.fallback import Fallback
from .providers.wrappers.retry import RetryPolicy
from .runs.background import BackgroundResult as BackgroundResult
from .runs.background import BackgroundRun, answer_question, answer_questions, submit
from .runs.forked import query_forked as query_forked
from .runs.replay import replay_events as replay_events
from .runs.whatif import what_if as what_if
from .serialization import dumps_event as dumps_event
from .serialization import loads_event as loads_event
from .sessions.base import SessionStore
from .sessions.follow import follow
from .sessions.memory import MemorySessionStore
from .sessions.rebuild import rebuild_messages as rebuild_messages
from .sessions.store import FileSessionStore
from .sessions.stores.locate import open_store
from .tools.base import Tool
from .tools.code import CodeLimits as CodeLimits
from .tools.code import CodeTool as CodeTool
from .tools.defaults import default_tools as default_tools
from .tools.function import tool
from .version import __version__

__all__ = [
    "Agent",
    "AgentClient",
    "AgentDefinition",
    "AgentResult",
    "AnthropicProvider",
    "AnyEvent",
    "ApprovalResult",
    "BackgroundRun",
    "Event",
    "Fallback",
    "FileSessionStore",
    "Flow",
    "HookDecision",
    "HookEngine",
    "HookMatcher",
    "McpServer",
    "MemorySessionStore",
    "OpenAICompatibleProvider",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "OpenAgentSdkError",
    "OpenAgenticOptions",
    "OptionsError",
    "PermissionGate",
    "Result",
    "Retries",
    "RetryPolicy",
    "RunFailedError",
    "RunResult",
    "SessionStore",
    "StepFailedError",
    "StepUnknownError",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "UserQuestion",
    "Workflow",
    "WorkflowChangedError",
    "WorkflowError",
    "WorkflowReplay",
    "WorkflowResult",
    "__version__",
    "answer_question",
    "answer_questions",
    "errors",
    "events",
    "follow",
    "open_store",
    "query",
    "run",
    "run_sync",
    "submit",
    "tool",
    "workflow",
]
