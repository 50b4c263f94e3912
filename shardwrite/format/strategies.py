"""Write strategies: their protocol, their names, and the two of this package.

A strategy places encoded inner chunks in a shard. It returns numbers, never bytes: a sequence of
ranks and, from the encoded sizes, offsets. It is chosen for each run and never enters the metadata
(sharding codec specification, "Binary shard format").

Where shards are files of another format, too, the strategy also has a method ``framing``, which
gives a `format.frame.Framing`.

To add one, derive a class from `Strategy`, which has defaults for all members but `name` and
`label`. Another class that has all of these members will do, too. An instance can be given as
``strategy=``. With `shardwrite.register_strategy`, the class is also known by its name, which a run
needs that is continued by other processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.checks import flag, share
from shardwrite.codecs.documents import JSON
from shardwrite.errors import SpecError
from shardwrite.format.order import (
    BY_CHUNK_ID,
    KEEP,
    ORDER_ALIASES,
    ORDERS,
    Placement,
    Ranks,
    Revision,
    Stored,
    canonical_order,
    permutation,
    place,
)
from shardwrite.grid import Shape
from shardwrite.seams import STRATEGIES, is_known, is_same_class, resolve, where
from shardwrite.seams import registered as registered_in

__all__ = ["AppendOnly", "FixedOrder", "Strategy", "as_strategy", "rewritten"]


# ---- The protocol of a strategy


class Strategy(Protocol):
    """Rule for the sequence and the offsets of inner chunks in a shard.

    By default, inner chunks lie end to end in row-major order, and an update writes each shard
    anew. `to_dict` and `from_dict` are those of a frozen dataclass.
    """

    __slots__ = ()

    name: ClassVar[str]
    """Name under which the class is registered, such as ``append-only``."""

    @property
    def label(self) -> str:
        """Short, readable name of this instance.

        It enters the plan's digest. So instances that write different bytes need different labels.
        """

    @property
    def streaming_order(self) -> str:
        """Order of inner chunks where one task encodes the whole shard; row-major by default."""
        return "C"

    def sequence(
        self,
        chunks_per_shard: Shape,
        units: Sequence[Ranks],  # noqa: ARG002 (some strategies need it)
    ) -> Ranks:
        """Ranks of inner chunks in the sequence in which they lie in the shard.

        Parameters
        ----------
        chunks_per_shard : tuple of int
            Shape of the shard's grid of inner chunks.
        units : sequence of numpy.ndarray of int64
            For each unit, in the plan's order, the row-major ranks of its inner chunks. By default
            they do not matter, and all chunks lie in the `streaming_order`.
        """
        return permutation(chunks_per_shard, self.streaming_order)

    def lay_out(
        self,
        nbytes: Ranks,
        sequence: Ranks,
        base: int,
        fixed_nbytes: int | None,  # noqa: ARG002 (some strategies need it)
    ) -> Placement:
        """Place inner chunks in a new shard.

        Parameters
        ----------
        nbytes : numpy.ndarray of int64, shape (n,)
            Encoded size of each inner chunk by rank, in bytes; negative where it is empty.
        sequence : numpy.ndarray of int64
            Result of :meth:`sequence`.
        base : int
            Size of the index in bytes if it comes first, else 0.
        fixed_nbytes : int, optional
            Encoded size of every inner chunk, if it does not depend on values. None also where the
            array itself is new.
        """
        return place(nbytes, sequence, base)

    def streams(self, fixed_nbytes: int | None) -> bool:  # noqa: ARG002 (some strategies need it)
        """Whether inner chunks can be written while the shard is being encoded.

        They can if `lay_out` places them end to end, in the sequence of `streaming_order`.

        Parameters
        ----------
        fixed_nbytes : int, optional
            The argument that `lay_out` would get.
        """
        return True

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """Decide how to update a shard that exists, and where its inner chunks go.

        By default the shard is written anew, with all inner chunks end to end.

        Parameters
        ----------
        old : Stored
            Layout of the shard before the update.
        nbytes : numpy.ndarray of int64, shape (n,)
            New encoded size of each inner chunk by rank, in bytes; -1 where the chunk becomes
            empty, `KEEP` where it does not change.
        sequence : numpy.ndarray of int64
            Result of :meth:`sequence`.
        base : int
            Size of the index in bytes if it comes first, else 0.
        """
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        return rewritten(place(merged, sequence, base, old), merged, base)

    @property
    def in_place(self) -> bool:
        """Whether existing shards are changed in place, instead of being replaced."""
        return False

    @property
    def replaces(self) -> bool:
        """Whether an update writes every shard anew, without anything of the old object."""
        return not self.in_place

    @property
    def depends_on_cut(self) -> bool:
        """Whether the bytes depend on how tasks are cut; the cut then enters the plan's digest."""
        return False

    def to_dict(self) -> Mapping[str, JSON]:
        """All parameters of this instance, as values that JSON can hold."""
        return asdict(cast("Any", self))

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Self:
        """Make an instance from the result of :meth:`to_dict`, which may come from a file.

        Raises
        ------
        SpecError, TypeError, ValueError
            If the parameters are not valid.
        """
        return cls(**parameters)


