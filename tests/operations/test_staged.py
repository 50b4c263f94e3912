"""Updates that keep their values first: interrupted in either phase, given up, refused."""

from __future__ import annotations

import contextlib
import shutil
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import AppendOnly, FixedOrder, JournalError, SpecError

SHAPE, SIZES = (48, 60), {"shards": (12, 10), "chunks": (4, 5)}
VALUES = np.arange(1, 48 * 60 + 1, dtype="i4").reshape(SHAPE)
STRATEGIES = {
    "C": FixedOrder("C"),
    "F": FixedOrder("F"),
    "morton": FixedOrder("morton"),
    "append only": AppendOnly(),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
}
OTHER = VALUES % 7
EXPRESSIONS = {
    "plus one": lambda xp, y, other: y + 1,
    "flip": lambda xp, y, other: y[::-1, ::-1],
    "roll": lambda xp, y, other: xp.roll(y, 7, axis=1),
    "rows moved": lambda xp, y, other: xp.concatenate([y[11:], y[:11]]),
    "where": lambda xp, y, other: xp.where(y % 3 == 0, y, other),
    "running sum": lambda xp, y, other: y.cumsum(axis=1) % 10007,
    "less its mean": lambda xp, y, other: y - y.sum() // y.size,
    "maximum so far": lambda xp, y, other: xp.maximum(y, y[:, ::-1]),
    "doubled rows": lambda xp, y, other: xp.repeat(y[:24], 2, axis=0),
    "square transposed": lambda xp, y, other: xp.concatenate([y[:, :48].T, y[:, 48:]], axis=1),
    "clipped": lambda xp, y, other: y.clip(100, 1000),
    "of neighbours": lambda xp, y, other: (y + xp.roll(y, 1, axis=0) + xp.roll(y, -1, axis=0)) // 3,
}
FEW = "9000B"  # of memory, so that there are many groups


@pytest.fixture
def path(tmp_path):
    for name in ("x", "z"):
        shardwrite.to_sharded_zarr(VALUES, tmp_path / name, **SIZES)
    with dask.config.set(scheduler="sync"):
        yield tmp_path / "x"


class Interruption(BaseException):
    """What stops a call, as a signal does."""


class Bar:
    """What is shown the progress of both phases, and stops the call after so many reports."""

    def __init__(self, n_reports):
        self.n_left = n_reports

    def __call__(self, report):
        self.n_left -= 1
        if not self.n_left:
            raise Interruption

    def add_earlier(self, raw_nbytes):
        """What was there before."""


@contextlib.contextmanager
def interrupted_after(n_reports):
    with pytest.raises(Interruption):
        yield Bar(n_reports)


def plus_one(path, **how):
    y = shardwrite.from_sharded_zarr(path)
    return shardwrite.write_region(y + 1, path, ..., memory_limit=FEW, **how)


def n_groups_of(x, path):
    """How many reports each phase gives."""
    return shardwrite.plan_region(x, path, ..., memory_limit=FEW).partition.n_groups


def interrupt(path, phase, **how):
    """Stop the update while its values are kept, or while shards are written; how many are new."""
    n_groups = n_groups_of(shardwrite.from_sharded_zarr(path) + 1, path)
    with interrupted_after(3 if phase == 1 else n_groups + 5) as progress:
        plus_one(path, progress=progress, **how)
    found = zarr.open_array(path)[...]
    assert np.isin(found - VALUES, (0, 1)).all()
    n_new = int((found != VALUES).sum())
    assert (n_new > 0) == (phase == 2)
    assert n_new < VALUES.size
    return n_new


