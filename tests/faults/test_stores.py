"""Every effect on a store that is no directory is interrupted, before and after it happens.

What an interruption leaves is judged as in the rest of this folder: each element is old or new, a
reader that finds the array finds all of it, the same call again completes it, and nothing of the run
is left.
"""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores import Capability
from shardwrite.stores.zarr_store import ZarrStore

OLD = np.arange(1, 20 * 30 + 1, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}
REGION = np.s_[3:14, :20]


class Interrupted(ZarrStore):
    """A store that counts its effects, and is interrupted at one of them."""

    def __init__(self, store, capabilities):
        super().__init__(store, capabilities)
        self.log = {"n": 0, "at": -1, "after": False, "error": Killed}

    def interrupt(self, at, *, after, error=Killed):
        self.log.update(n=0, at=at, after=after, error=error)

    def put_object(self, name, data):
        self.effect(lambda: ZarrStore.put_object(self, name, data))

    def remove_object(self, name):
        self.effect(lambda: ZarrStore.remove_object(self, name))

    def effect(self, happen):
        log = self.log
        number, log["n"] = log["n"], log["n"] + 1
        if number == log["at"] and not log["after"]:
            raise log["error"]
        happen()
        if number == log["at"]:
            raise log["error"]


def source(values):
    return da.from_array(values, chunks=(7, 30))


def write(store):
    source(-OLD).to_sharded_zarr(store, name="g/x", source_id="new", **SIZES)


def replace(store):
    source(-OLD).to_sharded_zarr(store, name="g/x", mode="w", source_id="new", **SIZES)


def update(strategy):
    def run(store):
        new = source(-OLD[REGION])
        new.to_sharded_zarr(store, name="g/x", region=REGION, strategy=strategy, source_id="new")

    return run


def append(store):
    source(-OLD[:7]).to_sharded_zarr(store, name="g/x", region="append", source_id="new")


def erase(store):
    shardwrite.erase(store, np.s_[:10], name="g/x")


def compact(store):
    shardwrite.compact(store, name="g/x")


def stream(store):
    """A stream cannot be resumed: whoever comes next writes all of its slices again."""
    n = shardwrite.open_sharded(store, "g/x").shape[0] - 20
    with shardwrite.ShardWriter(store, name="g/x") as writer:
        for row in -OLD[n:7]:
            writer.append(row)
            if writer.shape[0] in (22, 25):
                writer.flush()


WIDE = np.concatenate([OLD, -OLD[:7]])
CHANGED = OLD.copy()
CHANGED[REGION] *= -1
ERASED = OLD.copy()
ERASED[:10] = 0
WORK = {
    "write": (write, None, -OLD),
    "replace": (replace, OLD, -OLD),
    "update": (update("fixed-order"), OLD, CHANGED),
    "update by appending": (update("append-only"), OLD, CHANGED),
    "append": (append, OLD, WIDE),
    "erase": (erase, OLD, ERASED),
    "compact": (compact, OLD, OLD),
    "stream": (stream, OLD, WIDE),
}


def some_of(works, *quick):
    """All of them, of which only some are quick tests."""
    return [work if work in quick else pytest.param(work, marks=pytest.mark.long) for work in works]


def prepared(work):
    memory = MemoryStore()
    if WORK[work][1] is not None:
        x = source(OLD)
        x.to_sharded_zarr(memory, name="g/x", **SIZES)
        if work == "compact":
            for _ in range(2):
                x[:, :5].to_sharded_zarr(
                    memory, name="g/x", region=np.s_[:, :5], strategy="append-only"
                )
    return memory, Interrupted(memory, {Capability.ATOMIC, Capability.SNAPSHOT})


def n_effects(work):
    _, store = prepared(work)
    WORK[work][0](store)
    return store.log["n"]


