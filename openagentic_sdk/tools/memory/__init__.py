"""What an agent keeps for its later sessions: where it lives, and the tool that reads and writes it."""

from .store import MemoryFolders
from .tool import MemoryTool

__all__ = ["MemoryFolders", "MemoryTool"]
