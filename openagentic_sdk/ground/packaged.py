"""Files of data that come with the package, also where it runs from inside of a zip (`openagentic-sdk bundle`)."""

from __future__ import annotations

import os
from typing import Any


def read_packaged(module: Any, name: str) -> str:
    """The text of the file `name` in the folder of a module, which gives its `__spec__`.

    It is what `pkgutil.get_data` does, whose module is slow to load.
    """
    data: bytes = module.loader.get_data(os.path.join(os.path.dirname(module.origin), name))
    return data.decode("utf-8")