def nothing_beside(path):
    return not list(path.parent.glob("*.shardwrite"))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_values_are_those_of_numpy(expression, strategy, path):
    make, how = EXPRESSIONS[expression], {"strategy": STRATEGIES[strategy]}
    y, other = shardwrite.from_sharded_zarr(path), da.from_array(OTHER, chunks=(20, 60))
    made = make(da, y, other).astype("i4")
    assert made.to_sharded_zarr(path, region=..., **how).n_shards == 24
    np.testing.assert_array_equal(zarr.open_array(path)[...], make(np, VALUES, OTHER))
    assert nothing_beside(path)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["", "a", "bb", "ccc"] * 6, dtype=np.dtypes.StringDType()),
        np.arange(24).astype("M8[s]"),
        np.arange(24) % 3 == 0,
        np.arange(24) * (1 + 2j),
        np.array([0.0, -0.0, np.nan, np.inf] * 6),
        np.arange(24).astype(">i2"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_every_kind_of_values(values, tmp_path):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(values, path, shards=8, chunks=2)
    shardwrite.write_region(shardwrite.from_sharded_zarr(path)[::-1], path, ...)
    found = zarr.open_array(path)[...]
    np.testing.assert_array_equal(found, values[::-1])
    if values.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(values[::-1]))


@pytest.mark.long
def test_codecs_that_lose_something_are_applied_once(tmp_path):
    path = tmp_path / "x"
    offset = {"name": "numcodecs.fixedscaleoffset"}
    offset["configuration"] = {"offset": 0, "scale": 10, "dtype": "<f8", "astype": "<f8"}
    values = np.linspace(0, 1, 24)
    shardwrite.to_sharded_zarr(values, path, shards=8, chunks=2, filters=[offset])
    stored = zarr.open_array(path)[...]
    shardwrite.write_region(shardwrite.from_sharded_zarr(path) / 3, path, ...)
    np.testing.assert_allclose(zarr.open_array(path)[...], np.round(stored / 3, 1), atol=1e-12)


@pytest.mark.parametrize("strategy", ["C", "append only", "in place"])
@pytest.mark.parametrize("phase", [1, 2])
def test_the_same_call_goes_on(phase, strategy, path):
    how = {"strategy": STRATEGIES[strategy]}
    interrupt(path, phase, **how)
    told = []
    result = plus_one(path, progress=lambda report: told.append(report), **how)
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)
    assert nothing_beside(path)
    assert (result.n_resumed_shards > 0) == (phase == 2)
    np.testing.assert_array_equal(plus_one(path).n_resumed_shards, 0)  # it is another update now
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 2)


@pytest.mark.parametrize("strategy", ["C", "append only", "in place"])
def test_a_flip_goes_on(strategy, path):
    """Half of what it would read is changed."""

    def flip(**how):
        y = shardwrite.from_sharded_zarr(path)[::-1]
        how |= {"strategy": STRATEGIES[strategy], "memory_limit": FEW}
        return shardwrite.write_region(y, path, ..., **how)

    n_groups = n_groups_of(shardwrite.from_sharded_zarr(path)[::-1], path)
    with interrupted_after(n_groups + n_groups // 2) as progress:
        flip(progress=progress)
    n_new = (zarr.open_array(path)[...] != VALUES).mean()
    assert 0.1 < n_new < 0.9
    assert flip().n_resumed_shards > 0
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES[::-1])


@pytest.mark.long
@pytest.mark.parametrize("phase", [1, 2])
def test_it_is_given_up_in_either_phase(phase, path):
    n_new = interrupt(path, phase)
    assert shardwrite.abandon(path) == [((0, 48), (0, 60))]
    assert nothing_beside(path)
    before = zarr.open_array(path)[...]
    assert (before != VALUES).sum() == n_new
    assert shardwrite.verify(path, deep=True).is_good
    plus_one(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], before + 1)


@pytest.mark.long
@pytest.mark.parametrize("phase", [1, 2])
def test_others_wait_for_it(phase, path):
    interrupt(path, phase)
    with pytest.raises(JournalError, match="has not ended; 1 shards are in both"):
        shardwrite.write_region(0, path, np.s_[:3, :3])
    y = shardwrite.from_sharded_zarr(path)
    with pytest.raises(JournalError, match="has not ended; 24 shards are in both"):
        shardwrite.write_region(y + 2, path, ...)
    with pytest.raises(JournalError, match="Make the same call without restart"):
        plus_one(path, restart=True)
    plus_one(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)


