"""Add an allow rule to a project's own, uncommitted settings file.

What stands in the file besides that rule keeps its value and its order. A file that cannot be understood is refused, never
replaced, and nothing is written through a link that leads out of the project.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

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
    try:
        _check_place(path, root)
        settings = _read(path, root)
        allowed = _allowed(settings, path)
        if rule in allowed:
            return False
        allowed.append(rule)
        _write(path, json.dumps(settings, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OptionsError):
            raise
        raise OptionsError(f"the rule {rule!r} cannot be kept in {path}: {error}") from error
    return True


def _check_place(path: str, root: str) -> None:
    real = os.path.realpath(path)
    if not is_within(real, root):
        raise OptionsError(f"{path} leads to {real}, outside of {root}: make it a file of the project")


def _read(path: str, root: str) -> dict[str, Any]:
    if not os.path.lexists(path):
        return {}
    text = read_bytes(path, boundary=root, max_bytes=MAX_SETTINGS_BYTES).decode("utf-8-sig")
    settings = json.loads(text) if text.strip() else {}
    if not isinstance(settings, dict):
        raise OptionsError(f"{path} is no JSON object: correct it before a rule can be kept there")
    return settings


def _allowed(settings: dict[str, Any], path: str) -> list[Any]:
    """The list of allow rules, made where it is missing."""
    permissions = settings.setdefault("permissions", {})
    allowed = permissions.setdefault("allow", []) if isinstance(permissions, dict) else None
    if not isinstance(allowed, list):
        raise OptionsError(f"permissions.allow in {path} is no list: correct it before a rule can be kept there")
    return allowed


def _write(path: str, text: str) -> None:
    """Replace the file whole: a reader sees the old one or the new one."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    write_durably(SystemDisk(), target, text.encode(), mode=mode)
