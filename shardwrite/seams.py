"""What wings bring, by kind and name; a wing is imported when something of it is asked for.

The front (`shardwrite/__init__.py`) registers what this package has. The core asks for it by name,
and so knows no wing. What tells that something of a wing is needed is data in the core: the name of
a file, a key of a document, the kind of a record. So the core refuses what it cannot handle, also
where a wing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from shardwrite.errors import SpecError

_known: dict[tuple[str, str], str] = {}


def register(kind: str, entries: Iterable[tuple[str, str]]) -> None:
    """Add things of one kind: the name of each, and where it lies, as ``module:attribute``."""
    _known.update({(kind, name): where for name, where in entries})


def registered(kind: str) -> list[str]:
    """Names of all things of a kind, in the order in which they were registered."""
    return [name for known, name in _known if known == kind]


def resolve(kind: str, name: str) -> Any:
    """Import what was registered.

    - Raises LookupError if nothing of this kind and name was registered, or the part of the package
      that has it cannot be imported.
    """
    try:
        module, attribute = _known[kind, name].split(":")
    except KeyError:
        raise LookupError(f"nothing of the kind {kind!r} is called {name!r}") from None
    try:
        return getattr(import_module(module), attribute)
    except ImportError as error:
        raise LookupError(f"{module} cannot be imported ({error})") from error


def find(kind: str, name: str) -> Any | None:
    """As `resolve`; None if nothing of this kind and name was registered."""
    return resolve(kind, name) if (kind, name) in _known else None


def all_of(kind: str) -> Iterator[Any]:
    """Import everything of a kind, but what lies in missing parts of the package."""
    for name in registered(kind):
        try:
            found = resolve(kind, name)
        except LookupError:
            continue
        yield found


def needed(kind: str, name: str, what: str, *, field: str, value: object) -> Any:
    """As `resolve`, for what a user has given.

    - `what`: what that is, such as ``"a ZIP file"``.
    - Raises SpecError if it cannot be imported.
    """
    try:
        return resolve(kind, name)
    except LookupError as error:
        raise SpecError(
            f"it is {what}, and {error.args[0]}", field=field, value=value, remedy=REMEDY
        ) from error


REMEDY = "install all of shardwrite"
"""What to do where a part of the package is missing."""
