"""Fault families 3 and 4: the disk is full, has no inodes, becomes read-only, files may not grow;
memory runs out, workers die."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.cli import main

sys.path.insert(0, str(Path(__file__).parent))
import oracle

SHAPE = (512, 512)  # 1 MiB, that does not compress
KEYWORDS = {
    "shards": 64,
    "chunks": 16,
    "memory_limit": "1MB",
    "source_id": "one",
    "max_source_reruns": 100,
}
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="mounts file systems: needs root on Linux"
)


@pytest.fixture
def mounted(tmp_path):
    """A small file system in memory, and a function that mounts it anew with other options."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1k", "shardwrite-test", path], check=True)

    def remount(options):
        subprocess.run(["mount", "-o", f"remount,{options}", path], check=True)

    try:
        yield path, remount
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def write(path, x=None, **more):
    with dask.config.set(scheduler="threads", num_workers=2):
        return (oracle.source(SHAPE, (64, 512)) if x is None else x).to_sharded_zarr(
            path, **{**KEYWORDS, **more}
        )


def check_interrupted(path, acks, shape=SHAPE):
    """Some shards are acknowledged and there, others are not."""
    acked = acks.ranks()
    assert 0 < len(acked) < 64, "nothing was interrupted"
    oracle.check_partial(path, acked, oracle.values(shape))
    assert not list(path.rglob("*.swtmp"))


@needs_root
@pytest.mark.parametrize("durability", ["full", "batch", "none"])
def test_the_disk_is_full(tmp_path, mounted, durability):
    disk, remount = mounted
    remount("size=600k")
    acks = oracle.Acks(tmp_path / "acks")
    with pytest.raises(StoreError) as caught:
        write(disk / "x", progress=acks, durability=durability)
    assert caught.value.errno == errno.ENOSPC
    remount("size=4m")
    check_interrupted(disk / "x", acks)
    assert write(disk / "x", durability=durability).n_resumed_shards >= len(acks.ranks())
    oracle.check_whole(disk / "x", oracle.values(SHAPE))


FRAMES = np.random.default_rng(0).integers(1, 2**32, (200, 64, 64), "u4")
IN_PLACE = [
    "auto",
    shardwrite.AppendOnly(in_place=True),
    shardwrite.FixedOrder(in_place=True, max_unused=1.0),
]


def feed(path, acked, strategy="auto"):
    """Append frames, three a flush, and note how many are acknowledged."""
    with shardwrite.ShardWriter(path, strategy=strategy, n_threads=1) as writer:
        for start in range(writer.shape[0], len(FRAMES), 3):
            writer.append(FRAMES[start : start + 3])
            writer.flush()
            acked[:] = [writer.shape[0]]


def check_acknowledged(path, acked):
    """Every reader finds every acknowledged frame, as it stands there now."""
    for reader, read in oracle.READERS.items():
        there = read(path, slice(0, acked[0]))
        np.testing.assert_array_equal(there, FRAMES[: acked[0]], err_msg=reader)


def fill(disk):
    """Take all that is free."""
    fd, end = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT), 0
    for nbytes in (2**18, 2**12):
        with contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(fd, end, nbytes)
                end += nbytes
    os.close(fd)


@needs_root
@pytest.mark.parametrize("reserves", [True, False])
@pytest.mark.parametrize("strategy", IN_PLACE, ids=str)
@pytest.mark.parametrize("compressors", ["auto", None])
def test_acknowledged_frames_can_be_read_while_the_disk_is_full(
    mounted, monkeypatch, strategy, compressors, reserves
):
    """Before anything is recovered or freed; giving up needs no byte either, if the file system can
    reserve blocks."""
    if not reserves:
        monkeypatch.setattr("shardwrite.stores.posix._fallocate", None)
    disk, remount = mounted
    remount("size=2m")
    path, acked = disk / "x", []
    layout = {"shards": (100, 64, 64), "chunks": (1, 64, 64), "compressors": compressors}
    shardwrite.create(path, (0, 64, 64), "u4", **layout)
    with pytest.raises(StoreError) as caught:
        feed(path, acked, strategy)
    assert caught.value.errno == errno.ENOSPC
    fill(disk)
    check_acknowledged(path, acked)
    if reserves:
        shardwrite.abandon(path)
        check_acknowledged(path, acked)
    remount("size=16m")
    feed(path, acked, strategy)
    oracle.check_whole(path, FRAMES)


