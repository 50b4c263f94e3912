"""Failed write-back loses nothing that was acknowledged; see `lossy_disk.py`."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from tiers import some

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import judging
import lossy_device
import lossy_disk
import scenarios

why_not = functools.cache(lossy_device.missing)


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    """A disk of each file system, made when it is asked for."""
    made = {}

    def disk(filesystem):
        if why := why_not(filesystem):
            pytest.skip(why)
        if filesystem not in made:
            made[filesystem] = lossy_device.Disk(tmp_path_factory.mktemp(filesystem), filesystem)
            made[filesystem].__enter__()
        return made[filesystem]

    yield disk
    for one in made.values():
        one.close()


def check(cases):
    """Nothing was lost, torn, left over, or told wrongly."""
    bad = [case for case in cases if case.is_bad]
    assert not bad, "\n".join(map(str, bad[:5]))
    found = lossy_disk.summary(cases)
    print(found)
    return found


@pytest.mark.parametrize("filesystem", lossy_device.FILESYSTEMS)
def test_a_file_that_is_synced_and_renamed_survives(disks, filesystem):
    """A control: where nothing fails, nothing is lost, requests of many blocks included."""
    disk = disks(filesystem)
    data = np.random.default_rng(0).bytes(3_000_001)
    disk.arm([scenarios.MARK])
    with open(disk.root / "temporary", "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    os.rename(disk.root / "temporary", disk.root / "file")
    disk.sync()
    disk.remount()
    assert (disk.root / "file").read_bytes() == data
    assert disk.heal() == (0, 0)


@pytest.mark.parametrize("filesystem", lossy_device.FILESYSTEMS)
def test_a_failed_write_shows_until_the_file_system_is_mounted_again(disks, filesystem):
    """A control: the second `fsync` succeeds, and what is read is not on the disk."""
    disk = disks(filesystem)
    old, new = b"old." * 4096, scenarios.MARK * 2048
    with open(disk.root / "overwritten", "w+b") as file:
        file.write(old)
        file.flush()
        os.fsync(file.fileno())
        disk.arm([scenarios.MARK], times=1)
        os.pwrite(file.fileno(), new, 0)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(file.fileno())
        assert os.pread(file.fileno(), len(new), 0) == new
        os.fsync(file.fileno())
        assert disk.heal() == (1, 1)
    disk.remount()
    assert (disk.root / "overwritten").read_bytes() == old


def test_every_inner_chunk_carries_the_mark(tmp_path):
    """Or the disk would not see it: random values are stored by zstd as they are."""
    x = da.from_array(scenarios.values(scenarios.SHAPE, 1))
    x.to_sharded_zarr(tmp_path / "x", shards=scenarios.SHARDS, chunks=scenarios.CHUNKS)
    stored = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("x/c/*/*")))
    assert stored.count(scenarios.MARK) == shardwrite.verify(tmp_path / "x").n_stored_chunks == 128


@pytest.mark.parametrize(
    "strategy", ["append in place", pytest.param("in place", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("follow_up", some(judging.FOLLOW_UPS, "same", "writer"))
def test_what_was_flushed_is_on_the_disk(disks, strategy, follow_up):
    """A default stream, and one into free places, with one, two and lasting failures."""
    ways = [(1, 3), (2, 0), (-1, 3)]
    cases = [
        lossy_disk.Case(
            number=number
            + 1000 * judging.FOLLOW_UPS.index(follow_up)
            + 100_000 * (strategy == "in place"),
            operation="stream",
            strategy=strategy,
            compressed=strategy == "append in place",
            location="end",
            durability="full",
            where="data",
            skip=skip,
            times=times,
            keep=1.0,
            follow_up=follow_up,
            again=False,
        )
        for number, (times, skip) in enumerate(ways)
    ]
    done = [lossy_disk.run_case(disks("ext4"), case, 0) for case in cases]
    assert all(case.failed for case in done)
    assert check(done)["acked"] > len(done)


def check_follow_ups(disks, which):
    """Each operation by each strategy, with some of the five follow-ups."""
    n_kinds, n_follow_ups = len(judging.KINDS), len(judging.FOLLOW_UPS)
    numbers = [
        n
        for n in range(n_kinds * n_follow_ups)
        if (n % n_kinds + n // n_kinds) % n_follow_ups in which
    ]
    cases = [lossy_disk.draw(1, n) for n in numbers]
    found = check([lossy_disk.run_case(disks("ext4"), case, 1) for case in cases])
    assert found["failed"] > 0.7 * len(cases)
    assert found["vacuous"] < len(cases) // 2


@pytest.mark.long
def test_a_sample_of_failed_writes(disks):
    check_follow_ups(disks, {0})


@pytest.mark.long
@pytest.mark.campaign
def test_another_sample_of_failed_writes(disks):
    check_follow_ups(disks, {1})


@pytest.mark.long
@pytest.mark.parametrize("filesystem", lossy_device.FILESYSTEMS)
def test_many_failed_writes(disks, filesystem):
    cases = [lossy_disk.draw(2, n) for n in range(12)]
    found = check([lossy_disk.run_case(disks(filesystem), case, 2) for case in cases])
    assert found["failed"] > 10
