"""Parts of a scale copy encoded chunks of a Zarr array, as one call does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from forks import python
from helpers import Stop, stop, without_receipts
from zarr.codecs import Crc32cCodec, GzipCodec

import shardwrite
from shardwrite import ChangedError, IncompleteError, JournalError, PlanError, SpecError
from shardwrite.cli import main
from shardwrite.codecs.stages import GzipStage
from shardwrite.sources import open_source

SHAPE = (20, 30, 40)  # z, y, x
VALUES = np.random.default_rng(0).integers(1, 200, SHAPE).astype("u2")
VALUES[:8, :8, :8] = VALUES[8:16, :, 8:24] = 0
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 8,
    "shard_nbytes": 5_000,
    "memory_limit": "40kB",
}
SCATTERED = {
    "hash": "murmurhash3_x86_128",
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 2,
}
KEY, N = "4_4_40", 3
GZIP = [GzipCodec(level=3)]
IDS = ["identity", "murmurhash"]
SHARDINGS = ["auto", SCATTERED]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="threads", num_workers=1):
        yield


@pytest.fixture
def encoded(monkeypatch):
    """Sizes of what gzip has encoded."""
    found, encode = [], GzipStage.encode

    def counting(self, batch):
        found.extend(memoryview(data).nbytes for data in batch)
        return encode(self, batch)

    monkeypatch.setattr(GzipStage, "encode", counting)
    return found


def written_by_zarr(store, codecs=GZIP, values=VALUES, shards=(16, 16, 16), **more):
    return zarr.create_array(
        store, data=values, chunks=(8,) * values.ndim, shards=shards, compressors=codecs, **more
    )


def plan(z, **more):
    return shardwrite.plan_precomputed(z, **{**NEW, **more})


def prepare(z, root, **more):
    shardwrite.prepare(z, root / KEY, plan(z, **more), durability="none")


def part(z, root, number, **more):
    return shardwrite.write_part(z, root / KEY, number, N, **more)


def check(z, root, tmp_path, **more):
    """All files are those of one call."""
    one = tmp_path / "one call"
    shardwrite.to_precomputed(z, one, durability="none", **{**NEW, **more})
    assert without_receipts(root) == without_receipts(one)
    found = shardwrite.from_precomputed(root, axes="zyx")
    np.testing.assert_array_equal(found, VALUES)
    assert shardwrite.verify(root / KEY, deep=True).is_good


@pytest.mark.parametrize("sharding", SHARDINGS, ids=IDS)
@pytest.mark.parametrize(
    "codecs",
    [GZIP, [GzipCodec(level=9), Crc32cCodec()], pytest.param([], marks=pytest.mark.long)],
    ids=["gzip", "gzip-crc32c", "raw"],
)
def test_parts_copy_what_one_call_copies(tmp_path, encoded, codecs, sharding):
    z, root = written_by_zarr(tmp_path / "z", codecs), tmp_path / "v"
    more = {"encoding": "gzip" if codecs else "raw", "sharding": sharding}
    prepare(z, root, **more)
    encoded.clear()
    done = [part(z, root, number) for number in range(N)]
    assert all(each.n_shards for each in done)
    if sharding is SCATTERED:
        done = [part(z, root, number) for number in range(N)]
    result = shardwrite.finalize(root / KEY, n_parts=N)
    assert 2 * 8**3 not in encoded, "no whole chunk is encoded"
    assert sum(each.n_shards for each in done) == result.n_shards
    check(z, root, tmp_path, **more)
    assert part(z, root, 1).n_shards == result.n_shards, "the result of all, from the receipt"


@pytest.mark.parametrize("sharding", SHARDINGS, ids=IDS)
def test_a_part_that_was_interrupted_goes_on(tmp_path, encoded, sharding):
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    prepare(z, root, sharding=sharding)
    part(z, root, 0)
    part(z, root, 2)
    encoded.clear()
    with pytest.raises(Stop):
        part(z, root, 1, progress=stop)
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(root / KEY, n_parts=N)
    assert caught.value.fields["parts"] == [1]
    assert part(z, root, 1).n_resumed_shards > 0
    assert 2 * 8**3 not in encoded
    shardwrite.finalize(root / KEY, n_parts=N)
    check(z, root, tmp_path, sharding=sharding)


def test_one_call_finishes_what_parts_have_begun(tmp_path):
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    prepare(z, root)
    done = part(z, root, 1)
    result = shardwrite.to_precomputed(z, root, **NEW)
    assert result.n_resumed_shards == done.n_shards > 0
    check(z, root, tmp_path)


PROGRAM = """
import os, signal, sys
import dask, zarr
import shardwrite
dask.config.set(num_workers=1)
source, path, number, is_killed = sys.argv[1:]
def told(report):
    if is_killed == "True":
        os.kill(os.getpid(), signal.SIGKILL)
