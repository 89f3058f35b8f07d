"""The folds of all features of this package, for an agent that has them all and for readers that show everything."""

from __future__ import annotations

from ..view import Fold
from .loaded_tools import LoadedToolsFold
from .observed_files import ObservedFilesFold
from .part_states import PartStatesFold
from .skills import SkillsFold
from .subagents import SubagentsFold
from .text_commands import TextCommandsFold
from .todos import TodosFold
from .untrusted import UntrustedFold

ALL_FOLDS: tuple[type[Fold], ...] = (
    SkillsFold,
    TextCommandsFold,
    LoadedToolsFold,
    ObservedFilesFold,
    UntrustedFold,
    SubagentsFold,
    TodosFold,
    PartStatesFold,
)
