"""Write strategies by name, and the check of a strategy that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from shardwrite.errors import SpecError
from shardwrite.format.order import BY_CHUNK_ID, ORDER_ALIASES, ORDERS
from shardwrite.format.strategy import Strategy
from shardwrite.seams import installed, resolve, where
from shardwrite.seams import registered as registered_in

ENTRY_POINTS = "shardwrite.strategies"
"""Group of the entry points by which installed packages make strategies known."""

_DECLARED = {name: value for name, value in vars(Strategy).items() if not name.startswith("_")}
_MEMBERS = ("name", *_DECLARED)
_METHODS = ("name", *(name for name in _DECLARED if not isinstance(_DECLARED[name], property)))
_REGISTERED: dict[str, type[Strategy]] = {}
_Class = TypeVar("_Class", bound=type[Any])


def register_strategy(cls: _Class) -> _Class:
    """Make a write strategy known by its name.

    The name can then be given as ``strategy=``. A process that continues a run, such as one that
    writes a part, finds the strategy of the plan by this name. So the class must be registered in
    each of these processes, by the import of the module that does it. An installed package can name
    the class in an entry point of the group ``shardwrite.strategies`` instead, or as
    ``strategy.name`` in the group ``shardwrite.wings``. Entry points are looked at only if a name
    is not known.

    Parameters
    ----------
    cls : type
        A class with the members of `shardwrite.format.strategy.Strategy`.

    Returns
    -------
    type
        The same class, so that this function can be used as a decorator.

    Raises
    ------
    SpecError
        If a member is missing, or the name is not a text or belongs to another class or an order.

    Examples
    --------
    >>> import shardwrite
    >>> @shardwrite.register_strategy
    ... class Backwards(shardwrite.FixedOrder):
    ...     name = label = "backwards"
    ...
    ...     def sequence(self, chunks_per_shard, units):
    ...         return super().sequence(chunks_per_shard, units)[::-1]
    ...
    ...     def streams(self, fixed_nbytes):
    ...         return False
    """
    missing = _lacks(cls, _METHODS)
    if not isinstance(cls, type) or missing:
        raise SpecError(
            f"no write strategy: it lacks {missing}" if missing else "no class",
            field="strategy",
            value=cls,
            remedy="give a class with the members of shardwrite.format.strategy.Strategy",
        )
    name = cls.name
    is_free = isinstance(name, str) and name and name not in ORDER_ALIASES
    if not is_free or not _is_own(name, cls):
        raise SpecError(
            "not a free name", field="name", value=name, remedy="give the strategy another name"
        )
    _REGISTERED[name] = cls
    return cls


def registered(name: str) -> type[Strategy] | None:
    """Class that is registered under a name; None if there is none.

    If the name is not known, wings and the entry points of installed packages are asked for it.
    """
    if name not in _REGISTERED and where("strategy", name) is not None:
        register_strategy(resolve("strategy", name))
    if name not in _REGISTERED:
        from importlib.metadata import entry_points  # slow, and seldom needed

        for entry in entry_points(group=ENTRY_POINTS, name=name):
            register_strategy(entry.load())
        if name not in _REGISTERED and name in installed("strategy"):
            register_strategy(resolve("strategy", name))
    return _REGISTERED.get(name)


def registered_names() -> list[str]:
    """Names of the registered strategies that users can choose.

    The strategy that belongs to a shard format is not among them.
    """
    return sorted({*_REGISTERED, *registered_in("strategy")} - {BY_CHUNK_ID})


def check_strategy(value: object) -> Strategy:
    """Check that an object is a write strategy."""
    missing = _lacks(value, _MEMBERS)
    if missing:
        raise _refused(value, f"it lacks {missing}")
    strategy = cast("Strategy", value)
    if not isinstance(strategy.name, str) or not strategy.name:
        raise _refused(value, "its name is not a text")
    if not _is_own(strategy.name, type(strategy)):
        raise _refused(value, f"the name {strategy.name!r} belongs to another class")
    if not isinstance(strategy.label, str) or not strategy.label:
        raise _refused(value, "its label is not a text")
    if strategy.streaming_order not in ORDERS:
        raise _refused(value, "its streaming_order is not the name of an order")
    for flag in ("in_place", "replaces", "depends_on_cut"):
        if not isinstance(getattr(strategy, flag), bool):
            raise _refused(value, f"its {flag} is neither True nor False")
    if strategy.in_place and strategy.replaces:
        raise _refused(value, "it changes shards in place and also replaces them")
    try:
        parameters = dict(strategy.to_dict())
        again = type(strategy).from_dict(json.loads(json.dumps(parameters)))
        is_whole = dict(again.to_dict()) == parameters and again.label == strategy.label
    except (LookupError, TypeError, ValueError) as error:
        raise _refused(value, f"its parameters cannot be stored ({error})") from None
    if not is_whole:
        raise _refused(value, "from_dict does not give back what to_dict tells")
    return strategy


def _lacks(value: object, members: Sequence[str]) -> list[str]:
    """Members that an object or a class does not have."""
    return sorted(name for name in members if not hasattr(value, name))


def _is_own(name: str, cls: type[Any]) -> bool:
    """Whether a name is free, or belongs to this class.

    A cell of a notebook that runs again, or a module that is reloaded, makes its class anew.
    """
    place = where("strategy", name)
    if place is not None:
        return place == f"{cls.__module__}:{cls.__qualname__}"
    known = _REGISTERED.get(name)
    return known is None or (known.__module__, known.__qualname__) == (
        cls.__module__,
        cls.__qualname__,
    )


def _refused(value: object, why: str) -> SpecError:
    return SpecError(
        f"no valid write strategy: {why}",
        field="strategy",
        value=value,
        remedy="see shardwrite.format.strategy.Strategy for what its members are",
    )
