"""The tool `Code`: Python of the model's in a sandbox, which calls the other tools as functions.

Nothing of this room is loaded until somebody takes the tool.
"""

from .place import CodeLimits as CodeLimits
from .tool import CodeTool as CodeTool
