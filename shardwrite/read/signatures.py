"""Recognition of shards that are files of another format, too, which must stay so.

Strategies are not stored with an array. So an update looks at the shard itself before it changes
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from shardwrite.codecs.stages import Buffer, Ranges
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.frame import Signature, framing_of, places_of, signatures_in
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Shape
from shardwrite.stores.base import Store


class Begun:
    """An object whose first bytes were read at once; see `Ranges`.

    - `first`: its first bytes. By default they are read, as many as are looked at in most files.
    """

    def __init__(self, source: Ranges, first: Buffer | None = None, n_first: int = 0) -> None:
        self.nbytes, self._source = source.nbytes, source
        if first is None:
            first = source.read(0, min(n_first, source.nbytes))
        self._first = memoryview(first).cast("B")

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See `Ranges`."""
        if offset + nbytes <= len(self._first):
            return bytes(self._first[offset : offset + nbytes])
        left = min(nbytes, self.nbytes - offset)
        return self._source.read(offset, left) if left > 0 else b""


def magic_at(signature: Signature, metadata: ArrayMetadata, source: Ranges) -> int | None:
    """Where the magic bytes of a signature stand in an object; None if it does not have them."""
    magic = signature.magic
    if not isinstance(source, Begun):
        source = Begun(source, n_first=signature.most_block + len(magic))
    for place in places_of(signature, metadata):
        if place + len(magic) > source.nbytes:
            return None
        if source.read(place, len(magic)) == magic:
            return place
    return None


def signature_of(metadata: ArrayMetadata, source: Ranges) -> Signature | None:
    """Signature of an object of an array; None if it is a plain shard."""
    for signature in signatures_in(metadata):
        if magic_at(signature, metadata, source) is not None:
            return signature
    return None


def signature_at(metadata: ArrayMetadata, store: Store, index: Shape) -> Signature | None:
    """Signature of a shard; None also if it is not there, or cannot be read."""
    if not signatures_in(metadata):
        return None
    with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
        reader = store.open(metadata.shard_key(index))
        if reader is not None:
            stack.push(reader)
            return signature_of(metadata, reader)
    return None


def refuse_change(metadata: ArrayMetadata, strategy: Strategy, key: str, source: Ranges) -> None:
    """Refuse to change a shard that is a file of another format by a strategy that drops that."""
    signature = signature_of(metadata, source)
    if signature is None:
        return
    framing = framing_of(strategy) if strategy.name == signature.strategy else None
    if framing is None:
        raise SpecError(
            f"the shard {key!r} is also a {signature.title}, and would not be one afterwards",
            field="strategy",
            value=strategy.label,
            remedy=signature.remedy,
        )
    framing.may_replace(metadata, key, source)


def refuse_change_among(
    metadata: ArrayMetadata, strategy: Strategy, store: Store, indices: Iterable[Shape]
) -> None:
    """Refuse to change shards of which one is a file of another format; see `refuse_change`.

    A shard that cannot be read may be replaced, since no program could read it as such a file.
    """
    if not signatures_in(metadata):
        return
    for index in indices:
        key = metadata.shard_key(index)
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            reader = store.open(key)
            if reader is not None:
                stack.push(reader)
                refuse_change(metadata, strategy, key, reader)
