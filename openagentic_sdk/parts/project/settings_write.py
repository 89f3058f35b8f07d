"""Change one entry in a JSON file of a project: an allow rule in its local settings, a server in `.mcp.json`.

Everything else in the file keeps its value and order. A file that cannot be parsed is refused, never replaced, and nothing
is written through a link that leads out of the project.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import OptionsError
from ...ground.disk import SystemDisk, is_within, write_durably
from ...skills.files import read_bytes
from .settings import MAX_SETTINGS_BYTES

LOCAL_SETTINGS = os.path.join(".claude", "settings.local.json")


def add_allow_rule(project_dir: str | os.PathLike[str], rule: str) -> bool:
    """Append a rule to `permissions.allow` in the project's local settings; return False if it is already there.

    Raises `OptionsError` if the file is not a settings file, is outside the project or cannot be written.
    """

    def add(settings: dict[str, Any], path: str) -> bool:
        permissions = settings.setdefault("permissions", {})
        allowed = permissions.setdefault("allow", []) if isinstance(permissions, dict) else None
        if not isinstance(allowed, list):
            raise OptionsError(f"permissions.allow in {path} is not a list: correct it before adding a rule to it")
        if rule in allowed:
            return False
        allowed.append(rule)
        return True

    return change_json(project_dir, LOCAL_SETTINGS, add, f"the rule {rule!r}")


def change_json(
    project_dir: str | os.PathLike[str],
    name: str,
    change: Callable[[dict[str, Any], str], bool],
    what: str,
    mode: int = 0o600,
) -> bool:
    """Call `change` with the object in file `name` and the file's path; if `change` returns true, write the object.

    Return whether it did.

    `what` describes the content, for errors; `mode` is that of a new file. Raises `OptionsError` if the file is not a JSON
    object, is outside the project or cannot be written.
    """
    root = os.path.realpath(project_dir)
    path = os.path.join(root, name)
    real = os.path.realpath(path)
    if not is_within(real, root):
        raise OptionsError(f"{path} leads to {real}, outside {root}: replace it with a file in the project")
    try:
        text = ""
        if os.path.lexists(path):
            text = read_bytes(path, boundary=root, max_bytes=MAX_SETTINGS_BYTES).decode("utf-8-sig")
        data = json.loads(text) if text.strip() else {}
        if not isinstance(data, dict):
            raise OptionsError(f"{path} is not a JSON object: correct it before {what} is added to it")
        if not change(data, path):
            return False
        new_text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        target = Path(real)
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else mode
        write_durably(SystemDisk(), target, new_text.encode(), mode=mode)
    except OptionsError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionsError(f"{what} cannot be stored in {path}: {problem}") from error
    return True
