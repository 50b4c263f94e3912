"""Shapes beyond what a plan can hold: they end at once, in an error that names field, value and
remedy, and no memory is taken."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from in_time import in_time

import shardwrite
from shardwrite import PlanError, SpecError
from shardwrite.cli import main

MOST_SECONDS = 5  # on a machine that does other things; alone, none takes a second
MOST_NBYTES = 2**30


@pytest.fixture(autouse=True)
def bounded(monkeypatch):
    """An address space that ends a gigabyte above what is taken."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_NBYTES, before[1]))
    with dask.config.set(scheduler="sync"):
        yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def refused(call, *errors):
    """It is refused at once; gives the error."""
    with pytest.raises(errors or (SpecError, PlanError)) as caught, in_time(MOST_SECONDS):
        call()
    error = caught.value
    assert error.remedy
    return error


def small():
    return da.zeros(100, chunks=10, dtype="u1")


HUGE = [2**50, 2**62, 2**63, 2**64, 2**70, 10**40]


@pytest.mark.parametrize("size", HUGE, ids=lambda n: f"{n:.0e}")
@pytest.mark.parametrize("chunks", [1, "same", "auto"])
def test_shards(tmp_path, size, chunks):
    sizes = {"shards": size, "chunks": size if chunks == "same" else chunks}
    for call in (
        lambda: shardwrite.plan(small(), **sizes),
        lambda: small().to_sharded_zarr(tmp_path / "x", **sizes),
        lambda: shardwrite.prepare(small(), tmp_path / "x", shardwrite.plan(small(), **sizes)),
    ):
        error = refused(call)
        assert str(size) in str(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", HUGE, ids=lambda n: f"{n:.0e}")
@pytest.mark.parametrize("ndim", [1, 3])
@pytest.mark.parametrize(("shards", "chunks"), [(8, 4), (2**20, 2**10)])
def test_shapes_of_new_arrays(tmp_path, size, ndim, shards, chunks):
    error = refused(
        lambda: shardwrite.create(
            tmp_path / "x", (size,) * ndim, "f8", shards=shards, chunks=chunks
        ),
        SpecError,
    )
    assert error.field in ("shape", "shards")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [2**50, 2**62, 2**63 - 1])
@pytest.mark.parametrize(("shards", "chunks"), [(8, 4), (2**20, 2**10), (2**45, 2**20)])
def test_sources(tmp_path, size, shards, chunks):
    x = da.zeros(size, chunks=(size,), dtype="u1")
    for call in (
        lambda: shardwrite.plan(x, shards=shards, chunks=chunks),
        lambda: x.to_sharded_zarr(tmp_path / "x", shards=shards, chunks=chunks),
    ):
        refused(call)
    assert not list(tmp_path.iterdir())


def test_sums_beyond_64_bits(tmp_path):
    error = refused(
        lambda: shardwrite.create(tmp_path / "x", (2**40, 2**40), "f8", shards=2**27, chunks=2**14),
        SpecError,
    )
    assert error.field == "shape"
    refused(
        lambda: shardwrite.create(tmp_path / "x", (2**61,) * 32, "u1", shards=2**61, chunks=2**61),
        SpecError,
    )
    refused(lambda: shardwrite.plan(small(), shards="9" * 5000), SpecError)
    refused(lambda: shardwrite.plan(small(), memory_limit="9" * 5000 + "TB"), SpecError)


@pytest.mark.parametrize(
    "shape", [(-1,), (True,), (2.5,), ("8",), 5, None, "88", (2**63, 0)], ids=repr
)
def test_what_is_no_shape(tmp_path, shape):
    assert (
        refused(
            lambda: shardwrite.create(tmp_path / "x", shape, "u1", shards=8, chunks=4), SpecError
        ).field
        == "shape"
    )


def test_what_is_no_data_type(tmp_path):
    assert (
        refused(
            lambda: shardwrite.create(tmp_path / "x", (8,), "nosuch", shards=8, chunks=4), SpecError
        ).field
        == "dtype"
    )


@pytest.mark.parametrize("shape", [(), (0,), (8, 0), (np.int64(8), 3)], ids=repr)
def test_small_shapes_are_taken(tmp_path, shape):
    shardwrite.create(
        tmp_path / "x", shape, "u1", shards=8 if shape else (), chunks=4 if shape else ()
    )
    assert shardwrite.open_sharded(tmp_path / "x").shape == tuple(shape)
    assert shardwrite.verify(tmp_path / "x").is_good


# ---- arrays that exist

EXISTING = {
    "2^63": ((2**63 - 1,), (8,)),
    "2^50 shards": ((2**50,), (1,)),
    "2^94 shards": ((2**50, 2**50), (8, 8)),
    "a long line of them": ((16, 2**60), (8, 8)),
}


@pytest.fixture
def existing(request, tmp_path):
    shape, shards = EXISTING[request.param]
    return huge(tmp_path / "x", shape, shards, tuple(min(4, s) for s in shards))


