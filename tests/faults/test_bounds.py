"""Whatever stands where a file is read: an answer or a typed error, soon, and in little memory."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import struct
import sys
from pathlib import Path

import crc32c
import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
from tiers import some

import shardwrite
from shardwrite import (
    CodecError,
    CorruptShardError,
    JournalError,
    ShardwriteError,
    SpecError,
    StoreError,
)

sys.path.insert(0, str(Path(__file__).parent))
import fuzz
import oracle
import seams
from in_time import in_time

SHAPE = (32, 32)
KEYWORDS = {
    "shards": 16,
    "chunks": 8,
    "source_id": "one",
    "memory_limit": "20kB",
    "max_source_reruns": 100,
}
MEMORY_NBYTES = 512 * 2**20
SECONDS = 5


@contextlib.contextmanager
def little_memory():
    """Have the system refuse more than 512 MiB above what this process has now, where tests run in
    a process of their own."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def source():
    return oracle.source(SHAPE, (16, 16))


@pytest.fixture
def path(tmp_path, source):
    """An array, its receipt, and an update of it that was interrupted."""
    target = tmp_path / "x.zarr"
    with dask.config.set(scheduler="sync"):
        source.to_sharded_zarr(target, durability="none", **KEYWORDS)
    return target


def interrupted_update(path):
    """An update that ended before its first shard; gives the directory of its run."""

    def fail(_):
        raise InterruptedError("told to")

    x = oracle.source((16, 32), (16, 16), 1).map_blocks(
        fail, dtype="u4", meta=np.empty((0, 0), "u4")
    )
    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        x.to_sharded_zarr(path, region=(slice(0, 16), slice(0, 32)), source_id="two")
    return seams.run_directory(path)


def interrupted(path, source):
    """A run that ended after its first shard; gives its directory."""

    def stop(_):
        raise InterruptedError("told to")

    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        source.to_sharded_zarr(path, durability="none", progress=stop, **KEYWORDS)
    return seams.run_directory(path)


