"""Run an LLM agent whose every step is a durable event, with nothing but Python's standard library.

A name is imported when it is first used, so that `import openagentic_sdk` itself costs next to nothing.

Made by `python3 -m tests.guards.generated`.
"""

from . import errors, events
from .agent import Agent, AgentResult
from .api import RunResult, compact_session, query, run, run_sync
from .client import AgentClient
from .errors import (
    EventLoopError,
    OpenAgentSdkError,
    OptionsError,
    RunFailedError,
    StepFailedError,
    StepUnknownError,
    ToolError,
    WorkflowChangedError,
    WorkflowError,
)
from .events import AnyEvent, Event, Outcome, Result, StopReason, UserQuestion
from .flows import Flow, Retries, Workflow, WorkflowResult, workflow
from .hooks.engine import HookEngine
from .hooks.models import HookDecision, HookMatcher
from .kernel.registry import ToolRegistry
from .kernel.tool import ToolContext, ToolOutput
from .options import AgentDefinition, OpenAgenticOptions
from .parts.mcp.server_config import McpServer
from .parts.record.async_store import AsyncSessionStore, AsyncStore
from .parts.record.folds.metrics import RunMetrics
from .parts.record.interop import ClaudeSessionStore
from .parts.record.lifecycle import fork_session
from .permissions.gate import ApprovalResult, PermissionGate
from .permissions.policy import PermissionMode
from .permissions.redact import Redactor
from .providers.anthropic import AnthropicProvider
from .providers.base import Done, ModelOutput, TextDelta, ToolCall, ToolCallReady
from .providers.openai import OpenAIProvider
from .providers.openai_compatible import OpenAICompatibleProvider
from .providers.openai_responses import OpenAIResponsesProvider
from .providers.wrappers.fallback import Fallback
from .providers.wrappers.retry import RetryPolicy
from .runs.background import BackgroundResult, BackgroundRun, answer_question, answer_questions, submit
from .runs.forked import query_forked
from .runs.replay import replay_events
from .runs.whatif import what_if
from .serialization import dumps_event, loads_event
from .sessions.base import SessionStore
from .sessions.follow import follow
from .sessions.memory import MemorySessionStore
from .sessions.rebuild import rebuild_messages
from .sessions.store import FileSessionStore
from .sessions.stores.locate import open_store
from .tools.base import Tool
from .tools.code import CodeLimits, CodeTool
from .tools.defaults import default_tools
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
    "Flow",
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
    "Retries",
    "RetryPolicy",
    "RunFailedError",
    "RunMetrics",
    "RunResult",
    "SessionStore",
    "StepFailedError",
    "StepUnknownError",
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
    "Workflow",
    "WorkflowChangedError",
    "WorkflowError",
    "WorkflowResult",
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
    "workflow",
]