def huge(path, shape, shards, chunks):
    shardwrite.create(path, (8,) * len(shape), "u1", shards=8, chunks=4)
    document = json.loads((path / "zarr.json").read_text())
    document["shape"] = list(shape)
    document["chunk_grid"]["configuration"]["chunk_shape"] = list(shards)
    document["codecs"][0]["configuration"]["chunk_shape"] = list(chunks)
    (path / "zarr.json").write_text(json.dumps(document))
    (path / "shardwrite-receipt.json").unlink()
    return path


@pytest.mark.parametrize("existing", EXISTING, indirect=True)
def test_a_look_at_every_shard(existing):
    ndim = shardwrite.open_sharded(existing).ndim
    for call in (shardwrite.verify, shardwrite.census, shardwrite.repair, shardwrite.compact):
        error = refused(lambda call=call: call(existing), SpecError)
        assert error.value == str(existing)
        assert "shards" in str(error)
    for chunks in (None, 1, (1,) * ndim, "auto", "1kB", ("1kB",) * ndim):
        error = refused(
            lambda given=chunks: shardwrite.from_sharded_zarr(existing, chunks=given), SpecError
        )
        assert error.field == "chunks"
    assert refused(lambda: shardwrite.erase(existing, (...,)), SpecError).field == "region"
    if ndim > 1:
        refused(lambda: shardwrite.ShardWriter(existing), SpecError)


@pytest.mark.parametrize("command", ["info", "verify", "census", "repair", "compact"])
def test_commands(tmp_path, command):
    from click.testing import CliRunner

    path = huge(tmp_path / "x", (2**50,), (1,), (1,))
    with in_time(MOST_SECONDS):
        done = CliRunner().invoke(main, [command, str(path)])
    assert done.exit_code == 2
    assert done.output.startswith("Error: ")
    assert "1,125,899,906,842,624 shards" in done.output


@pytest.mark.parametrize("existing", EXISTING, indirect=True)
def test_a_region_of_a_huge_array_is_written_and_read(existing):
    shape = shardwrite.open_sharded(existing).shape
    block = da.ones((4,) * len(shape), chunks=4, dtype="u1")
    for region in (tuple(slice(6, 10) for _ in shape), tuple(slice(n - 10, n - 6) for n in shape)):
        for strategy in ("fixed-order", shardwrite.AppendOnly(in_place=True)):
            around = tuple(slice(s.start - 2, s.stop + 2) for s in region)
            with in_time(4 * MOST_SECONDS):
                block.to_sharded_zarr(existing, region=region, strategy=strategy)
                assert shardwrite.open_sharded(existing)[around].sum() == 4 ** len(shape)
                assert shardwrite.erase(existing, region).n_shards >= 0
    if np.prod(shape, dtype=object) > 2**63:
        assert refused(lambda: shardwrite.open_sharded(existing)[...], SpecError).field == "region"
    assert shardwrite.abandon(existing) == []


def test_a_shard_whose_index_no_memory_holds(tmp_path):
    for n, chunks in ((2**58, (1,)), (2**60, (2**60,)), (2**50, (1,))):
        path = huge(tmp_path / f"{n}-{chunks[0]}", (100,), (n,), chunks)
        assert shardwrite.verify(path).n_shards == 1
        refused(
            lambda path=path: da.ones(4, chunks=4, dtype="u1").to_sharded_zarr(
                path, region=slice(6, 10)
            ),
            PlanError,
        )
        refused(lambda path=path: shardwrite.erase(path, slice(6, 10)), PlanError)
        refused(lambda path=path: shardwrite.ShardWriter(path), PlanError)
        assert [entry.name for entry in path.parent.glob(f"{path.name}*")] == [path.name]


TOO_LONG = {  # shape, shards, chunks, and the field that is refused
    "shape": ((2**63,), (8,), (4,), "shape"),
    "a shape by far": ((4, 10**40), (8, 8), (4, 4), "shape"),
    "shards": ((8,), (2**63,), (1,), "chunk_grid"),
    "chunks": ((8,), (2**70,), (2**70,), "chunk_grid"),
    "chunks together": ((8, 8), (2**40, 2**40), (2**40, 2**40), "chunk_shape"),
    "their number": ((8, 8), (2**40, 2**40), (1, 1), "chunk_grid"),
}


def is_too_long(path, field, name=None, *, remedy):
    """Whoever opens the array is told its field, and what to mend."""
    block = da.ones((4,) * 2, chunks=4, dtype="u1")
    named = {} if name is None else {"name": name}
    whole = path if name is None else path / name
    calls = [lambda: shardwrite.reshard(whole, f"{path}.new", shards=8)]
    if remedy != "mend its .zarray":  # without shards
        calls += [
            lambda: shardwrite.open_sharded(path, **named),
            lambda: shardwrite.write_region(block, path, (slice(0, 4),) * 2, **named),
            lambda: shardwrite.write_region(block, path, "append", **named),
            lambda: shardwrite.verify(path, **named),
            lambda: shardwrite.from_sharded_zarr(path, **named),
        ]
    for call in calls:
        error = refused(call, SpecError)
        assert (error.field, error.remedy) == (field, remedy)
        assert isinstance(error.value, list)