@needs_root
def test_the_disk_is_full_under_a_volume(tmp_path, mounted):
    """The scale enters the info only when it is whole; the same call goes on."""
    disk, remount = mounted
    x = oracle.source(SHAPE, (64, 512))[None]
    keywords = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": (16, 16, 1), "source_id": "one"}

    def volume():
        with dask.config.set(scheduler="threads", num_workers=2):
            return shardwrite.to_precomputed(x, disk / "v", shard_nbytes=16_384, **keywords)

    remount("size=600k")
    with pytest.raises(StoreError) as caught:
        volume()
    assert caught.value.errno == errno.ENOSPC
    there = {path: path.stat().st_ino for path in disk.rglob("*.shard")}
    assert there, "nothing was interrupted"
    assert not (disk / "v" / "info").exists()
    assert not list(disk.rglob("*.swtmp"))
    remount("size=4m")
    assert volume().n_resumed_shards >= 1
    assert not list(disk.rglob("*.swtmp"))
    found = shardwrite.from_precomputed(disk / "v", axes="zyx")
    np.testing.assert_array_equal(found[0], oracle.values(SHAPE))


@needs_root
@pytest.mark.parametrize(
    ("shape", "chunks", "shards", "nbytes"),
    [
        (SHAPE, (64, 512), 64, 800_000),
        pytest.param((3072, 1024), (1024, 512), (1024, 512), 7_000_000, marks=pytest.mark.long),
    ],
)
def test_the_disk_is_full_under_hdf5_files(tmp_path, mounted, shape, chunks, shards, nbytes):
    """Small shards, which are laid out together, and larger ones, which are streamed."""
    h5py = pytest.importorskip("h5py")
    disk, remount = mounted
    x, acks = oracle.source(shape, chunks), oracle.Acks(tmp_path / "acks")
    memory = "3MB" if shape == SHAPE else "16MB"  # so that no task writes many shards
    how = {"x": x, "strategy": "hdf5", "shards": shards, "memory_limit": memory}
    remount(f"size={nbytes}")
    with pytest.raises(StoreError) as caught:
        write(disk / "x", progress=acks, **how)
    assert caught.value.errno == errno.ENOSPC
    remount("size=16m")
    check_interrupted(disk / "x", acks, shape)
    assert write(disk / "x", **how).n_resumed_shards >= len(acks.ranks())
    oracle.check_whole(disk / "x", oracle.values(shape))
    with h5py.File(disk / "x/c/0/0") as file:
        extent = file["data"].shape
        np.testing.assert_array_equal(
            file["data"][...], oracle.values(shape)[: extent[0], : extent[1]]
        )


@needs_root
@pytest.mark.parametrize("n_pages", range(0, 9, 4))
def test_the_disk_is_full_under_an_adoption(mounted, n_pages):
    """Whatever step has no room, the file stays as it is, and the same call goes on."""
    h5py = pytest.importorskip("h5py")
    x = np.arange(120.0).reshape(12, 10)
    disk, remount = mounted
    remount("size=1m")
    home = disk / "home"
    home.mkdir()
    with h5py.File(home / "a.h5", "w") as file:
        file.create_dataset("a", data=x, chunks=(2, 5))
    before = (home / "a.h5").read_bytes()
    taken = os.statvfs(disk)
    size = (taken.f_blocks - taken.f_bfree + n_pages) * taken.f_frsize
    remount(f"size={size}")
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            shardwrite.adopt([home / "a.h5"], home / "x")
        assert caught.value.errno == errno.ENOSPC
        assert (home / "a.h5").read_bytes() == before
    remount("size=1m")
    shardwrite.adopt([home / "a.h5"], home / "x")
    np.testing.assert_array_equal(shardwrite.open_sharded(home / "x")[...], x)
    assert (home / "a.h5").read_bytes() == before


@pytest.mark.long
@needs_root
def test_there_are_no_inodes(tmp_path, mounted):
    disk, remount = mounted
    remount("size=8m,nr_inodes=40")
    acks = oracle.Acks(tmp_path / "acks")
    with pytest.raises(StoreError) as caught:
        write(disk / "x", progress=acks)
    assert caught.value.errno == errno.ENOSPC
    remount("size=8m,nr_inodes=400")
    check_interrupted(disk / "x", acks)
    write(disk / "x")
    oracle.check_whole(disk / "x", oracle.values(SHAPE))


