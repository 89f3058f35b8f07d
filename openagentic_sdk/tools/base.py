"""What a tool is, under the path that programs know; see `kernel.tool`."""

from ..kernel.tool import (
    Blobs,
    BlockingTool,
    PathRules,
    Questions,
    RunResources,
    Secrets,
    Services,
    SessionLog,
    Tool,
    ToolContext,
    ToolOutput,
)

__all__ = [
    "Blobs",
    "BlockingTool",
    "PathRules",
    "Questions",
    "RunResources",
    "Secrets",
    "Services",
    "SessionLog",
    "Tool",
    "ToolContext",
    "ToolOutput",
]
