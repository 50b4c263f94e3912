"""zarr-python's state machines of stores on `transformer_view`; `test_transformer` runs this file.

Few of the keys and arrays that the machines choose by themselves have chunks in shards. So they
choose among others here.
"""

from __future__ import annotations

from functools import partial

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import obstore
import zarr.testing.strategies as theirs
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from zarr.abc.store import OffsetByteRequest, RangeByteRequest
from zarr.storage import MemoryStore, ObjectStore

from shardwrite.legacy.view import TransformerView

_NAMES = st.sampled_from(["a", "c", "0", "7", "c1", "a.b"])
_TAILS = st.sampled_from(
    ["zarr.json", "c", "c/0", "c/5"]
    + [f"c/{i}/{j}" for i in (0, 1, 10) for j in (0, 3)]
    + [f"c{i}.{j}" for i in (0, 1, 2) for j in (2, 3)]
)


@st.composite
def keys(draw, *, max_num_nodes=None):
    """Keys of chunks in shards, and of others."""
    return "/".join([*draw(st.lists(_NAMES, max_size=2)), draw(_TAILS)])


theirs.keys = keys
theirs.np_array_and_chunks = partial(
    theirs.np_array_and_chunks,
    arrays=npst.arrays("u2", npst.array_shapes(min_dims=1, max_dims=2, max_side=6)),
)

from zarr.testing.stateful import (  # noqa: E402 (their rules take their strategies at once)
    ZarrHierarchyStateMachine,
    ZarrStoreStateMachine,
)


class Counted(TransformerView):
    """The view, which counts the shards that it writes."""

    n_shards = 0

    async def _put(self, shard, chunks):
        Counted.n_shards += 1
        await super()._put(shard, chunks)


def check(machine, counts, n_examples, below=None):
    below = MemoryStore() if below is None else below
    Counted.n_shards = 0
    run_state_machine_as_test(
        lambda: machine(Counted(below, counts)),
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=25,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(machine.__name__, counts, type(below).__name__, Counted.n_shards)
    assert Counted.n_shards > 30


class Raising(ObjectStore):
    """A store that raises an error for a whole call if one value is missing, as a directory does.

    That of zarr-python fails also where a part lies behind the end of an object.
    """

    async def get(self, key, prototype, byte_range=None):
        whole = await super().get(key, prototype)
        if whole is None or byte_range is None:
            return whole
        if isinstance(byte_range, RangeByteRequest):
            return whole[byte_range.start : byte_range.end]
        if isinstance(byte_range, OffsetByteRequest):
            return whole[byte_range.offset :]
        return whole[max(0, len(whole) - byte_range.suffix) :]

    async def get_partial_values(self, prototype, key_ranges):
        found = [await self.get(key, prototype, part) for key, part in key_ranges]
        if any(value is None for value in found):
            raise FileNotFoundError
        return found


def raising():
    """The keys above are not all those of files: a directory cannot hold both ``c`` and ``c/0``."""
    return Raising(obstore.store.MemoryStore())


def test_stores():
    check(ZarrStoreStateMachine, (2, 2), 40)
    check(ZarrStoreStateMachine, (2, 2), 40, raising())


def test_hierarchies():
    for counts in ((2, 3), (2,)):
        check(ZarrHierarchyStateMachine, counts, 15)
    check(ZarrHierarchyStateMachine, (2, 3), 10, raising())
