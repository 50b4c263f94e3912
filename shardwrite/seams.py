"""What wings bring, by kind and name; a wing is imported when something of it is asked for.

The front (`shardwrite/__init__.py`) registers what this package has. The core asks for it by name,
and so knows no wing.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

_known: dict[tuple[str, str], str] = {}


def register(kind: str, entries: Iterable[tuple[str, str]]) -> None:
    """Add things of one kind: the name of each, and where it lies, as ``module:attribute``."""
    _known.update({(kind, name): where for name, where in entries})


def resolve(kind: str, name: str) -> Any:
    """Import what was registered.

    - Raises LookupError if nothing of this kind and name was registered.
    """
    try:
        module, attribute = _known[kind, name].split(":")
    except KeyError:
        raise LookupError(f"nothing of the kind {kind!r} is called {name!r}") from None
    return getattr(import_module(module), attribute)
