"""Fault family 11: hostile shards, journals, plans and receipts; none crashes, none is taken for
good where a checksum exists."""

from __future__ import annotations

import random
import shutil
import struct
import sys
from pathlib import Path

import crc32c
import dask
import numpy as np
import pytest

import shardwrite
from shardwrite import ShardwriteError

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams

SHAPE = (32, 32)
KEYWORDS = {
    "shards": 16,
    "chunks": 8,
    "memory_limit": "20kB",
    "source_id": "one",
    "max_source_reruns": 100,
}
N_INDEX = 4 * 16
INDEX_NBYTES = N_INDEX + 4


def with_index(data, rng):
    """One number of the index replaced, and the checksum made right again."""
    table = list(struct.unpack("<8Q", data[-INDEX_NBYTES:-4]))
    at = rng.randrange(8)
    table[at] = rng.choice(
        [
            0,
            1,
            2**40,
            2**63,
            2**64 - 1,
            2**64 - 2,
            len(data),
            rng.randrange(2 * len(data)),
            table[at ^ 2],
            (table[at] + 1) % 2**64,
        ]
    )
    encoded = struct.pack("<8Q", *table)
    return data[:-INDEX_NBYTES] + encoded + crc32c.crc32c(encoded).to_bytes(4, "little")


def mutate(data, rng, *, is_shard):
    """Bytes that some fault may have made of these."""
    kinds = [
        "flip",
        "cut",
        "zero",
        "insert",
        "extend",
        "swap",
        *(["index"] * 3 if is_shard else ["lines"]),
    ]
    changed = bytearray(data)
    at = rng.randrange(len(data))
    n = rng.randrange(1, 1 + min(200, len(data) - at))
    kind = rng.choice(kinds)
    if kind == "flip":
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at : at + n]
    elif kind == "zero":
        changed[at : at + n] = bytes(n)
    elif kind == "insert":
        changed[at:at] = rng.randbytes(n)
    elif kind == "extend":
        changed += rng.choice([bytes(n), rng.randbytes(n), data[-n:]])
    elif kind == "swap":
        changed[:at], changed[at:] = changed[-at:] if at else b"", changed[: len(data) - at]
    elif kind == "index":
        return with_index(data, rng)
    else:
        lines = data.split(b"\n")
        rng.shuffle(lines)
        return b"\n".join(lines + lines[:2])
    return bytes(changed)


@pytest.fixture
def source():
    return oracle.source(SHAPE, (8, 32), empty=(slice(0, 8), slice(0, 8)))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 3))]
)
def test_five_hundred_mutated_shards(tmp_path, source, seed):
    rng = random.Random(seed)
    path = tmp_path / "x"
    source.to_sharded_zarr(path, durability="none", **KEYWORDS)
    wanted = source.compute()
    files = sorted(p for p in (path / "c").rglob("*") if p.is_file())
    n_seen = n_raised = 0
    with dask.config.set(scheduler="sync"):
        for _ in range(100):
            file = rng.choice(files)
            good = file.read_bytes()
            bad = mutate(good, rng, is_shard=True)
            if bad == good:
                continue
            n_seen += 1
            file.write_bytes(bad)
            report = shardwrite.verify(path, deep=True)
            try:
                found = shardwrite.open_sharded(path)[:, :]
            except ShardwriteError:
                n_raised += 1
                assert not report.is_good, "what cannot be read is reported"
            else:
                # bytes that belong to nothing may differ; an entry may be empty where the chunk was
                if report.is_good:
                    differs = found != wanted
                    # two entries may have the same bytes, as some programs write them; that is told
                    is_told = any("have the same bytes" in text for text in report.warnings)
                    assert is_told or not differs.any() or not found[differs].any(), (
                        "a wrong value was taken for good"
                    )
                    if differs.any():
                        assert not shardwrite.verify(path, against=source).is_good
            file.write_bytes(good)
    assert n_seen > 90
    assert n_raised > 60


def interrupted(path, source):
    calls = []

    def fail(block):
        calls.append(block)
        if len(calls) == 4:
            raise InterruptedError("told to")
        return block

    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        source.map_blocks(fail, dtype="u4", meta=np.empty((0, 0), "u4")).to_sharded_zarr(
            path, durability="none", **KEYWORDS
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "n"), [("run-*/journal-*.jsonl", 60), ("plan.json", 30), ("run-*/lease-*.json", 0)]
)
def test_mutated_journals_and_plans(tmp_path, source, pattern, n):
    rng = random.Random(n)
    interrupted(tmp_path / "begun", source)
    beside = seams.state_beside(tmp_path / "begun")
    wanted = source.compute()
    n_whole = n_refused = 0
    for number in range(n):
        path = tmp_path / f"x{number}" / "begun"  # a plan names its array
        shutil.copytree(tmp_path / "begun", path)
        shutil.copytree(beside, path.with_name(beside.name))
        (file,) = path.with_name(beside.name).glob(pattern)
        file.write_bytes(mutate(file.read_bytes(), rng, is_shard=False))
        with dask.config.set(scheduler="sync"):
            try:
                source.to_sharded_zarr(path, durability="none", **KEYWORDS)
            except ShardwriteError:
                n_refused += 1
                continue
        np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)
        oracle.check_tidy(path)
        n_whole += 1
    if n and "journal" in pattern:
        assert n_whole == n, "a bad line costs work, and nothing else"
    if pattern == "plan.json":
        assert n_refused > n // 4


@pytest.mark.long
def test_mutated_receipts(tmp_path, source):
    rng = random.Random(7)
    path = tmp_path / "x"
    source.to_sharded_zarr(path, durability="none", **KEYWORDS)
    file = seams.receipt_of(path)
    good = file.read_bytes()
    n_refused = 0
    with dask.config.set(scheduler="sync"):
        for _ in range(100):
            file.write_bytes(mutate(good, rng, is_shard=False))
            for call in (
                lambda: shardwrite.verify(path),
                lambda: source.to_sharded_zarr(path, **KEYWORDS),
            ):
                try:
                    call()
                except ShardwriteError:
                    n_refused += 1
    assert n_refused > 50
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], source.compute())


def test_a_shard_in_anothers_place_is_told_by_the_journal(tmp_path):
    """By its size or its index: shards of equal sizes are told from each other only by comparing
    with the source."""
    wanted = oracle.values(SHAPE)
    wanted[::16, ::16] = 7
    wanted[:, 5:12] = 3  # the shards on the left compress better
    source = oracle.da.from_array(wanted, chunks=(8, 32))
    interrupted(tmp_path / "x", source)
    files = sorted(p for p in (tmp_path / "x" / "c").rglob("*") if p.is_file())
    files[0].write_bytes(files[1].read_bytes())
    (problem,) = shardwrite.verify(tmp_path / "x", deep=True).problems
    assert "journal says" in problem.message
    source.to_sharded_zarr(tmp_path / "x", durability="none", recheck=True, **KEYWORDS)
    oracle.check_whole(tmp_path / "x", source.compute())
