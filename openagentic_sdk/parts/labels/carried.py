"""The labels that a plan's call passes to the permission gate, stored in `caller["labels"]` of its `tool.use`.

They record what each argument was computed from, so that arguments need not be searched for in the texts of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...events import ToolUse
from ...ground.frozen import frozen
from ...ground.loose import as_list, as_mapping
from .values import leaves

# A description of a source, and the id of the call that returned it.
ValueOrigin = tuple[str, str]


@frozen
class CarriedLabels:
    """The labels of one call of a plan.

    `origins` maps places of arguments (`recipients.0`) to the untrusted sources they were computed from; `input` contains
    the arguments by place as the plan passed them. `decided` are the sources that decided whether the call is made; only
    strict plans record them. `secrets` are the names of secrets that the arguments may contain. `is_tainted` is true if the
    model had read untrusted text before it planned, so that the text it wrote itself must be searched for in trusted text.
    """

    input: Mapping[str, Sequence[Any]]
    origins: Mapping[str, Sequence[ValueOrigin]]
    decided: Sequence[ValueOrigin]
    secrets: frozenset[str]
    is_tainted: bool

    @classmethod
    def of(cls, use: ToolUse | None) -> CarriedLabels | None:
        """The labels of a plan's call; None for any other call."""
        if use is None or not is_planned(use):
            return None
        labels = as_mapping((use.caller or {}).get("labels"))
        places: dict[str, list[Any]] = {"name": [*use.input]}
        for name, argument in use.input.items():
            for place, value in leaves(argument, name, ()):
                places.setdefault(place, []).append(value)
        origins = {str(place): _origins(pairs) for place, pairs in as_mapping(labels.get("arguments")).items()}
        secrets = frozenset(map(str, as_list(labels.get("secrets"))))
        return cls(places, origins, _origins(labels.get("decided")), secrets, labels.get("tainted") is not False)

    def origins_of(self, place: str, value: Any) -> Sequence[ValueOrigin] | None:
        """The untrusted origins of an argument, empty if there are none; None if they are unknown.

        If none are recorded, they are unknown if the argument has changed since the plan passed it, or if the model may have
        written it after reading untrusted text.
        """
        origins = self.origins.get(place) or self.origins.get(place.split(".")[0]) or ()
        if origins:
            return origins
        is_same = any(type(each) is type(value) and each == value for each in self.input.get(place, ()))
        return () if is_same and not self.is_tainted else None


def is_planned(use: ToolUse) -> bool:
    """Whether a plan made the call."""
    return use.is_inside and isinstance((use.caller or {}).get("labels"), Mapping)


def _origins(pairs: Any) -> Sequence[ValueOrigin]:
    return [(str(pair[0]), str(pair[1])) for pair in as_list(pairs) if isinstance(pair, Sequence) and len(pair) == 2]
