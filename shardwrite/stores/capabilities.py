"""Capabilities: what some stores can do, and how an operation asks for it."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Protocol

from shardwrite.errors import SpecError


class Capability(enum.Enum):
    """Something that a store may promise.

    The text of each member completes the sentence "this store cannot ...". The remedy says what a
    user can do instead.
    """

    ATOMIC = (
        "replace an object in one step, so that no reader ever sees a part of it",
        "write to a directory or to a bucket",
    )
    DURABLE = (
        "promise that an object survives a power cut",
        'give durability="none"',
    )
    SHARED = (
        "be used by several processes",
        "use dask's threads, or write to a directory or a bucket",
    )
    SNAPSHOT = (
        "keep an open object readable when it is replaced",
        "write while nobody reads, or to a directory",
    )
    PATCH = (
        "overwrite bytes of an object that is being written",
        'give index_location="end"',
    )
    SKIP = (
        "leave gaps in an object",
        "choose a strategy without gaps",
    )
    COPY = (
        "copy a range of one object into another",
        "choose a strategy that replaces whole shards",
    )
    EDIT = (
        "modify an object in place",
        "leave out in_place=True, so that whole shards are replaced",
    )
    EXCLUSIVE = (
        "create an object only if it is missing",
        "keep what must be created once in a directory",
    )
    CONDITIONAL = (
        "replace an object only if it is the version that was read",
        "see to it that no other program changes the array meanwhile",
    )

    def __init__(self, cannot: str, remedy: str) -> None:
        self.cannot = cannot
        self.remedy = remedy


class HasCapabilities(Protocol):
    """A store, or something else that states its capabilities."""

    @property
    def capabilities(self) -> Collection[Capability]:
        """What it can do."""


def require(
    store: HasCapabilities,
    capability: Capability,
    *,
    field: str,
    value: object,
    remedy: str | None = None,
) -> None:
    """Verify that a store has a capability.

    Parameters
    ----------
    store : Store
        The store.
    capability : Capability
        What the operation needs.
    field, value : str, object
        Argument of the operation that needs it, for instance ``"strategy"`` and
        ``AppendOnly(in_place=True)``.
    remedy : str, optional
        What the user can do instead. By default it is that of the capability.

    Raises
    ------
    SpecError
        If the store lacks the capability. The message names both the capability and the remedy.
    """
    if capability not in store.capabilities:
        raise SpecError(
            f"{type(store).__name__} cannot {capability.cannot} ({capability.name})",
            field=field,
            value=value,
            remedy=remedy or capability.remedy,
        )
