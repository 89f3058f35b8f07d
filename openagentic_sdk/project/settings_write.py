"""Add an allow rule to a project's own, uncommitted settings file.

What stands in the file besides that rule keeps its value and its order. A file that cannot be understood is refused, never
replaced, and nothing is written through a link that leads out of the project.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ..disk import SystemDisk, write_durably
from ..errors import OptionsError
from ..skills.files import is_within, read_bytes
from .settings import MAX_SETTINGS_BYTES

LOCAL_SETTINGS = os.path.join(".claude", "settings.local.json")


def add_allow_rule(project_dir: str | os.PathLike[str], rule: str) -> bool:
    """Put a rule at the end of `permissions.allow`; False when it stands there already.

    Raises `OptionsError` when the file says something else than settings, lies outside of the project or cannot be written.
    """
    root = os.path.realpath(project_dir)
    path = os.path.join(root, LOCAL_SETTINGS)
    real = os.path.realpath(path)
    if not is_within(real, root):
        raise OptionsError(f"{path} leads to {real}, outside of {root}: make it a file of the project")
    try:
        text = ""
        if os.path.lexists(path):
            text = read_bytes(path, boundary=root, max_bytes=MAX_SETTINGS_BYTES).decode("utf-8-sig")
        settings = json.loads(text) if text.strip() else {}
        if not isinstance(settings, dict):
            raise OptionsError(f"{path} is no JSON object: correct it before a rule can be kept there")
        permissions = settings.setdefault("permissions", {})
        allowed = permissions.setdefault("allow", []) if isinstance(permissions, dict) else None
        if not isinstance(allowed, list):
            raise OptionsError(f"permissions.allow in {path} is no list: correct it before a rule can be kept there")
        if rule in allowed:
            return False
        allowed.append(rule)
        written = json.dumps(settings, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        target = Path(real)
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        write_durably(SystemDisk(), target, written.encode(), mode=mode)
    except OptionsError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise OptionsError(f"the rule {rule!r} cannot be kept in {path}: {error}") from error
    return True