@needs_root
@pytest.mark.skipif(
    shutil.which("mkfs.ext4") is None, reason="needs mkfs.ext4 (Debian's package e2fsprogs)"
)
def test_it_becomes_read_only(tmp_path):
    """The kernel does that to a file system in which it finds an error."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(32 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount = ["mount", "-o", "loop,errors=remount-ro", image, disk]
    subprocess.run(mount, check=True)
    acks = oracle.Acks(tmp_path / "acks")
    try:
        device = subprocess.run(
            ["findmnt", "-no", "SOURCE", disk], check=True, capture_output=True, text=True
        ).stdout.strip()

        def progress(report):
            acks(report)
            if len(acks.ranks()) >= 16:
                Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("a test")

        with pytest.raises(StoreError) as caught:
            write(disk / "x", progress=progress)
        assert caught.value.errno == errno.EROFS
        subprocess.run(["umount", disk], check=True)
        subprocess.run(["fsck.ext4", "-y", image], check=False, capture_output=True)
        subprocess.run(mount, check=True)
        acked = acks.ranks()
        assert 0 < len(acked) < 64
        oracle.check_partial(disk / "x", acked, oracle.values(SHAPE))
        write(disk / "x")
        oracle.check_whole(disk / "x", oracle.values(SHAPE))
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@needs_root
def test_the_command_says_that_it_may_pass(tmp_path, mounted):
    disk, remount = mounted
    remount("size=600k")
    np.save(tmp_path / "a.npy", oracle.values(SHAPE))
    command = [
        "write",
        str(tmp_path / "a.npy"),
        str(disk / "x"),
        "--shards",
        "64",
        "--chunks",
        "16",
        "--memory-limit",
        "4MB",
    ]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 75, done.output
    assert "No space left" in done.output
    remount("size=8m")
    assert CliRunner().invoke(main, command).exit_code == 0
    oracle.check_whole(disk / "x", oracle.values(SHAPE))


def in_a_child(function):
    """Run in a process of its own, under its own limits; its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.long
def test_files_may_not_grow(tmp_path):
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        with dask.config.set(scheduler="sync"), pytest.raises(StoreError) as caught:
            oracle.source(SHAPE, (64, 512)).to_sharded_zarr(tmp_path / "x", **KEYWORDS)
        assert caught.value.errno == errno.EFBIG
        assert caught.value.key.startswith("c/")

    assert in_a_child(limited) == 0
    assert not list((tmp_path / "x").rglob("*.swtmp"))
    write(tmp_path / "x")
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.parametrize("strategy", IN_PLACE, ids=str)
def test_acknowledged_frames_can_be_read_where_files_may_not_grow(tmp_path, strategy):
    path, acked = tmp_path / "x", []
    shardwrite.create(path, (0, 64, 64), "u4", shards=(100, 64, 64), chunks=(1, 64, 64))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(StoreError) as caught:
            feed(path, acked, strategy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    check_acknowledged(path, acked)
    shardwrite.abandon(path)
    check_acknowledged(path, acked)
    feed(path, acked, strategy)
    oracle.check_whole(path, FRAMES)


def test_a_source_runs_out_of_memory(tmp_path):
    acks = oracle.Acks(tmp_path / "acks")

    def hungry(block, block_info=None):
        if block_info[0]["chunk-location"][0] == 5:
            raise MemoryError("no memory for this block")
        return block

    y = oracle.source(SHAPE, (64, 512)).map_blocks(hungry, dtype="u4", meta=np.empty((0, 0), "u4"))
    with pytest.raises(MemoryError, match="this block"):
        write(tmp_path / "x", y, progress=acks)
    assert not list((tmp_path / "x").rglob("*.swtmp"))
    oracle.check_partial(tmp_path / "x", acks.ranks(), oracle.values(SHAPE))
    result = write(tmp_path / "x")
    assert result.n_resumed_shards >= len(acks.ranks())
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.long
def test_a_process_may_have_no_more_memory(tmp_path):
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import dask, numpy as np, oracle
x = oracle.source({SHAPE}, (64, 512))
grab = lambda block: block + np.zeros(2**34, "u1")[:1].astype("u4") * 0
y = x.map_blocks(grab, dtype="u4", meta=np.empty((0, 0), "u4"))
resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
with dask.config.set(scheduler="sync"):
    try:
        y.to_sharded_zarr(sys.argv[1], **{KEYWORDS})
    except MemoryError:
        raise SystemExit(42)
"""
    assert (
        subprocess.run([sys.executable, "-c", script, tmp_path / "x"], check=False).returncode == 42
    )
    write(tmp_path / "x")
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.long
def test_a_worker_is_killed_as_for_its_memory(tmp_path):
    from distributed import Client, LocalCluster

    killed = []

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)

        def progress(report):
            if not killed:
                killed.append(next(iter(pids.values())))
                os.kill(killed[0], signal.SIGKILL)

        result = oracle.source(SHAPE, (64, 512)).to_sharded_zarr(
            tmp_path / "x", progress=progress, **KEYWORDS
        )
    assert killed
    assert result.n_shards == 64
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good


@needs_root
@pytest.mark.parametrize("is_bound", [False, True], ids=["file system", "directory"])
def test_a_mount_point_is_no_place_for_an_array(tmp_path, is_bound):
    path, other = tmp_path / "a point.zarr", tmp_path / "other"
    path.mkdir()
    other.mkdir()
    mount = ["--bind", other] if is_bound else ["-t", "tmpfs", "shardwrite-test"]
    subprocess.run(["mount", *mount, path], check=True)
    try:
        with pytest.raises(SpecError, match="mount point"):
            write(path)
        assert sorted(found.name for found in tmp_path.iterdir()) == ["a point.zarr", "other"]
        assert write(path, name="array").n_shards  # as the message says
    finally:
        subprocess.run(["umount", path], check=True)