@pytest.mark.parametrize("case", TOO_LONG)
def test_lengths_that_no_program_can_count(tmp_path, case):
    shape, shards, chunks, field = TOO_LONG[case]
    is_too_long(huge(tmp_path / "x", shape, shards, chunks), field, remedy="correct the document")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shape": [4, 2**63]}, "shape"),
        ({"chunks": [2**64, 1]}, "chunks"),
        ({"chunks": [2**40, 2**40]}, "chunks"),
    ],
)
def test_lengths_of_zarr_v2_that_no_program_can_count(tmp_path, change, field):
    import zarr

    zarr.create_array(tmp_path / "x", shape=(8, 8), chunks=(4, 4), dtype="u1", zarr_format=2)
    path = tmp_path / "x" / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    is_too_long(tmp_path / "x", field, remedy="mend its .zarray")


@pytest.mark.parametrize(
    ("shape", "chunks", "counts", "field"),
    [
        ([4, 2**63], [2, 2], [2, 2], "shape"),
        ([4, 4], [2**70, 2], [2, 2], "chunk_shape"),
        ([4, 4], [2**40, 2**40], [1, 1], "chunk_shape"),
        ([4, 4], [2**40, 2], [2**30, 1], "chunks_per_shard"),
    ],
)
def test_lengths_of_2022_that_no_program_can_count(tmp_path, shape, chunks, counts, field):
    x = da.ones((4, 4), chunks=2, dtype="u1")
    x.to_sharded_zarr(tmp_path / "h", name="x", shards=2, chunks=1, format="transformer-2022")
    path = tmp_path / "h/meta/root/x.array.json"
    document = json.loads(path.read_text())
    document["shape"], document["chunk_grid"]["chunk_shape"] = shape, chunks
    document["storage_transformers"][0]["configuration"]["chunks_per_shard"] = counts
    path.write_text(json.dumps(document))
    is_too_long(tmp_path / "h", field, "x", remedy="mend its .array.json")


def test_an_array_that_another_program_makes_huge(tmp_path):
    """The receipt knows all shards, and then there are more than anybody can look at."""
    path = tmp_path / "x"
    da.ones((4, 4), chunks=2, dtype="u1").to_sharded_zarr(path, shards=2, chunks=1)
    document = json.loads((path / "zarr.json").read_text())
    document["shape"] = [2**62, 4]
    (path / "zarr.json").write_text(json.dumps(document))
    with in_time(2 * MOST_SECONDS):
        shardwrite.write_region(7, path, (slice(3, 5), slice(0, 4)))
        assert shardwrite.open_sharded(path)[2:6].tolist() == [[1] * 4, [7] * 4, [7] * 4, [0] * 4]
    assert json.loads((path / "shardwrite-receipt.json").read_text())["empty"] is None
    for call in (shardwrite.reshard, shardwrite.unshard):
        refused(lambda call=call: call(path, tmp_path / "new", *[1][: call is shardwrite.reshard]))
    assert shardwrite.abandon(path) == []


def test_growth_that_nobody_could_look_at(tmp_path):
    path = tmp_path / "x"
    shardwrite.create(path, (0, 4), "u1", shards=(1, 4), chunks=(1, 4))
    with shardwrite.ShardWriter(path) as writer:
        writer.append(np.ones(4, "u1"))
        assert (
            refused(lambda: writer.__setitem__(2**40, np.ones(4, "u1")), SpecError).field == "shape"
        )
    long = da.zeros((2**40, 4), chunks=(2**40, 4), dtype="u1")
    assert refused(lambda: long.to_sharded_zarr(path, region="append"), SpecError).field == "shape"
    assert shardwrite.open_sharded(path).shape == (1, 4)
    assert shardwrite.verify(path).is_good


def test_a_huge_array_that_a_stream_writes_to_stays_readable(tmp_path):
    path = huge(tmp_path / "x", (2**50,), (1,), (1,))
    with shardwrite.ShardWriter(path) as writer:
        writer[3:5] = np.ones(2, "u1")
    assert shardwrite.open_sharded(path)[(slice(0, 8),)].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]


def test_a_receipt_that_claims_to_know_all_shards_of_a_huge_array(tmp_path):
    path = tmp_path / "x"
    (da.zeros(8, chunks=4, dtype="u1") + 1).to_sharded_zarr(path, shards=4, chunks=2)
    for name in ("zarr.json", "shardwrite-receipt.json"):
        document = json.loads((path / name).read_text())
        document["shape"] = [2**52]
        document.pop("crc32c", None)  # as in an earlier version
        (path / name).write_text(json.dumps(document))
    with in_time(2 * MOST_SECONDS):
        da.ones(4, chunks=4, dtype="u1").to_sharded_zarr(path, region=slice(2, 6))
    assert json.loads((path / "shardwrite-receipt.json").read_text())["empty"] is None
