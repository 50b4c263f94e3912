"""What wings bring, by kind and name; a wing is imported when something of it is asked for.

The front (`shardwrite/__init__.py`) registers what this package has. The core asks for it by name,
and so knows no wing. What is not known is looked for in the entry points of installed packages:
those of the group ``shardwrite.wings``, such as ``"command.count" = "my_package:count"``. So each
process finds it, also a worker and one that writes a part. These are the kinds that a package can
add, and what lies there:

- ``command``: a command of click;
- ``source``: a `shardwrite.sources.Format`;
- ``shard-format``: a class for :func:`shardwrite.register_shard_format`;
- ``strategy``: a class for :func:`shardwrite.register_strategy`;
- ``operation``: a function.

A `Ref` names a strategy, a shard format or a source in a record, such as ``plan.json``. `open_ref`
opens it, in whatever process reads the record. For each kind of Ref there is an ``opener``: a
function of the name, which returns one of the parameters.

What tells that something of a wing is needed is data in the core: the name of a file, a key of a
document, the kind of a record. So the core refuses what it cannot handle, also where a wing is
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError

WINGS = "shardwrite.wings"
"""Group of the entry points by which installed packages add things."""

STRATEGIES = "shardwrite.strategies"
"""Group of entry points that are strategies, each by its name alone."""

_known: dict[tuple[str, str], str] = {}


def register(kind: str, name: str, place: str) -> None:
    """Make known where a thing of some kind and name lies, as ``module:attribute``."""
    _known[kind, name] = place


def registered(kind: str) -> list[str]:
    """Names of all things of a kind, in the order in which they were registered."""
    return [name for known, name in _known if known == kind]


def installed(kind: str) -> list[str]:
    """Names of all things of a kind that installed packages add."""
    return [name for known, name in _entry_points() if known == kind]


def is_known(kind: str, name: str) -> bool:
    """Whether a thing of some kind and name was registered, or an installed package adds it."""
    return (kind, name) in _known or (kind, name) in _entry_points()


def where(kind: str, name: str) -> str | None:
    """Where a thing lies, as ``module:attribute``; None if nothing of the name was registered."""
    return _known.get((kind, name))


@cache
def _entry_points() -> dict[tuple[str, str], str]:
    from importlib.metadata import entry_points  # slow, and seldom needed

    places = {("strategy", entry.name): entry.value for entry in entry_points(group=STRATEGIES)}
    for entry in entry_points(group=WINGS):
        kind, _, name = entry.name.partition(".")
        places[kind, name] = entry.value
    return places


def resolve(kind: str, name: str) -> Any:
    """Import what was registered, or what an installed package adds.

    - Raises LookupError if there is nothing of this kind and name, or what has it cannot be
      imported.
    """
    place = _known.get((kind, name)) or _entry_points().get((kind, name))
    if place is None:
        raise LookupError(f"nothing of the kind {kind!r} is called {name!r}")
    module, attribute = place.split(":")
    try:
        return getattr(import_module(module), attribute)
    except (AttributeError, ImportError) as error:
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


def is_same_class(known: type[Any] | None, cls: type[Any]) -> bool:
    """Whether a class may have the place of another: there is none, or it was made anew.

    A cell of a notebook that runs again, or a module that is reloaded, makes its class anew.
    """
    place = cls.__module__, cls.__qualname__
    return known is None or (known.__module__, known.__qualname__) == place


@dataclass(frozen=True, slots=True)
class Ref:
    """A thing that records name, so that other processes open the same."""

    kind: str  # for whom there is an opener
    name: str
    parameters: Mapping[str, Any]  # what JSON can hold

    def to_dict(self) -> dict[str, Any]:
        """What a record holds, in the words of Zarr; the field where it stands tells the kind."""
        return {"name": self.name, "configuration": self.parameters}


def open_ref(ref: Ref) -> Any:
    """Open what a record names.

    - Raises LookupError if this process cannot find it, and ValueError if its parameters are wrong.
    """
    opener = resolve("opener", ref.kind)(ref.name)
    try:
        return opener(ref.parameters)
    except KeyError as error:
        raise ValueError(f"the {ref.kind} {ref.name!r} lacks {error}") from error


REMEDY = "install all of shardwrite"
"""What to do where a part of the package is missing."""
