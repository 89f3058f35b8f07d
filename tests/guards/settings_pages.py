"""Files generated from the declarations of settings: `docs/options.md`, and the sentences for `help()` and `--help`."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from openagentic_sdk.ground.settings import Setting, settings_of
from openagentic_sdk.options import OptionGroup

from .source import PACKAGE, ROOT

PAGE = ROOT / "docs" / "options.md"
SENTENCES = ROOT / PACKAGE / "ground" / "settings.json"
GROUPS = tuple(f"options.{kind.__name__}" for kind in OptionGroup.__args__)
CLASSES = ("options.OpenAgenticOptions", "options.AgentDefinition", "permissions.gate.PermissionGate")
UNITS = {"s": "seconds", "usd": "US dollars", "depth": "levels"}
HEADING = re.compile(r" {4}# --- (.+?) -+$")
HEAD = """# Options

All options. This page is generated from [options.py](../openagentic_sdk/options.py) and
[gate.py](../openagentic_sdk/permissions/gate.py) by `python3 -m tests.guards.generated`, and a test compares the two. Every
option can be set in code. The column *also at* lists other places where it can be set: a flag of `run`, `chat` and `acp`;
`agents.toml`, under the option's own name unless another is given; *clients* of a server, which may only lower the agent's
value; settings files and environment variables. An invalid value raises an `OptionsError` that names the option.

The options under the headings `Project`, `Permissions`, `Session`, `Telemetry` and `Limits` can also be set in groups, as
values of the class of this name in `openagentic_sdk.options`, whose arguments editors can complete:
`groups=[Limits(max_steps=5), Project(cwd="shop")]` is the same as `max_steps=5, cwd="shop"`. Setting one option to two
different values raises an `OptionsError`.

```python
from openagentic_sdk import OpenAgenticOptions, OptionsError, run_sync
from openagentic_sdk.testing import ScriptedProvider

options = OpenAgenticOptions(provider=ScriptedProvider(["Hello."]), model="scripted", max_steps=-1)
try:
    run_sync(prompt="Hi", options=options)
except OptionsError as error:
    print(error)
```

```text
max_steps must be a whole number of at least 0, not -1
```

Groups instead of single settings:

```python
from openagentic_sdk.options import Limits, Project

scripted = ScriptedProvider(["Hello."])
limits, project = Limits(max_steps=5, timeout_s=60), Project(cwd=".")
options = OpenAgenticOptions(provider=scripted, model="scripted", groups=[limits, project])
print(options.max_steps, options.timeout_s, options.groups)
try:
    OpenAgenticOptions(max_steps=3, groups=[Limits(max_steps=5)])
except OptionsError as error:
    print(error)
```

```text
5 60 ()
max_steps is set twice, as 3 and by Limits(max_steps=5): remove one of them
```
"""


PLACE = re.compile(
    r"(?<!`)(--[a-z-]+|\$[A-Z_]+|[\w.]+\.(?:json|toml)|\.claude/agents)"
)  # in the words of `Doors.elsewhere`


def sentences() -> str:
    """The text of `ground/settings.json`."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for name in (*CLASSES, *GROUPS):
        headings = found[f"{PACKAGE}.{name}"] = {}
        for heading, field, sentence in _stated(_class_of(name)):
            headings.setdefault(heading, {})[field] = sentence
    return json.dumps(found, indent=1) + "\n"


def page() -> str:
    """The text of `docs/options.md`."""
    parts = [HEAD]
    for name in CLASSES:
        cls = _class_of(name)
        parts.append(f"## {cls.__name__}\n")
        last = ""
        for heading, field, sentence in _stated(cls):
            if heading != last or parts[-1].startswith("##"):
                parts += [f"### {heading}\n"] if heading else []
                parts.append("| option | accepts | default | also at | |\n|---|---|---|---|---|")
                last = heading
            parts[-1] += f"\n{_row(cls, field, settings_of(cls)[field], sentence)}"
        parts = [*parts[:-1], parts[-1] + "\n"]
    return re.sub(r"(?m)^(\|.*)\n(?=#)", r"\1\n\n", "\n".join(parts))


def _class_of(name: str) -> Any:
    module, _, cls = name.rpartition(".")
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), cls)


def _stated(cls: type) -> Iterator[tuple[str, str, str]]:
    """Each field with the heading above it and the docstring below it; inherited groups come after the class's own fields.

    A field without a docstring is an error.
    """
    yield from _stated_there(cls)
    for base in cls.__mro__[-2:0:-1]:
        yield from ((base.__name__, field, sentence) for _, field, sentence in _stated_there(base))


def _stated_there(cls: type) -> Iterator[tuple[str, str, str]]:
    lines, _ = inspect.getsourcelines(cls)
    headings = {number: found[1] for number, line in enumerate(lines, 1) if (found := HEADING.match(line.rstrip()))}
    body = ast.parse("".join(lines)).body[0].body  # type: ignore[attr-defined]
    for statement, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
            text = below.value if isinstance(below, ast.Expr) else None
            assert isinstance(text, ast.Constant) and isinstance(text.value, str), f"{name} has no docstring"
            above = [heading for number, heading in headings.items() if number < statement.lineno]
            yield above[-1] if above else "", name, " ".join(text.value.split())


def _row(cls: type, name: str, setting: Setting, sentence: str) -> str:
    accepts = "anything" if setting.check is None else setting.check(object()) or "see there"
    if setting.kind in (int, float):
        accepts += f" ({UNITS.get(name.rpartition('_')[2], name.rpartition('_')[2])})"
    doors = setting.doors
    also = [
        f"`{doors.flag}`" * bool(doors.flag),
        "`agents.toml`" * doors.toml,
        "clients" * doors.client,
        PLACE.sub(r"`\1`", doors.elsewhere),
    ]
    cells = [f"`{name}`", accepts, _default(cls, name), ", ".join(filter(None, also)), sentence]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(cls: Any, name: str) -> str:
    fields: Mapping[str, Any] = cls.__dataclass_fields__
    default, factory = fields[name].default, fields[name].default_factory
    if default is not dataclasses.MISSING:
        return f"`{default!r}`"
    return "" if factory is dataclasses.MISSING else f"`{factory()!r}`" if factory is dict else "its own"