@pytest.mark.long
def test_it_keeps_others_off_only_its_shards(path):
    y = shardwrite.from_sharded_zarr(path)
    with interrupted_after(1) as progress:
        shardwrite.write_region(y[:12] + 1, path, np.s_[:12], progress=progress)
    shardwrite.write_region(7, path, np.s_[24:36])
    shardwrite.write_region(y[:12] + 1, path, np.s_[:12])
    wanted = VALUES.copy()
    wanted[:12] += 1
    wanted[24:36] = 7
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)


@pytest.mark.long
@pytest.mark.parametrize("damage", ["a shard", "the document", "all"])
def test_values_that_are_gone_are_not_computed_again(damage, path):
    interrupt(path, 2)
    (kept,) = path.parent.glob("x.shardwrite/updates/*/run-*/staged/0")
    if damage == "a shard":
        (kept / "c/3/5").unlink()
    elif damage == "the document":
        (kept / "zarr.json").unlink()
    else:
        shutil.rmtree(kept.parent)
    before = zarr.open_array(path)[...]
    with pytest.raises(JournalError, match=r"Give .* up with abandon"):
        plus_one(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], before)
    shardwrite.abandon(path)
    assert nothing_beside(path)


def swap(path, **how):
    stores = [path, path.parent / "z"]
    arrays = [shardwrite.from_sharded_zarr(each) for each in reversed(stores)]
    arrays = [array * 2 for array in arrays]
    return shardwrite.store(arrays, stores, regions=..., memory_limit=FEW, **how)


def interrupt_swap(path):
    """Stop a swap of two arrays after some shards of both are new."""
    n_groups = n_groups_of(shardwrite.from_sharded_zarr(path) * 2, path)
    assert n_groups > 2
    with interrupted_after(3 * n_groups) as progress:
        swap(path, progress=progress)
    for name in "xz":
        found = zarr.open_array(path.parent / name)[...]
        assert np.isin(found, np.union1d(VALUES, 2 * VALUES)).all()


@pytest.mark.long
def test_of_two_arrays_the_first_one_is_given_up(path):
    interrupt_swap(path)
    shardwrite.abandon(path)
    found = {name: zarr.open_array(path.parent / name)[...] for name in "xz"}
    for _ in range(2):
        with pytest.raises(JournalError, match="Give it up, too, with abandon"):
            swap(path)
        for name in "xz":
            np.testing.assert_array_equal(zarr.open_array(path.parent / name)[...], found[name])
        assert not seams.state_beside(path).exists()
    shardwrite.abandon(path.parent / "z")
    swap(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * found["z"])
    assert nothing_beside(path)


@pytest.mark.long
def test_of_two_arrays_the_second_one_is_given_up(path):
    """Its values are still there."""
    interrupt_swap(path)
    shardwrite.abandon(path.parent / "z")
    swap(path)
    for name in "xz":
        np.testing.assert_array_equal(zarr.open_array(path.parent / name)[...], 2 * VALUES)
    assert nothing_beside(path)


@pytest.mark.long
def test_one_update_of_several_is_not_made_alone(path):
    interrupt_swap(path)
    y = shardwrite.from_sharded_zarr(path.parent / "z") * 2
    with pytest.raises(JournalError, match="has not ended"):
        shardwrite.write_region(y, path, ..., staged=True, memory_limit=FEW)
    swap(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * VALUES)


