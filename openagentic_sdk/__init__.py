"""Run an LLM agent whose every step is a durable event, with nothing but Python's standard library.

A name is imported when it is first used, so that `import openagentic_sdk` itself costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .api import RunResult as RunResult
    from .api import query as query
    from .api import run as run
    from .errors import OpenAgentSdkError as OpenAgentSdkError
    from .hooks.engine import HookEngine as HookEngine
    from .hooks.models import HookDecision as HookDecision
    from .hooks.models import HookMatcher as HookMatcher
    from .options import AgentDefinition as AgentDefinition
    from .options import OpenAgenticOptions as OpenAgenticOptions
    from .permissions.gate import PermissionGate as PermissionGate
    from .providers.openai import OpenAIProvider as OpenAIProvider
    from .providers.openai_compatible import OpenAICompatibleProvider as OpenAICompatibleProvider
    from .sessions.memory import MemorySessionStore as MemorySessionStore
    from .sessions.store import FileSessionStore as FileSessionStore
    from .tools.base import Tool as Tool
    from .tools.base import ToolContext as ToolContext
    from .tools.function import tool as tool

_HOMES = {
    "AgentDefinition": "options",
    "FileSessionStore": "sessions.store",
    "HookDecision": "hooks.models",
    "HookEngine": "hooks.engine",
    "HookMatcher": "hooks.models",
    "MemorySessionStore": "sessions.memory",
    "OpenAICompatibleProvider": "providers.openai_compatible",
    "OpenAIProvider": "providers.openai",
    "OpenAgentSdkError": "errors",
    "OpenAgenticOptions": "options",
    "PermissionGate": "permissions.gate",
    "RunResult": "api",
    "Tool": "tools.base",
    "ToolContext": "tools.base",
    "query": "api",
    "run": "api",
    "tool": "tools.function",
}

__all__ = [
    "AgentDefinition",
    "FileSessionStore",
    "HookDecision",
    "HookEngine",
    "HookMatcher",
    "MemorySessionStore",
    "OpenAICompatibleProvider",
    "OpenAIProvider",
    "OpenAgentSdkError",
    "OpenAgenticOptions",
    "PermissionGate",
    "RunResult",
    "Tool",
    "ToolContext",
    "__version__",
    "query",
    "run",
    "tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