shardwrite.write_part(zarr.open_array(source, mode="r"), path, int(number), 3, progress=told)
"""


@pytest.mark.parametrize("sharding", SHARDINGS, ids=IDS)
def test_processes_at_once_and_one_of_them_killed(tmp_path, sharding):
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    prepare(z, root, sharding=sharding)
    words = [*python(), "-c", PROGRAM, str(tmp_path / "z"), str(root / KEY)]
    for killed in ([1], []):
        begun = [
            subprocess.Popen([*words, str(number), str(number in killed)]) for number in range(N)
        ]
        codes = [process.wait(120) for process in begun]
        assert codes == [-signal.SIGKILL if number in killed else 0 for number in range(N)]
    shardwrite.finalize(root / KEY, n_parts=N)
    check(z, root, tmp_path, sharding=sharding)


@pytest.mark.long
def test_what_has_no_such_chunks_is_refused(tmp_path):
    """The remedy is carried out."""
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    other = written_by_zarr(tmp_path / "other")
    half = written_by_zarr(tmp_path / "half", values=VALUES[:10])
    raw = written_by_zarr(tmp_path / "raw", [])
    x = shardwrite.from_sharded_zarr(tmp_path / "z")
    remedy = "give the zarr.Array for which the plan was made"
    wrong = [
        (x, f"only its values are known.*{remedy}"),
        (raw, f"since the codecs of the inner chunks differ.*{remedy}"),
    ]
    both = plan(z)
    for given, why in (*wrong, (other, f"another array than that of the plan.*{remedy}")):
        with pytest.raises(SpecError, match=why) as caught:
            shardwrite.prepare(given, root / KEY, both)
        assert caught.value.fields["field"] == "x"
    assert not root.exists()
    shardwrite.prepare(z, root / KEY, both)
    for given, why in (*wrong, (half, r"\(10, 30, 40\).*shape \(20, 30, 40\)")):
        with pytest.raises(SpecError, match=why):
            part(given, root, 0)
    with pytest.raises(JournalError, match=r"another plan was begun.*it differs in source"):
        part(other, root, 0)
    with pytest.raises(JournalError, match=r"another plan was begun.*it differs in source"):
        part(z, root, 0, source_id="mine")
    assert not list(root.rglob("*.shard"))
    for number in range(N):
        part(z, root, number)
    shardwrite.finalize(root / KEY)
    check(z, root, tmp_path)


def test_a_source_that_is_written_again_is_refused(tmp_path):
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    prepare(z, root)
    part(z, root, 0)
    again = written_by_zarr(tmp_path / "z", overwrite=True)
    with pytest.raises(JournalError, match=r"another plan was begun.*it differs in source"):
        part(again, root, 1)


@pytest.mark.parametrize("sharding", SHARDINGS, ids=IDS)
def test_a_source_that_loses_a_shard_is_refused(tmp_path, sharding):
    """Its chunks are not taken for empty."""
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "z", shards=16, chunks=8, compressors=GZIP)
    z, root = zarr.open_array(tmp_path / "z", mode="r"), tmp_path / "v"
    prepare(z, root, sharding=sharding)
    (tmp_path / "z" / "c" / "1" / "0" / "1").unlink()
    for number in range(N):
        with pytest.raises(ChangedError, match="shards are gone"):
            part(z, root, number)
    assert not list((tmp_path / "v").rglob("*.shard"))


def test_the_memory_of_each_process_is_checked(tmp_path):
    """It is that of copying, and not that of encoding values."""
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    more = {"shard_nbytes": 20_000, "memory_limit": "40kB"}
    made = plan(z, **more)
    assert made.memory.total_nbytes > 40_000
    assert any("up to 34.8 kB of memory while it copies" in note for note in made.notes)
    shardwrite.prepare(z, root / KEY, made, durability="none")
    with pytest.raises(PlanError, match=r"copies encoded chunks needs.*raise memory_limit"):
        part(z, root, 0, memory_limit="30kB")
    assert not list(root.rglob("*.shard"))
    for number in range(N):
        part(z, root, number, memory_limit="35kB")
    shardwrite.finalize(root / KEY)
    check(z, root, tmp_path, **more)


def test_a_run_that_has_values_is_written_from_them(tmp_path):
    """Then a Zarr array is a source like any other."""
    z, root = written_by_zarr(tmp_path / "z", "auto"), tmp_path / "v"
    assert not plan(z, memory_limit="1MB").source.is_encoded
    prepare(z, root, memory_limit="1MB")
    for number in range(N):
        part(z, root, number)
    shardwrite.finalize(root / KEY)
    check(z, root, tmp_path, memory_limit="1MB")


@pytest.mark.parametrize("sharding", SHARDINGS, ids=IDS)
def test_the_command_line_copies_parts(tmp_path, encoded, sharding):
    """A source that is cut into other chunks is refused, since only its values are known."""
    z, root = written_by_zarr(tmp_path / "z"), tmp_path / "v"
    opened = open_source(str(tmp_path / "z"))
    made = plan(opened, source_id=opened.identity, sharding=sharding)
    assert "encoded chunks are copied, unchanged" in made.notes
    shardwrite.prepare(opened, root / KEY, made, durability="none")
    encoded.clear()

    def run(*words, code=0):
        told = CliRunner().invoke(main, [str(word) for word in words])
        assert told.exit_code == code, told.output
        return told.output

    source = "write-part", tmp_path / "z", root / KEY
    shown = run(*source, "1/3", "--dry-run", "--json")
    assert json.loads(shown)["groups"] == len(made.part(1, N).groups)
    said = run(*source, "1/3", "--source-chunks", "10", code=2)
    assert re.search("SRC .*only its values are known", said)
    for number in range(N):
        run(*source, f"{number}/{N}", "--json")
    run("finalize", root / KEY, "--parts", N, "--json")
    assert 2 * 8**3 not in encoded
    check(z, root, tmp_path, sharding=sharding)


def test_parts_of_a_scale_that_becomes_an_array(tmp_path, encoded):
    """The other way, too, all files are those of one call."""
    z = written_by_zarr(tmp_path / "z")
    shardwrite.to_precomputed(z, tmp_path / "v", **NEW)
    scale, keywords = tmp_path / "v" / KEY, {"shards": 1, "memory_limit": "60kB"}
    one, new = tmp_path / "one", tmp_path / "new"
    shardwrite.reshard(scale, one, **keywords)
    shardwrite.prepare_conversion(scale, new, **keywords)
    shardwrite.convert_part(scale, new, 0, N, **keywords)
    shardwrite.convert_part(scale, new, 2, N, **keywords)
    encoded.clear()
    with pytest.raises(Stop):
        shardwrite.convert_part(scale, new, 1, N, progress=stop, **keywords)
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize_conversion(scale, new, n_parts=N, **keywords)
    assert caught.value.fields["parts"] == [1]
    again = shardwrite.convert_part(scale, new, 1, N, **keywords)
    assert again.arrays[0].result.n_resumed_shards > 0
    shardwrite.finalize_conversion(scale, new, n_parts=N, **keywords)
    assert without_receipts(new) == without_receipts(one)
    os.remove(one / "c" / "0" / "0" / "1")
    with pytest.raises(ChangedError):
        shardwrite.reshard(one, tmp_path / "two", **keywords)