@pytest.mark.parametrize("durability", ["full", "none"])
@pytest.mark.parametrize("n_ended", [0, 1, 2])
def test_runs_of_two_arrays_end_one_after_the_other(n_ended, durability, path, monkeypatch):
    """The same call knows that all is done, and changes nothing twice, though nothing names it."""
    n = 0

    def strike(*_, **__):
        nonlocal n
        n += 1
        if n > n_ended + 2:  # those of the values come first
            raise Interruption

    with monkeypatch.context() as patch:
        seams.before(patch, "end a run", strike)
        with contextlib.suppress(Interruption):
            swap(path, durability=durability)
    if n_ended < 2:
        swap(path, durability=durability)
    for name in "xz":
        np.testing.assert_array_equal(zarr.open_array(path.parent / name)[...], 2 * VALUES)
    assert nothing_beside(path)


@pytest.mark.long
def test_a_source_without_a_name_is_told(path):
    """Chunks alone tell which call it is."""

    def source():
        return da.from_array(zarr.open_array(path), chunks=(12, 10), name=False) + 1

    def unnamed(progress=False):
        return shardwrite.write_region(source(), path, ..., memory_limit=FEW, progress=progress)

    with interrupted_after(n_groups_of(source(), path) + 2) as progress:
        unnamed(progress)
    with pytest.warns(UserWarning, match="values are taken that an interrupted call has computed"):
        unnamed()
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)


@pytest.mark.long
def test_a_source_that_fails_leaves_the_array(path):
    y = shardwrite.from_sharded_zarr(path)

    def fails(block, block_info=None):
        if block_info[0]["chunk-location"] == (3, 0):
            raise OSError("no such tape")
        return block + 1

    with pytest.raises(OSError, match="no such tape"):
        shardwrite.write_region(y.map_blocks(fails, dtype="i4"), path, ..., source_id="it")
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES)
    shardwrite.write_region(y + 1, path, ..., source_id="it")
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)


def test_wrong_input_begins_nothing(path):
    y = shardwrite.from_sharded_zarr(path)
    for wrong, why in (
        (lambda: shardwrite.write_region(y[:3], path, ...), "is not the region's"),
        (lambda: shardwrite.write_region(y + 0.5, path, ...), "cannot be cast"),
        (lambda: shardwrite.write_region(y, path, ..., memory_limit="1kB"), "memory"),
        (lambda: shardwrite.write_region(y, path, ..., staged="yes"), "staged"),
        (lambda: shardwrite.erase(path, ..., staged=True), "staged"),
    ):
        with pytest.raises((SpecError, TypeError, shardwrite.PlanError), match=why):
            wrong()
    assert nothing_beside(path)


@pytest.mark.long
def test_a_function_is_told_of_the_shards_alone(path):
    told = []
    plus_one(path, progress=lambda report: told.extend(report.shards))
    assert sorted(told) == list(range(24))


@pytest.mark.long
def test_nobody_is_warned_in_vain(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        interrupt(path, 2)
        plus_one(path)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["C", "in place"])
def test_two_workers(strategy, path):
    from distributed import Client, LocalCluster

    how = {"strategy": STRATEGIES[strategy], "source_id": "it"}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        y = shardwrite.from_sharded_zarr(path)
        shardwrite.write_region(da.roll(y, 5, axis=0), path, ..., **how)
    np.testing.assert_array_equal(zarr.open_array(path)[...], np.roll(VALUES, 5, axis=0))
    assert nothing_beside(path)


@pytest.mark.parametrize("other", ["update", "compact", "erase"])
def test_no_other_call_gives_up_the_values_that_an_update_has_kept(path, other):
    """Without them, the same call would read what it has changed."""
    interrupt(path, 2)
    x = da.from_array(VALUES, chunks=(24, 60))
    calls = {
        "update": lambda: shardwrite.write_region(x, path, ..., restart=True),
        "compact": lambda: shardwrite.compact(path, restart=True),
        "erase": lambda: shardwrite.erase(path, slice(0, 12), restart=True),
    }
    with pytest.raises(JournalError, match=r"without restart to finish it, or give it up"):
        calls[other]()
    plus_one(path)
    np.testing.assert_array_equal(zarr.open_array(path)[:48], VALUES + 1)