def put(path, kind):
    """Something in the place of a file."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fuzz.put(path, kind)


KINDS = ("pipe", "directory", "zeros", "sparse")


def looks(path):
    """Everything that reads an array and what lies beside it."""
    yield lambda: shardwrite.verify(path, deep=True)
    yield lambda: shardwrite.census(path)
    yield lambda: shardwrite.from_sharded_zarr(path).compute()
    yield lambda: shardwrite.repair(path, salvage=True, scan=True)


def changes(path, source):
    """Everything that writes an array."""
    yield lambda: source.to_sharded_zarr(path, durability="none", **KEYWORDS)
    yield lambda: (source[:16] + 1).to_sharded_zarr(
        path, region=(slice(0, 16), slice(0, 32)), durability="none"
    )
    yield lambda: shardwrite.abandon(path)

    def append():
        with shardwrite.ShardWriter(path, durability="none") as writer:
            writer[3] = np.zeros(SHAPE[1], "u4")

    yield append


def outcomes(calls):
    """What each of some calls raised, None for nothing; anything that is not a typed error is
    raised."""
    found = []
    for call in calls:
        try:
            with in_time(SECONDS), little_memory(), dask.config.set(scheduler="sync"):
                call()
        except ShardwriteError as error:
            found.append(error)
        else:
            found.append(None)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["zarr.json", "shardwrite-receipt.json", "c/0/1"])
def test_something_else_in_the_array(path, source, name, kind):
    shards = {
        p: p.read_bytes() for p in (path / "c").rglob("*") if p.is_file() and p != path / name
    }
    put(path / name, kind)
    if name == "c/0/1":
        with dask.config.set(scheduler="sync"), in_time(SECONDS):
            assert [problem.key for problem in shardwrite.verify(path).problems] == [name]
    found = outcomes([*looks(path), *changes(path, source)])
    assert any(found)
    for file in shards:
        assert file.stat().st_size, "a shard was lost"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "pattern", ["plan.json", "run-*/journal-*.jsonl", "run-*/zarr.json", "run-*/lease-*.json"]
)
def test_something_else_beside_a_run(tmp_path, source, pattern, kind):
    path = tmp_path / "x.zarr"
    run = interrupted(path, source)
    (run / "lease-other.json").touch()
    (file,) = run.parent.glob(pattern)
    put(file, kind)
    found = outcomes([*looks(path), *changes(path, source)])
    assert any(isinstance(error, JournalError | StoreError | SpecError) for error in found)


@pytest.mark.parametrize("kind", some(KINDS, *[*KINDS][::2]))
@pytest.mark.parametrize(
    "name",
    [
        "plan.json",
        "zarr.json",
        "lease-other.json",
    ],
)
def test_something_else_beside_an_update(path, source, name, kind):
    run = interrupted_update(path)
    put((run.parent if name == "plan.json" else run) / name, kind)
    outcomes([*looks(path), *changes(path, source)])
    shards = {p: p.read_bytes() for p in (path / "c").rglob("*") if p.is_file()}
    assert len(shards) == 4, "no shard was lost"


def test_a_group_whose_metadata_is_a_pipe(tmp_path, source):
    shardwrite.create(tmp_path / "g", (8,), "u1", shards=8, chunks=4, name="a")
    put(tmp_path / "g" / "zarr.json", "pipe")
    with in_time(SECONDS), pytest.raises(ShardwriteError):
        source.to_sharded_zarr(tmp_path / "g", name="b", **KEYWORDS)


@pytest.mark.long
def test_documents_that_are_bombs(path):
    """Nested without end, and with more values than fit memory; a limit that is raised lets them
    pass."""
    deep = b'{"a":' * 100_000
    many = b"[" + b"{}," * (10 * 2**20) + b"{}]"
    for data in (deep, many, many + b" " * 2**25):
        for file in (path / "zarr.json", seams.receipt_of(path)):
            before = file.read_bytes()
            file.write_bytes(data)
            assert any(outcomes([lambda: shardwrite.verify(path)]))
            file.write_bytes(before)
    with (
        dask.config.set({"shardwrite.read.limit": 100}),
        pytest.raises(StoreError, match=r"raise shardwrite\.read\.limit"),
    ):
        shardwrite.verify(path)
    with (
        dask.config.set({"shardwrite.read.limit": "much"}),
        pytest.raises(SpecError, match="not a valid value"),
    ):
        shardwrite.verify(path)


@pytest.mark.parametrize("side", [2**20, 2**16], ids=str)
def test_a_document_that_claims_more_inner_chunks_than_a_shard_has_bytes_for(path, side):
    """The size of the shard is looked at before anything is made for each of its inner chunks."""
    document = json.loads((path / "zarr.json").read_text())
    document["chunk_grid"]["configuration"]["chunk_shape"] = [side, side]
    (path / "zarr.json").write_text(json.dumps(document))
    array = shardwrite.open_sharded(path)
    calls = [
        lambda: array[:2, :2],
        lambda: array[::5, 3],
        lambda: array[[1, 30], 4],
        lambda: array.vindex[[1, 30], [4, 4]],
        lambda: shardwrite.from_sharded_zarr(path)[:2, :2].compute(),
    ]
    with little_memory(), in_time(SECONDS):
        assert [type(error) for error in outcomes(calls)] == [CorruptShardError] * len(calls)


# ---- what is decoded

TEXT = {"dtype": "T", "serializer": "vlen-utf8"}


def shard_of(chunk):
    """A shard with one inner chunk."""
    table = struct.pack("<QQ", 0, len(chunk))
    return chunk + table + crc32c.crc32c(table).to_bytes(4, "little")


def bombs():
    """Little that decodes to 2 GiB, by codec."""
    zeros = bytes(2**20)
    body = struct.pack("<II", 1, 2**31 - 100)
    pieces = gzip.compress(body + zeros, 1) + gzip.compress(zeros, 9) * 2047
    import zstandard

    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    streamed = b"".join(
        [
            compressor.compress(body),
            *(compressor.compress(zeros) for _ in range(2048)),
            compressor.flush(),
        ]
    )
    sized = zstandard.ZstdCompressor(level=1).compressobj(size=2**31)
    framed = b"".join(
        [
            sized.compress(body),
            *(sized.compress(zeros) for _ in range(2047)),
            sized.compress(zeros[8:]),
            sized.flush(),
        ]
    )
    yield "zstd", {"level": 1}, streamed
    yield "zstd", {"level": 1}, framed
    yield "gzip", {"level": 1}, pieces
    blosc = bytearray(numcodecs.Blosc("lz4").encode(body + zeros))
    blosc[4:8] = (2**31 - 17).to_bytes(4, "little")
    yield (
        "blosc",
        {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0},
        bytes(blosc),
    )


@pytest.mark.parametrize(
    "without",
    [pytest.param(False, id="zstandard"), pytest.param(True, id="plain", marks=pytest.mark.long)],
)
def test_bombs_in_chunks_of_variable_length(tmp_path, without, monkeypatch):
    if without:
        import importlib.util as util

        find = util.find_spec
        monkeypatch.setattr(
            util,
            "find_spec",
            lambda name, *rest: None if name == "zstandard" else find(name, *rest),
        )
    for number, (name, configuration, data) in enumerate(bombs()):
        path = tmp_path / f"{number}.zarr"
        x = da.from_array(np.array(["a"], dtype=object), chunks=1)
        codec = {"name": name, "configuration": configuration}
        x.to_sharded_zarr(path, shards=1, chunks=1, serializer="vlen-utf8", compressors=[codec])
        (path / "c/0").write_bytes(shard_of(data))
        for call in (
            lambda: shardwrite.from_sharded_zarr(path).compute(),  # noqa: B023
            lambda: shardwrite.verify(path, deep=True),  # noqa: B023
        ):
            with in_time(20), little_memory(), dask.config.set(scheduler="sync"):
                try:
                    report = call()
                except CorruptShardError:
                    continue
                assert not report.is_good


def test_more_elements_than_a_chunk_has_bytes_for(tmp_path):
    """A count of four billion, as the metadata say, would take 32 GiB before the first of them is
    looked at."""
    path = tmp_path / "x.zarr"
    x = da.from_array(np.array(["a"], dtype=object), chunks=1)
    x.to_sharded_zarr(path, shards=1, chunks=1, serializer="vlen-utf8", compressors=None)
    n = 2**32 - 1
    document = json.loads((path / "zarr.json").read_text())
    document["shape"] = document["chunk_grid"]["configuration"]["chunk_shape"] = [n]
    document["codecs"][0]["configuration"]["chunk_shape"] = [n]
    (path / "zarr.json").write_text(json.dumps(document))
    (path / "c/0").write_bytes(shard_of(struct.pack("<I", n) + bytes(100)))
    metadata = shardwrite.open_sharded(path).metadata
    with in_time(SECONDS), little_memory(), pytest.raises(CorruptShardError, match="elements"):
        metadata.pipeline.decode(struct.pack("<I", n) + bytes(100))


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    x = da.from_array(np.array(["a" * 1000], dtype=object), chunks=1)
    with (
        dask.config.set({"shardwrite.read.chunk-limit": 500}),
        pytest.raises(CodecError, match="chunk-limit"),
    ):
        x.to_sharded_zarr(tmp_path / "x", shards=1, chunks=1, serializer="vlen-utf8")
    x.to_sharded_zarr(tmp_path / "y", shards=1, chunks=1, serializer="vlen-utf8")
    with dask.config.set({"shardwrite.read.chunk-limit": 500}), pytest.raises(CorruptShardError):
        shardwrite.from_sharded_zarr(tmp_path / "y").compute()
    assert shardwrite.from_sharded_zarr(tmp_path / "y").compute().tolist() == ["a" * 1000]


@pytest.mark.parametrize("claims", ["nothing", "all"])
def test_a_sparse_shard_of_a_tebibyte(path, source, claims):
    """With an index that fits: a chunk of two thirds of it, or one that is as it should be."""
    good = (path / "c/0/0").read_bytes()
    table = list(struct.unpack("<8Q", good[-68:-4]))
    if claims == "all":
        table[:2] = [0, 2**39]
        table[2::2] = [2**39 + i for i in range(3)]
    encoded = struct.pack("<8Q", *table)
    with (path / "c/0/0").open("r+b") as file:
        file.truncate(2**40)
        file.seek(0, 2)
        file.write(encoded + crc32c.crc32c(encoded).to_bytes(4, "little"))
    found = outcomes([*looks(path), *changes(path, source)])
    if claims == "nothing":
        assert found[:3] == [None] * 3, "it is read where its index leads"
    else:
        assert isinstance(found[2], CorruptShardError)


# ---- repair


def test_repair_of_what_is_no_file(path, source):
    for key, kind in (("c/0/0", "directory"), ("c/0/1", "pipe"), ("c/1/0", "zeros")):
        put(path / key, kind)
    with in_time(SECONDS), dask.config.set(scheduler="sync"):
        told = shardwrite.repair(path, salvage=True, scan=True)
        assert {task.key for task in told.tasks} == {"c/0/0", "c/0/1", "c/1/0"}
        with pytest.raises(StoreError, match="directory"):
            shardwrite.repair(path, source)
        (path / "c/0/0").rmdir()
        shutil.rmtree(seams.state_beside(path))
        assert shardwrite.repair(path, source).is_done
    oracle.check_whole(path, source.compute())


def test_repair_where_no_copy_can_be_kept(path, source):
    path.with_name("x.zarr.quarantine").write_text("in the way")
    (path / "c/0/0").write_bytes(b"torn")
    with pytest.raises(StoreError):
        shardwrite.repair(path, source)


def test_a_copy_is_kept_where_nothing_can_be_linked(path, source, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    (path / "c/0/0").write_bytes(b"torn")
    link = os.link
    monkeypatch.setattr(
        os, "link", lambda a, b, **more: refuse() if "quarantine" in str(b) else link(a, b, **more)
    )
    (copy,) = shardwrite.repair(path, source).quarantined
    assert Path(copy).read_bytes() == b"torn"


# ---- what is wrong in a document that is whole

NUMBERS = (None, True, -1, 2**70, 1e400, "x", [], {}, [[]], [{}], [[2**70, 1]], float("nan"))


def everywhere(document, at=()):
    """Every place in a document."""
    yield at
    for name, value in (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    ):
        yield from everywhere(value, (*at, name))


def put_at(document, at, value):
    """The document with another value in a place, or without it."""
    if not at:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    if len(at) == 1 and value is MISSING:
        del copy[at[0]]
    else:
        copy[at[0]] = put_at(document[at[0]], at[1:], value)
    return copy


MISSING = object()


def places(document, stride, seed):
    """Some places and values to put there."""
    every = [(at, value) for at in everywhere(document) if at for value in (*NUMBERS, MISSING)]
    return every[seed % stride :: stride]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_wrong_values_in_a_receipt(path, source, seed):
    with dask.config.set(scheduler="sync"):
        (source[:16] + 1).to_sharded_zarr(
            path, region=(slice(0, 16), slice(0, 32)), source_id="two"
        )
    seams.change_receipt(path, lambda _: None)
    good = json.loads(seams.receipt_of(path).read_text())

    def append():
        return source[:1].to_sharded_zarr(
            path, region="append", source_id="three", durability="none"
        )

    for at, value in places(good, 29, seed):
        seams.receipt_of(path).write_text(json.dumps(put_at(good, at, value)))
        calls = [
            lambda: shardwrite.verify(path),
            lambda: source.to_sharded_zarr(path, **KEYWORDS),
            append,
        ]
        outcomes(calls)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_wrong_values_in_a_plan(tmp_path, source, seed):
    """Its checksum is made right again."""
    path = tmp_path / "x.zarr"
    run = interrupted(path, source)
    plan = run.parent / "plan.json"
    good = json.loads(plan.read_text())
    good.pop("crc32c")
    for at, value in places(good, 61, seed):
        found = put_at(good, at, value)
        plan.write_text(json.dumps(seams.seal(found) if isinstance(found, dict) else found))
        outcomes(
            [
                lambda: shardwrite.verify(path),
                lambda: shardwrite.write_part(source, path, 0, 2, source_id="one"),
            ]
        )
        if not run.exists():
            run = interrupted(path, source)
            plan = run.parent / "plan.json"
            good = json.loads(plan.read_text())
            good.pop("crc32c")