def rewritten(placed: Placement, nbytes: Ranks, base: int) -> Revision:
    """Revision that writes a shard anew; `nbytes` are the sizes of all chunks after the update."""
    end = base + placed.data_nbytes
    return Revision("rewrite", placed.offsets, nbytes, placed.sequence, 0, end)


# ---- Strategies by name, and the check of one that somebody else wrote


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
        A class with the members of `shardwrite.format.strategies.Strategy`.

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
            remedy="give a class with the members of shardwrite.format.strategies.Strategy",
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
    if name not in _REGISTERED and is_known("strategy", name):
        register_strategy(resolve("strategy", name))
    return _REGISTERED.get(name)


def strategy_opener(name: str) -> Callable[[Mapping[str, Any]], Strategy]:
    """What makes a strategy that a record names; see `shardwrite.seams.open_ref`."""
    try:
        found = registered(name)
    except (LookupError, SpecError) as error:
        raise LookupError(
            f"cannot be loaded ({error}); mend the installation of the package that names it in an "
            f"entry point of the group {STRATEGIES!r}"
        ) from error
    if found is None:
        raise LookupError(
            "is not registered in this process; import the module that registers it, or install a "
            f"package that names it in an entry point of the group {STRATEGIES!r}"
        )
    return lambda parameters: check_strategy(found.from_dict(parameters))


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
    for fact in ("in_place", "replaces", "depends_on_cut"):
        if not isinstance(getattr(strategy, fact), bool):
            raise _refused(value, f"its {fact} is neither True nor False")
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
    """Whether a name is free, or belongs to this class."""
    place = where("strategy", name)
    if place is not None:
        return place == f"{cls.__module__}:{cls.__qualname__}"
    return is_same_class(_REGISTERED.get(name), cls)


def _refused(value: object, why: str) -> SpecError:
    return SpecError(
        f"no valid write strategy: {why}",
        field="strategy",
        value=value,
        remedy="see shardwrite.format.strategies.Strategy for what its members are",
    )


# ---- The strategies of this package


