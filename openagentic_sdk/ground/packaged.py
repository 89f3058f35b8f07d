"""Data files of the package, even when it runs from a zip archive (`openagentic-sdk bundle`)."""

from __future__ import annotations

import os
from typing import Any


def read_packaged(module: Any, name: str) -> str:
    """Return the text of the file `name` in the folder of a module; `module` is the module's `__spec__`.

    Equivalent to `pkgutil.get_data`, whose module is slow to import.
    """
    data: bytes = module.loader.get_data(os.path.join(os.path.dirname(module.origin), name))
    return data.decode("utf-8")
