"""An agent's notes for its later sessions: their storage, and the tool that reads and writes them."""

from .store import MemoryFolders
from .tool import MemoryTool

__all__ = ["MemoryFolders", "MemoryTool"]
