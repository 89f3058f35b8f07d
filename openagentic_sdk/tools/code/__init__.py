"""The tool `Code`: Python written by the model, run in a sandbox, that calls the other tools as functions.

This package is imported only if the tool is used.
"""

from .place import CodeLimits as CodeLimits
from .tool import CodeTool as CodeTool