@register_strategy
@dataclass(frozen=True, slots=True)
class FixedOrder(Strategy):
    """Strategy that writes inner chunks in a fixed order, whatever order they arrive in.

    Parameters
    ----------
    order : {"C", "F", "morton"}
        Row-major, column-major or Morton order. The names of zarr-python are also accepted:
        ``"lexicographic"``, ``"colexicographic"`` and ``"unordered"`` (no preference, here
        row-major).
    in_place : bool
        Update existing shards in place, which is not atomic for readers. A new inner chunk
        overwrites the old one if it fits there and into the unused bytes behind it, and otherwise
        goes after the end. If all inner chunks have the same encoded size, shards that an update
        writes anew keep a place for every inner chunk. Empty inner chunks have a place, too.
    max_unused : float
        Fraction of unused bytes, from 0 to 1, above which an update in place writes the shard anew
        instead. Above the same fraction of empty inner chunks, no places are kept for them.

    Raises
    ------
    SpecError
        If the order is not known, `in_place` is neither True nor False, or `max_unused` is not a
        number from 0 to 1.

    Examples
    --------
    >>> FixedOrder("lexicographic")
    FixedOrder(order='C', in_place=False, max_unused=0.25)
    """

    name: ClassVar[str] = "fixed-order"
    order: str = "C"
    in_place: bool = False
    max_unused: float = 0.25

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", canonical_order(self.order))
        object.__setattr__(self, "in_place", flag("in_place", self.in_place))
        share("max_unused", self.max_unused)

    @property
    def label(self) -> str:
        """Readable name, such as ``fixed-order (C)`` or ``fixed-order (C, in place)``."""
        return f"fixed-order ({self.order}{', in place' if self.in_place else ''})"

    @property
    def streaming_order(self) -> str:
        """Order of inner chunks, the same as `order`."""
        return self.order

    def to_dict(self) -> Mapping[str, JSON]:
        """See :meth:`Strategy.to_dict`."""
        return {**asdict(self), "max_unused": float(self.max_unused)}

    def lay_out(
        self, nbytes: Ranks, sequence: Ranks, base: int, fixed_nbytes: int | None
    ) -> Placement:
        """See :meth:`Strategy.lay_out`."""
        return self._laid_out(nbytes, sequence, base, fixed_nbytes, None)

    def streams(self, fixed_nbytes: int | None) -> bool:
        """See :meth:`Strategy.streams`; False where inner chunks may have places kept for them."""
        return not self.in_place or fixed_nbytes is None

    def _laid_out(
        self,
        nbytes: Ranks,
        sequence: Ranks,
        base: int,
        fixed_nbytes: int | None,
        old: Stored | None,
    ) -> Placement:
        if self.in_place and fixed_nbytes is not None and (nbytes < 0).mean() <= self.max_unused:
            homes = _homes(sequence, base, fixed_nbytes)
            return Placement(homes, sequence[nbytes[sequence] >= 0], fixed_nbytes * len(nbytes))
        return place(nbytes, sequence, base, old)

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """See :meth:`Strategy.revise`."""
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        if self.in_place:
            end_of_old = old.index_span[0] or old.total_nbytes
            has_room = nbytes <= _room(old, end_of_old)
            spots = np.where(has_room, old.offsets, _free_homes(old, sequence, base))
            changed = _in_place(old, nbytes, merged, sequence, spots, end_of_old)
            n_unused = changed.end - base - int(merged[merged > 0].sum())
            if (
                n_unused <= self.max_unused * changed.end
                and int(nbytes[nbytes > 0].sum()) <= old.total_nbytes // 2
            ):
                return changed  # where most bytes are new, a new shard costs no more
        placement = self._laid_out(merged, sequence, base, old.fixed_nbytes, old)
        return rewritten(placement, merged, base)


def _room(old: Stored, end: int) -> Ranks:
    """Bytes from the beginning of each inner chunk to what lies behind it, and -1 if it is empty.

    Behind it lies another inner chunk, or the end of them all.
    """
    is_solid = old.nbytes > 0
    begins = np.append(np.sort(old.offsets[is_solid]), end)
    following = np.minimum(np.searchsorted(begins, old.offsets, side="right"), len(begins) - 1)
    return np.where(is_solid, begins[following] - old.offsets, old.nbytes)


def _homes(sequence: Ranks, base: int, fixed_nbytes: int) -> Ranks:
    """Home of each inner chunk: its offset in a shard with room for all, if sizes are fixed."""
    homes = np.empty(len(sequence), dtype=np.int64)
    homes[sequence] = base + fixed_nbytes * np.arange(len(sequence))
    return homes


def _free_homes(old: Stored, sequence: Ranks, base: int) -> Ranks:
    """Homes of inner chunks where no chunk lies yet, and -1 elsewhere.

    All are -1 if inner chunks have no fixed size.
    """
    if old.fixed_nbytes is None:
        return np.full(len(old.nbytes), -1, dtype=np.int64)
    homes, size = _homes(sequence, base, old.fixed_nbytes), old.fixed_nbytes
    occupied = np.sort(old.offsets[old.nbytes >= 0])
    position = np.searchsorted(occupied, homes)
    edge = np.iinfo(np.int64).max // 2
    after, before = np.append(occupied, edge)[position], np.append(-edge, occupied)[position]
    end = old.index_span[0] or old.total_nbytes
    is_free = (after >= homes + size) & (before + size <= homes) & (homes + size <= end)
    return np.where(is_free, homes, -1)


def _in_place(
    old: Stored, nbytes: Ranks, merged: Ranks, sequence: Ranks, spots: Ranks, end_of_old: int
) -> Revision:
    """Put new inner chunks into their spots, and those without one after the end of the object.

    - `old`: layout of the shard before the update.
    - `nbytes`: int64, shape (n,). As in :meth:`Strategy.revise`.
    - `merged`: int64, shape (n,). Encoded size of each inner chunk after the update, by rank.
    - `spots`: int64, shape (n,). Offset in the old object for each inner chunk, or -1 if there is
      no room for it.
    - `end_of_old`: end of the inner chunks if nothing goes after the end of the object.
    """
    new = sequence[nbytes[sequence] >= 0]
    appended = new[spots[new] < 0]
    ends = old.total_nbytes + np.cumsum(nbytes[appended])
    offsets = np.where(nbytes >= 0, spots, old.offsets)
    offsets[appended] = ends - nbytes[appended]
    end = int(ends[-1]) if len(appended) else end_of_old
    return Revision("in place", offsets, merged, new, old.total_nbytes, end)


