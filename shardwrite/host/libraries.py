"""Libraries that only some of this package needs, and that a user may not have installed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

from shardwrite.errors import not_installed


def library(name: str, extra: str, *, field: str, value: object) -> Any:
    """Import a module of a library that only some of this package needs.

    - `extra`: extra of this package that installs the library.
    - Raises SpecError if it is not installed.
    """
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise not_installed(name.partition(".")[0], extra, field=field, value=value)
