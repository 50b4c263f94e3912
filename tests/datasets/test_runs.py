"""All variables of a dataset are one run: begun, interrupted, resumed, published and replaced."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed, contents, without_receipts
from tiers import some

import shardwrite
from shardwrite import SpecError

xr = pytest.importorskip("xarray")

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import killed  # noqa: E402
from harness import struck  # noqa: E402

from shardwrite.datasets import encode  # noqa: E402

SIZES = killed.SIZES


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def small(offset=0, names="abc", **attrs):
    x = da.arange(12, chunks=5).reshape(4, 3) + offset
    return xr.Dataset(
        {name: (("t", "x"), x + n) for n, name in enumerate(names)}, {"t": [1, 2, 3, 4]}, attrs
    )


def stop(*_):
    raise KeyboardInterrupt


def begin(ds, root, **how):
    """A run that has written all shards, and published nothing."""
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            ds.shardwrite.to_zarr(root, **how)


def check(root, ds, **how):
    with xr.open_zarr(root, **how) as found:
        xr.testing.assert_identical(found.load(), ds.compute())


def n_shards(root):
    """Shards that are committed."""
    return sum(path.is_file() and path.name[0] != "." for path in root.rglob("c/*/*"))


def kill_and_go_on(tmp_path, *, n_variables, n_kills, seed):
    """Kill a program at random as often as is asked, then let it end."""
    root, whole = tmp_path / "killed.zarr", tmp_path / "whole.zarr"
    chance, resumed_from = random.Random(seed), []
    for _ in range(n_kills):
        before = n_shards(root)
        more = chance.randrange(1, max(2, (6 * n_variables - before) // 3))
        words = [killed.__file__, root, str(n_variables), "0.005"]
        program = subprocess.Popen([sys.executable, *words])
        try:
            while n_shards(root) < before + more and program.poll() is None:
                time.sleep(0.01)
        finally:
            program.kill()
            program.wait()
        resumed_from.append(n_shards(root))
        assert not list(root.rglob("zarr.json")), "nothing is visible before all is there"
    assert resumed_from == sorted(resumed_from)
    assert 0 < resumed_from[-1] < 6 * n_variables, "the kills interrupted something"
    words = [killed.__file__, root, str(n_variables), "0.005"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    # A kill costs what was in flight, and at most a second of commits, however many these are.
    assert 0 < int(done.stdout) <= resumed_from[-1] + 1
    ds = killed.dataset(n_variables, 0)
    ds.shardwrite.to_zarr(whole, **SIZES)
    assert without_receipts(root) == without_receipts(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.zarr", "whole.zarr"]
    check(root, ds)


@pytest.mark.long
def test_ten_variables_are_killed_and_made_again(tmp_path):
    kill_and_go_on(tmp_path, n_variables=10, n_kills=2, seed=1)


@pytest.mark.long
@pytest.mark.campaign
def test_forty_variables_are_killed_many_times(tmp_path):
    kill_and_go_on(tmp_path, n_variables=40, n_kills=3, seed=2)


@pytest.mark.long
@pytest.mark.parametrize("name", ["12 variables", "append to 12 variables"])
def test_many_variables_are_killed_at_random(tmp_path, name):
    words = name, "--kills", "6", "--seed", "0"
    assert struck(tmp_path, "kill at any moment", *words)["kills"] >= 6


def test_there_is_one_run_for_all_variables(tmp_path):
    root = tmp_path / "x.zarr"
    begin(small(), root)
    runs = [*tmp_path.glob("x.zarr.shardwrite/together/run-*")]
    assert len(runs) == 1
    assert sorted(p.name for p in runs[0].iterdir() if p.name.isdecimal()) == ["0", "1", "2", "3"]
    assert len([*runs[0].glob("journal-*")]) == 1
    assert not list(root.rglob("zarr.json"))
    assert small().shardwrite.to_zarr(root).n_resumed_shards == 4
    check(root, small())
    assert small().shardwrite.to_zarr(root).n_resumed_shards == 4, "it was finished before"
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.parametrize(("is_append", "most"), [(False, 10.5), (True, 14.5)])
def test_syncs_of_one_more_variable(tmp_path, monkeypatch, is_append, most):
    """Besides those of its shards: two of its documents in the store, and the rest for its plan.

    Signs of life may add a few to any run.
    """
    n_synced, written, sync = [0], [], os.fsync

    def counted(fd):
        n_synced[0] += 1
        return sync(fd)

    def note(writer):
        written.extend([writer.path] if writer.path.endswith(".json") else [])

    def steps(n_variables, first, last):
        t = np.arange(4 * first, 4 * last)
        x = da.from_array(t * 1.0, chunks=6)
        return xr.Dataset({f"v{n}": ("time", x + n) for n in range(n_variables)}, {"time": t})

    def syncs(n_variables, n_shards):
        root = tmp_path / f"{n_variables}-{n_shards}.zarr"
        how = {"append_dim": "time", "shards": {"time": 4}, "chunks": {"time": 2}}
        start = n_shards if is_append else 0
        if is_append:
            steps(n_variables, 0, n_shards).shardwrite.to_zarr(root, **how)
        n_synced[0] = 0
        written.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted)
            seams.before(patch, "rename a file", note)
            steps(n_variables, start, start + n_shards).shardwrite.to_zarr(root, **how)
        assert len(written) == 2 * (n_variables + 1) + 1, "documents and receipts, and the root"
        return n_synced[0]

    of_one, of_five = (syncs(10, n) - syncs(2, n) for n in (1, 5))
    of_a_shard = (of_five - of_one) / 4
    assert 0 < (of_one - of_a_shard) / 8 <= most


def test_the_root_is_written_once_with_all_documents(tmp_path, monkeypatch):
    paths = []
    seams.before(monkeypatch, "rename a file", lambda writer: paths.append(writer.path))
    small(names="abcdefgh").shardwrite.to_zarr(tmp_path / "x.zarr")
    documents = [path for path in paths if path.endswith("zarr.json")]
    assert documents[-1] == str(tmp_path / "x.zarr/zarr.json")
    assert len(documents) == len(set(documents)) == 10


def test_a_root_is_written_twice_however_many_arrays_are_replaced(tmp_path, monkeypatch):
    """They leave its list together, before the first one is replaced, and enter it together."""
    root, listed = tmp_path / "x.zarr", []
    small(names="abcdefgh").shardwrite.to_zarr(root)
    publish = shardwrite.place.directory.Directory.write

    def note(place, leaf, data, **how):
        if place.path == root and leaf == "zarr.json":
            listed.append([*json.loads(data)["consolidated_metadata"]["metadata"]])
        return publish(place, leaf, data, **how)

    monkeypatch.setattr(shardwrite.place.directory.Directory, "write", note)
    new = small(5, names="abcdefgh")
    new.shardwrite.to_zarr(root, mode="w")
    assert listed == [[], sorted(new.variables)]
    check(root, new)


def test_a_root_is_read_as_often_for_any_number_of_arrays_that_are_replaced(tmp_path, monkeypatch):
    n_opened, really = [], os.open
    for names in ("ab", "abcdefgh"):
        root = tmp_path / f"{names}.zarr"
        small(names=names).shardwrite.to_zarr(root)
        paths = []

        def note(path, *how, paths=paths, **more):
            paths.append(path)
            return really(path, *how, **more)

        monkeypatch.setattr(os, "open", note)
        small(5, names=names).shardwrite.to_zarr(root, mode="w")
        n_opened.append(sum(str(path) == str(root / "zarr.json") for path in paths))
    assert n_opened[0] == n_opened[1] > 0


def test_work_that_variables_share_is_done_once(tmp_path):
    done = []

    def note(block):
        done.append(1)
        return block

    x = da.ones((4, 3), chunks=2).map_blocks(note, dtype="f8", meta=np.empty((0, 0)))
    ds = xr.Dataset({"a": (("t", "x"), x + 1), "b": (("t", "x"), x * 2)})
    ds.shardwrite.to_zarr(tmp_path / "x.zarr")
    assert len(done) == 4


@pytest.mark.long
def test_variables_enter_a_dataset_of_xarray_together(monkeypatch):
    """One by one, each would cost more, the more there are."""
    calls, really = [], xr.Dataset.assign

    def note(*given, **how):
        calls.append(given)
        return really(*given, **how)

    monkeypatch.setattr(xr.Dataset, "assign", note)
    counts = set()
    for names in ("ab", "abcdefgh"):
        ds = small(names=names).astype("f8")
        large = xr.Variable(("t", "z"), np.zeros((4, 50_000)))
        ds = xr.Dataset({**ds.variables, **{f"{name}2": large for name in names}})
        packed = {name: {"dtype": "i4", "scale_factor": 1.0} for name in names}
        calls.clear()
        ds.shardwrite.plan(encoding=packed, keep_bits={f"{name}2": 5 for name in names})
        counts.add(len(calls))
    assert len(counts) == 1


def test_what_exists_is_refused_and_replaced(tmp_path):
    root = tmp_path / "x.zarr"
    small(title="old", more=1).shardwrite.to_zarr(root)
    before = contents(root)
    for other in (small(5, title="old", more=1), small(title="new"), small(names="xyz")):
        with pytest.raises(SpecError, match="exists there") as refused:
            other.shardwrite.to_zarr(root)
        assert refused.value.fields["field"] == "store"
        assert "mode" in str(refused.value)
    with pytest.raises(SpecError, match="'c' in it is nothing of this dataset"):
        small(names="ab").shardwrite.to_zarr(root, mode="w")
    assert contents(root) == before
    small(5, title="new").shardwrite.to_zarr(root, mode="w")
    check(root, small(5, title="new"))
    check(root, small(5, title="new"), consolidated=False)
    more = small(5, names="abcd", title="newer")
    begin(more, root, mode="w")
    assert more.shardwrite.to_zarr(root, mode="w").n_resumed_shards == 5
    check(root, more)
    check(root, more, consolidated=False)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


def test_attributes_are_replaced_where_nothing_else_is_new(tmp_path):
    root = tmp_path / "x.zarr"
    for group in (None, "g"):
        how = {"mode": "w", "source_id": "1", "group": group}
        small(title="old").shardwrite.to_zarr(root / str(group), **how)
        result = small(title="new").shardwrite.to_zarr(root / str(group), **how)
        assert result.n_resumed_shards == result.n_shards
        check(root / str(group), small(title="new"), group=group, consolidated=group is None)


def test_groups_of_one_store(tmp_path):
    root = tmp_path / "x.zarr"
    small(0).shardwrite.to_zarr(root, group="one")
    small(5).shardwrite.to_zarr(root, group="two/deep")
    with pytest.raises(SpecError, match="exists there"):
        small(5).shardwrite.to_zarr(root)
    check(root, small(0), group="one")
    check(root, small(5), group="two/deep")
    listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert {"one", "one/a", "two", "two/deep", "two/deep/c"} <= set(listed)


def test_consolidated_metadata_as_they_are_asked_for(tmp_path):
    small().shardwrite.to_zarr(tmp_path / "without.zarr", consolidated=False)
    assert "consolidated_metadata" not in json.loads(
        (tmp_path / "without.zarr/zarr.json").read_text()
    )
    check(tmp_path / "without.zarr", small(), consolidated=False)
    small().shardwrite.to_zarr(tmp_path / "with.zarr", consolidated=True)
    check(tmp_path / "with.zarr", small(), consolidated=True)
    zarr.create_group(tmp_path / "plain.zarr")
    with pytest.raises(SpecError, match="lists no arrays"):
        small().shardwrite.to_zarr(tmp_path / "plain.zarr", group="g", consolidated=True)
    small().shardwrite.to_zarr(tmp_path / "plain.zarr", group="g")
    check(tmp_path / "plain.zarr", small(), group="g", consolidated=False)
    for how in ({"mode": "a"}, {"mode": "r+"}):
        with pytest.raises(SpecError, match="lists no arrays"):
            small(5).shardwrite.to_zarr(
                tmp_path / "plain.zarr", group="g", consolidated=True, **how
            )
        check(tmp_path / "plain.zarr", small(), group="g", consolidated=False)
        small(5).shardwrite.to_zarr(tmp_path / "with.zarr", consolidated=True, **how)
        check(tmp_path / "with.zarr", small(5), consolidated=True)


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_it_is_begun_now_and_computed_later(tmp_path, mode):
    root = tmp_path / "x.zarr"
    if mode == "w":
        small(9, title="old").shardwrite.to_zarr(root)
    later = small(title="new").shardwrite.to_zarr(root, compute=False, mode=mode)
    (result,) = dask.compute(later)
    assert [*result.variables] == ["a", "b", "c", "t"]
    check(root, small(title="new"))


def test_one_variable_later(tmp_path):
    ds = xr.Dataset({"a": ("x", da.arange(3))})
    assert ds.shardwrite.to_zarr(tmp_path / "x.zarr", compute=False).compute().n_shards == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", some(["w-", "w"], "w-"))
def test_whatever_document_it_dies_before_the_same_call_ends_it(tmp_path, mode):
    """Nobody opens a group that lacks arrays, and in the end all is as if it had never died."""
    old, new = small(9, title="old"), small(title="new")
    for k in itertools.count():
        root = tmp_path / f"{k}.zarr"
        if mode == "w":
            old.shardwrite.to_zarr(root, group="g")
        try:
            with killed.documents_written(k):
                new.shardwrite.to_zarr(root, group="g", mode=mode, source_id="new")
        except Killed:
            is_whole = False
        else:
            is_whole = True
        if not is_whole and mode == "w-" and (root / "g" / "zarr.json").exists():
            check(root, new, group="g", consolidated=False)
        new.shardwrite.to_zarr(root, group="g", mode=mode, source_id="new")
        check(root, new, group="g", consolidated=False)
        listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
        assert set(listed) == {"g", "g/a", "g/b", "g/c", "g/t"}
        assert listed["g"]["attributes"] == {"title": "new"}
        if is_whole:
            assert k > 8
            break
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{n}.zarr" for n in range(k + 1)}


@pytest.mark.long
def test_two_programs_make_the_same_call_at_once(tmp_path):
    root = tmp_path / "x.zarr"
    words = [sys.executable, killed.__file__, root, "6", "0.02"]
    programs = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [program.communicate(timeout=120)[1] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
    check(root, killed.dataset(6, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.long
def test_two_workers_write_it(tmp_path):
    root, ds = tmp_path / "x.zarr", killed.dataset(6, 0)
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        result = ds.shardwrite.to_zarr(root, **SIZES)
    assert len({w for v in result.variables.values() for w in v.peak_nbytes_by_process}) == 2
    check(root, ds)


def test_what_memory_it_takes_is_refused_by_the_name_of_the_variable(tmp_path):
    ds = killed.dataset(3, 0)
    with pytest.raises(shardwrite.PlanError, match=r"variable 'v00' with dimensions \(time, x\)"):
        ds.shardwrite.to_zarr(tmp_path / "x.zarr", memory_limit="200kB", **SIZES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "each"), [({}, 0), ({"mode": "w"}, 3), ({"mode": "w", "source_id": "a"}, 0)]
)
def test_how_often_a_call_reads_the_root(tmp_path, monkeypatch, how, each):
    """Its document is long, and is not parsed for every variable again and again."""
    read, counts = shardwrite.stores.looking.opened, []
    for names in ("abc", "abcdefgh"):
        root = tmp_path / f"{names}.zarr"
        small(names=names).shardwrite.to_zarr(root, **how)
        with monkeypatch.context() as patch:
            n_read = []

            def counted(path, *args, root=root, n_read=n_read, **more):
                n_read.extend([1] * (str(path) == str(root / "zarr.json")))
                return read(path, *args, **more)

            for module in [*sys.modules.values()]:
                if getattr(module, "opened", None) is read:
                    patch.setattr(module, "opened", counted)
            small(names=names).shardwrite.to_zarr(root, **how)
        counts.append(len(n_read))
    assert 0 < counts[0] < 40
    assert counts[1] - counts[0] <= 5 * each


def test_an_error_in_a_task_names_the_variable(tmp_path):
    """The values of one of them do not fit the times that they are to be."""

    def late(block):
        return block + np.timedelta64(1, "ns")

    ds = small()
    times = da.from_array(np.arange("2000-01-01", "2000-01-05", dtype="M8[D]").astype("M8[ns]"))
    ds["when"] = ("t", times.map_blocks(late, dtype="M8[ns]"))
    ds["when"].encoding = {"units": "hours since 2000-01-01", "dtype": "i4"}
    with pytest.raises(ValueError, match=r"precision|faithfully|units") as error:
        ds.shardwrite.to_zarr(tmp_path / "x.zarr")
    notes = " ".join(error.value.__notes__)
    assert "region [0:4] of when" in notes


def test_a_failing_task_names_no_other_variable_and_the_same_call_goes_on(tmp_path):
    root, fails = tmp_path / "x.zarr", [True]

    def fail(block):
        if fails[0]:
            raise OSError("not this time")
        return block

    ds = small()
    ds["c"] = ds["c"].copy(
        data=ds["c"].data.map_blocks(fail, dtype=int, meta=np.empty((0, 0), int))
    )
    how = {"source_id": "it"}
    with pytest.raises(OSError, match="not this time"):
        ds.shardwrite.to_zarr(root, **how)
    assert not list(root.rglob("zarr.json"))
    fails[0] = False
    ds.shardwrite.to_zarr(root, **how)
    check(root, small())


def test_files_without_a_name_go_on_after_an_interruption(tmp_path):
    """Nothing names the values in them, so they are told by dtype and chunks, with a warning."""
    pytest.importorskip("scipy")
    values = np.random.default_rng(0).normal(size=(300, 1000))
    source = io.BytesIO(xr.Dataset({"v": (("t", "x"), values)}).to_netcdf(engine="scipy"))
    root = tmp_path / "x.zarr"
    lazy = xr.open_dataset(source, engine="scipy")
    begin(lazy, root)
    with pytest.warns(UserWarning, match="Nothing names its source"):
        assert lazy.shardwrite.to_zarr(root).n_resumed_shards == 1
    check(root, lazy)
    told = r'v is kept, as an earlier call.*Nothing names its source.*mode="w"'
    with pytest.warns(UserWarning, match=told):
        assert lazy.shardwrite.to_zarr(root).n_resumed_shards == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        lazy.shardwrite.to_zarr(root, mode="w")


def make_source(path, engine, offset):
    """A file or a store of packed values, which are too many for one chunk."""
    packed = {"dtype": "i4", "scale_factor": 0.5, "_FillValue": -1}
    values = np.arange(600_000.0).reshape(600, 1000) + offset
    ds = xr.Dataset({"v": (("t", "x"), values, {}, packed)})
    if engine.startswith("zarr"):
        ds.to_zarr(path, zarr_format=2 if engine == "zarr2" else 3, mode="w", consolidated=False)
    else:
        ds.to_netcdf(path, engine=engine)


ENGINES = ["netcdf4", "h5netcdf", "scipy", "zarr", "zarr2", "shardwrite"]


@pytest.mark.parametrize("engine", ENGINES)
def test_values_of_a_file_are_named_by_the_file(tmp_path, engine):
    """Its path, size and time tell them from others, and what is selected and how it is decoded."""
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine.rstrip("2")))
    source, root = tmp_path / "source.nc", tmp_path / "x.zarr"
    kind = "zarr" if engine == "shardwrite" else engine

    def opened(**how):
        return xr.open_dataset(source, engine=engine.rstrip("2"), **how)

    make_source(source, kind, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with opened() as lazy:
            begin(lazy.isel(t=slice(300)), root)
        with opened() as lazy:
            first = lazy.isel(t=slice(300))
            for _ in range(2):
                assert first.shardwrite.to_zarr(root).n_resumed_shards == 1
            check(root, first)
            with pytest.raises(SpecError, match="an array exists there, of another run"):
                lazy.isel(t=slice(300, 600)).shardwrite.to_zarr(root)
        with opened(mask_and_scale=False) as raw, pytest.raises(SpecError, match="exists there"):
            raw.isel(t=slice(300)).shardwrite.to_zarr(root)
        make_source(source, kind, 7)
        with opened() as lazy, pytest.raises(SpecError, match="an array exists there, of another"):
            lazy.isel(t=slice(300)).shardwrite.to_zarr(root)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells of open files")
@pytest.mark.parametrize("engine", ["netcdf4", "scipy"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_is_replaced_while_it_is_open_names_nothing(tmp_path, engine, moved):
    """Whoever has it open reads the old values, and so they have not the name of the new ones."""
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    source, root = tmp_path / "source.nc", tmp_path / "x.zarr"
    make_source(source, engine, 0)
    with xr.open_dataset(source, engine=engine) as old:
        make_source(tmp_path / "new.nc", engine, 7)
        if moved:
            source.rename(tmp_path / "old.nc")
        (tmp_path / "new.nc").replace(source)
        old.shardwrite.to_zarr(root)
        check(root, old)
    with (
        xr.open_dataset(source, engine=engine) as new,
        pytest.raises(SpecError, match="an array exists there, of another run"),
    ):
        new.shardwrite.to_zarr(root)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells of open files")
def test_open_files_are_listed_once_for_a_file(tmp_path, monkeypatch):
    pytest.importorskip("netCDF4")
    listed, listing = [], encode.names_in
    monkeypatch.setattr(encode, "names_in", lambda path: listed.append(path) or listing(path))
    values = np.arange(200_000.0).reshape(200, 1000)
    fields = {f"v{n}": (("t", "x"), values + n) for n in range(5)}
    xr.Dataset(fields).to_netcdf(tmp_path / "source.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "source.nc", engine="netcdf4") as lazy:
        lazy.shardwrite.plan()
    assert len(listed) == 1


@pytest.mark.long
def test_stores_of_zarr(tmp_path):
    memory = zarr.storage.MemoryStore()
    small(title="it").shardwrite.to_zarr(memory)
    check(memory, small(title="it"))
    objects = {}
    small(title="it").shardwrite.to_zarr(objects)
    check(objects, small(title="it"))
    assert "a/c/0/0" in objects
    group = zarr.open_group(tmp_path / "x.zarr", mode="w").create_group("inner")
    small(title="it").shardwrite.to_zarr(group, group="deep")
    check(tmp_path / "x.zarr", small(title="it"), group="inner/deep", consolidated=False)


def test_groups_without_arrays_are_made_at_the_end(tmp_path, monkeypatch):
    """The root lists them from its first moment; a call that was killed before is made again."""
    root = tmp_path / "x.zarr"
    tree = xr.DataTree.from_dict(
        {"/a": small(), "/b": xr.Dataset(attrs={"n": 1}), "/b/c": xr.Dataset()}
    )
    monkeypatch.setattr("shardwrite.datasets.write.replace_document", stop)
    with pytest.raises(KeyboardInterrupt):
        tree.shardwrite.to_zarr(root)
    xr.testing.assert_identical(xr.open_datatree(root, engine="zarr").load(), tree.compute())
    assert not (root / "b").exists()
    monkeypatch.undo()
    assert tree.shardwrite.to_zarr(root).n_resumed_shards == 4
    for consolidated in (True, False):
        found = xr.open_datatree(root, engine="zarr", consolidated=consolidated)
        xr.testing.assert_identical(found.load(), tree.compute())
    with pytest.raises(SpecError, match="exists there"):
        xr.DataTree.from_dict({"/a": small(3), "/b": xr.Dataset()}).shardwrite.to_zarr(root)
    other = xr.DataTree.from_dict({"/b": small(), "/a/t": xr.Dataset()})
    before = contents(root)
    with pytest.raises(SpecError, match="something stands where the tree has a group"):
        other.shardwrite.to_zarr(root, mode="w")
    assert contents(root) == before


def test_empty_groups_enter_what_is_listed_above_them(tmp_path):
    root = tmp_path / "x.zarr"
    small().shardwrite.to_zarr(root)
    tree = xr.DataTree.from_dict({"/a": small(), "/b": xr.Dataset(attrs={"n": 1})})
    tree.shardwrite.to_zarr(root, group="inner")
    for consolidated in (True, False):
        found = xr.open_datatree(root, engine="zarr", group="inner", consolidated=consolidated)
        xr.testing.assert_identical(found.load(), tree.compute())


@pytest.mark.parametrize("where", ["group", "variables", "tree", "append"])
def test_a_group_document_that_nobody_could_read_is_refused_before_the_run(tmp_path, where):
    """Attributes of a group, or what it lists of its variables, are too large together."""
    note, path = {"note": "x" * 40_000}, tmp_path / "d.zarr"
    small = xr.Dataset({"v": (("t", "x"), np.ones((2, 2)))})
    dataset = {
        "group": small.assign_attrs(note),
        "variables": xr.Dataset({name: ("t", [1.0], note) for name in "ab"}),
        "tree": xr.DataTree.from_dict({"/": small.assign_attrs(note), "/k": small}),
        "append": small.assign_attrs(note),
    }[where]
    how = {"append_dim": "t"} if where == "append" else {}
    if how:
        small.shardwrite.to_zarr(path)
    before = contents(tmp_path)
    with dask.config.set({"shardwrite.read.limit": "60 kB" if where == "variables" else "32 kB"}):
        with pytest.raises(SpecError, match=r"the group would have .* bytes, .*read\.limit"):
            dataset.shardwrite.to_zarr(path, **how)
        assert contents(tmp_path) == before
    dataset.shardwrite.to_zarr(path, **how)
    if where != "tree":
        expected = xr.concat([small, small], "t").assign_attrs(note) if how else dataset
        xr.testing.assert_identical(xr.open_zarr(path).compute(), expected)