def check_readers(memory, old, new):
    """Whoever finds the array finds each element old or new, and no other."""
    try:
        array = shardwrite.open_sharded(memory, "g/x")
    except SpecError:
        assert old is None or old.shape == new.shape, "only a run that makes the array hides it"
        return
    found = array[...]
    np.testing.assert_array_equal(found, zarr.open_array(memory, path="g/x")[...])
    wanted = np.zeros(new.shape, new.dtype) if old is None else np.zeros_like(found)
    if old is not None:
        wanted[: len(old)] = old[: len(found)]
    assert ((found == new[: len(found)]) | (found == wanted)).all()


def interrupt(work, at, *, after, error=Killed, again=None):
    memory, store = prepared(work)
    run, old, new = WORK[work]
    beside = seams.state_beside(store, "g/x")
    store.interrupt(at, after=after, error=error)
    with dask.config.set(scheduler="sync"), pytest.raises(error):
        run(store)
    if work not in ("write", "replace"):
        check_readers(memory, old, new)
    else:
        check_whole(memory, old, new)
    store.interrupt(-1, after=False)
    (again or run)(store)
    return memory, beside


def check_whole(memory, old, new):
    """A run that makes an array shows the old one, the new one, or none."""
    try:
        found = shardwrite.open_sharded(memory, "g/x")[...]
    except SpecError:
        return
    wanted = [new] if old is None else [old, new]
    assert any(np.array_equal(found, values) for values in wanted)


def check_end(memory, beside, new):
    np.testing.assert_array_equal(zarr.open_array(memory, path="g/x")[...], new)
    report = shardwrite.verify(memory, name="g/x", deep=True)
    assert report.is_good
    assert report.expected_by == "receipt"
    assert not beside.exists()


@pytest.mark.parametrize(
    "after", [pytest.param(False, marks=pytest.mark.long), True], ids=["before", "after"]
)
@pytest.mark.parametrize("work", some_of(WORK, "update"))
def test_an_interruption_at_every_effect(work, after):
    n = n_effects(work)
    assert n >= 3
    for at in range(n):
        memory, beside = interrupt(work, at, after=after)
        check_end(memory, beside, WORK[work][2])


@pytest.mark.long
@pytest.mark.parametrize("work", some_of(WORK, "update by appending"))
def test_a_passing_error_at_every_effect(work):
    """Shards are tried again by the task; where a document fails, the same call goes on."""
    error = StoreError("slow down", key="", errno=5)
    n_ended = 0
    for at in range(n_effects(work)):
        memory, store = prepared(work)
        beside = seams.state_beside(store, "g/x")
        store.interrupt(at, after=False, error=error)
        try:
            WORK[work][0](store)
        except StoreError:
            n_ended += 1
            store.interrupt(-1, after=False)
            WORK[work][0](store)
        if beside.exists():  # the array was whole, and only the end of the run failed
            assert shardwrite.verify(store, name="g/x", deep=True).is_good
            WORK[work][0](store)
        check_end(memory, beside, WORK[work][2])
    assert n_ended <= 12


@pytest.mark.parametrize(
    "work",
    some_of(["update", "update by appending", "append", "erase", "compact"], "update"),
)
def test_an_update_is_given_up_after_every_effect(work):
    for at in range(n_effects(work)):
        memory, store = prepared(work)
        beside = seams.state_beside(store, "g/x")
        run, old, new = WORK[work]
        store.interrupt(at, after=True)
        with dask.config.set(scheduler="sync"), pytest.raises(Killed):
            run(store)
        store.interrupt(-1, after=False)
        shardwrite.abandon(store, name="g/x")
        check_readers(memory, old, new)
        assert shardwrite.verify(memory, name="g/x", deep=True).is_good
        assert not beside.exists()


@pytest.mark.long
@pytest.mark.parametrize("work", ["write", "replace"])
def test_a_new_array_is_started_over_after_every_effect(work):
    def again(store):
        source(OLD + 5).to_sharded_zarr(
            store, name="g/x", mode="w", restart=True, source_id="other", **SIZES
        )

    for at in range(n_effects(work)):
        memory, beside = interrupt(work, at, after=True, again=again)
        check_end(memory, beside, OLD + 5)