@register_strategy
@dataclass(frozen=True, slots=True)
class AppendOnly(Strategy):
    """Strategy that appends units in the plan's order, with row-major order inside each unit.

    An update clones the shard, appends new inner chunks to the clone and puts it in the place of
    the shard.

    Parameters
    ----------
    in_place : bool
        Append to the shard itself. Until the append is finished, readers may find no whole index.

    Raises
    ------
    SpecError
        If `in_place` is neither True nor False.

    Examples
    --------
    >>> AppendOnly().label
    'append-only'
    """

    name: ClassVar[str] = "append-only"
    replaces: ClassVar[bool] = False
    depends_on_cut: ClassVar[bool] = True  # as units are what a task encodes
    in_place: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_place", flag("in_place", self.in_place))

    @property
    def label(self) -> str:
        """Readable name: ``append-only`` or ``append-only (in place)``."""
        return f"append-only{' (in place)' if self.in_place else ''}"

    def sequence(
        self,
        chunks_per_shard: Shape,  # noqa: ARG002 (other strategies need it)
        units: Sequence[Ranks],
    ) -> Ranks:
        """See :meth:`Strategy.sequence`; the result depends on the units only."""
        return np.concatenate([np.empty(0, np.int64), *units])

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """See :meth:`Strategy.revise`."""
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        if self.in_place:
            no_spots = np.full(len(nbytes), -1, dtype=np.int64)
            return _in_place(old, nbytes, merged, sequence, no_spots, old.total_nbytes)
        new = sequence[nbytes[sequence] >= 0]
        # The clone does not need the old index at its end.
        kept_nbytes = old.total_nbytes if base else old.index_span[0]
        ends = kept_nbytes + np.cumsum(nbytes[new])
        offsets = old.offsets.copy()
        offsets[new] = ends - nbytes[new]
        return Revision(
            "append", offsets, merged, new, kept_nbytes, int(ends[-1]) if len(new) else kept_nbytes
        )


def strategy_from_label(label: str) -> Strategy:
    """Strategy of this package with a given label; its `max_unused` is the default.

    Plans that older versions have left on disk have nothing but the label.

    Examples
    --------
    >>> strategy_from_label("fixed-order (F)")
    FixedOrder(order='F', in_place=False, max_unused=0.25)
    """
    orders = sorted(set(ORDER_ALIASES.values()))
    for in_place in (False, True):
        known: list[Strategy] = [
            AppendOnly(in_place=in_place),
            *(FixedOrder(order, in_place=in_place) for order in orders),
        ]
        for strategy in known:
            if strategy.label == label:
                return strategy
    raise ValueError(f"no strategy has the label {label!r}")


def as_strategy(value: object) -> Strategy:
    """Strategy for a user's argument: an instance, a strategy's name, or an order's name.

    After a colon follows a text that the strategy understands: ``hdf5:raw/data`` says how the
    dataset is called.

    Examples
    --------
    >>> as_strategy("morton")
    FixedOrder(order='morton', in_place=False, max_unused=0.25)
    >>> as_strategy("hdf5:raw/data").label
    'hdf5 (raw/data)'
    """
    if isinstance(value, str):
        if value in ORDER_ALIASES:
            return FixedOrder(value)
        name, colon, text = value.partition(":")
        try:
            cls = registered(value)
            from_text: Any = getattr(registered(name), "from_text", None) if colon else None
        except LookupError as error:
            raise SpecError(
                f"the strategy cannot be loaded ({error})",
                field="strategy",
                value=value,
                remedy="mend the installation of the package that has it",
            ) from error
        if cls is not None:
            return check_strategy(cls())
        if from_text is not None:
            return check_strategy(from_text(text))
    elif not isinstance(value, type) and hasattr(value, "lay_out"):
        return check_strategy(value)
    # The strategy that belongs to a shard format is not among those that users can choose.
    choices = sorted({*_REGISTERED, *registered_in("strategy")} - {BY_CHUNK_ID})
    raise SpecError(
        "no such write strategy",
        field="strategy",
        value=value,
        remedy=f"use one of {choices}, FixedOrder(order=...), AppendOnly(), Hdf5(), an "
        f"order of inner chunks, which is one of {sorted(ORDER_ALIASES)}, or import the module "
        "that registers the strategy",
    )
