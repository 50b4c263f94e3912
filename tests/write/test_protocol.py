"""The commit protocol as the system sees it: one open and one rename a shard, no read, and every
sync in its place."""

from __future__ import annotations

import errno
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import calls
import pytest

import shardwrite
from shardwrite import StoreError
from shardwrite.stores.base import check_key
from shardwrite.stores.posix import PosixStore, write_file

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not here (Debian's package strace)"
)
N_SHARDS = 16
SCRIPT = """
    import dask, dask.array as da, numpy as np, shardwrite, sys
    with dask.config.set(scheduler="sync"):
        x = da.from_array(np.arange(64 * 64, dtype="u2").reshape(64, 64) + 1, chunks=(64, 64))
        x.to_sharded_zarr(sys.argv[1], shards=16, chunks=8, durability=sys.argv[2])
"""


def trace(tmp_path, durability, about="x/c"):
    """System calls on the array's shards, in sequence, as (name, path, whole line). They are on
    paths that match a pattern."""
    log = tmp_path / "log"
    traced = "open,openat,creat,rename,renameat,renameat2,fsync,fdatasync,sync_file_range,close,unlink,unlinkat"
    command = ["strace", "-f", "-y", "-s", "4096", "-e", f"trace={traced}", "-o", str(log)]
    ended = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "x"), durability],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ended.returncode and "ptrace" in ended.stderr:
        pytest.skip(f"strace may not trace here: {ended.stderr.splitlines()[0]}")
    assert ended.returncode == 0, ended.stderr
    found = []
    for line in log.read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\((.*)", line)
        if match and re.search(f"{tmp_path}/{about}", line) and "ENOENT" not in line:
            found.append((match[1], match[2]))
    return found


@pytest.mark.parametrize(
    "durability",
    ["full", *(pytest.param(level, marks=pytest.mark.long) for level in ("batch", "none"))],
)
def test_one_open_one_rename_no_read(tmp_path, durability):
    traced = trace(tmp_path, durability)
    opens = [text for name, text in traced if name in ("open", "openat", "creat")]
    files = [text for text in opens if "O_DIRECTORY" not in text]
    assert len(files) == N_SHARDS
    assert all(
        "O_CREAT" in text and "O_EXCL" in text and "O_NOFOLLOW" in text and "O_CLOEXEC" in text
        for text in files
    )
    assert all("O_WRONLY" in text and ".swtmp" in text for text in files), (
        "no shard is ever read, or written under its own name"
    )
    renames = [text for name, text in traced if name.startswith("rename")]
    assert len(renames) == N_SHARDS
    for text in renames:
        source, target = re.findall(r'"([^"]+)"', text)[:2]
        assert source.rsplit("/", 1)[0] == target.rsplit("/", 1)[0], (
            "a temporary lies in its shard's own directory"
        )


def steps(traced):
    """Each call as a word and what it was done to."""
    found = []
    for name, text in traced:
        if name in ("fsync", "fdatasync"):
            path = re.search(r"<([^>]+)>", text)[1]
            found.append(("sync-file" if ".swtmp" in path else "sync-directory", path))
        elif name.startswith("rename"):
            found.append(("rename", tuple(re.findall(r'"([^"]+)"', text)[:2])))
    return found


MOST_TOGETHER = 8
MOST_COMMITS = 8  # of one task: the pauses between them double


def test_full_syncs_file_then_renames_then_syncs_the_directory(tmp_path):
    found = steps(trace(tmp_path, "full"))
    synced_files, renamed = [], []
    for what, about in found:
        if what == "sync-file":
            assert not renamed, "no file is written before the last renames are made durable"
            synced_files.append(about)
        elif what == "rename":
            assert about[0] in synced_files, "renamed before its data were durable"
            renamed.append(about[1].rsplit("/", 1)[0])
            assert len(renamed) <= MOST_TOGETHER
        else:
            renamed = [directory for directory in renamed if directory != about]
    assert len(synced_files) == len(set(synced_files)) == N_SHARDS, (
        "each file is synced once, and never again"
    )
    assert not renamed
    directories = {about for what, about in found if what == "sync-directory"}
    assert {f"{tmp_path}/x/c/{i}" for i in range(4)} | {f"{tmp_path}/x/c"} <= directories, (
        "also the directories that were made"
    )


@pytest.mark.parametrize(
    "durability", ["none", *(pytest.param(d, marks=pytest.mark.long) for d in ("full", "batch"))]
)
def test_a_run_is_looked_at_between_the_begin_of_a_file_and_its_rename(tmp_path, durability):
    """One look serves several files. Who takes the run over removes first what is looked at, and
    then the files."""
    begun, looked_at, n_renamed, n_looks = set(), set(), 0, 0
    for name, text in trace(tmp_path, durability, "(x/c|.*/token-)"):
        if "/token-" in text:
            if name == "openat" and "O_CREAT" not in text:
                looked_at |= begun
                n_looks += 1
        elif name == "openat" and "O_CREAT" in text:
            begun.add(re.search(r'"([^"]+)"', text)[1])
        elif name.startswith("rename"):
            assert re.search(r'"([^"]+)"', text)[1] in looked_at
            n_renamed += 1
    assert n_renamed == N_SHARDS
    assert n_looks < N_SHARDS


@pytest.mark.parametrize("durability", ["none", "full", "batch"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_files_of_a_run_that_was_taken_over_are_not_published(tmp_path, durability, is_ended):
    """By a process that was frozen before it looked, and by one frozen after that."""
    store = PosixStore(tmp_path / "s")

    def look():
        assert len(list((tmp_path / "s").rglob("*.swtmp"))) == 3
        if is_ended:
            raise shardwrite.RunEndedError("ended", path="run")
        for path in (tmp_path / "s").rglob("*.swtmp"):  # as the sweep of a takeover does
            path.unlink()

    with (  # noqa: PT012
        pytest.raises(shardwrite.RunEndedError if is_ended else StoreError),
        store.transaction(durability, "a", look) as transaction,
    ):
        transaction.overlap(4)
        for n in range(3):
            writer = transaction.create(f"c/{n}")
            writer.write([b"x"])
            writer.finish()
    assert not transaction.committed
    assert list((tmp_path / "s" / "c").iterdir()) == []


@pytest.mark.parametrize("durability", ["none", "full"])
def test_what_is_published_before_an_error_is_committed(tmp_path, monkeypatch, durability):
    store, real = PosixStore(tmp_path / "s"), os.rename

    def rename(source, target):
        if target.endswith("/2"):
            raise OSError(errno.EIO, "not now")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(StoreError), store.transaction(durability, "a") as transaction:  # noqa: PT012
        transaction.overlap(4)
        for n in range(4):
            writer = transaction.create(f"c/{n}")
            writer.write([b"x"])
            writer.finish()
    assert transaction.committed == {"c/0", "c/1"}
    assert {p.name for p in (tmp_path / "s" / "c").iterdir()} == {"0", "1"}


@pytest.mark.long
def test_batch_syncs_all_data_before_any_rename(tmp_path):
    found = steps(trace(tmp_path, "batch"))
    kinds = [what for what, _ in found]
    assert kinds.count("sync-file") == kinds.count("rename") == N_SHARDS
    # The process enters its first shards early: each commit has these steps, in this sequence.
    commits = [kind for kind, _ in itertools.groupby(kinds)]
    assert commits == ["sync-file", "rename", "sync-directory"] * (len(commits) // 3)
    assert len(commits) // 3 <= MOST_COMMITS
    synced = [about for what, about in found if what == "sync-directory"]
    of_shards = [about for about in synced if about != f"{tmp_path}/x/c"]
    assert len(of_shards) <= 4 + len(commits) // 3 - 1, "one sync for all shards of a directory"


@pytest.mark.long
def test_none_syncs_nothing(tmp_path):
    assert {what for what, _ in steps(trace(tmp_path, "none"))} == {"rename"}


def test_an_error_leaves_nothing_behind(tmp_path):
    store = PosixStore(tmp_path / "s")
    with pytest.raises(ZeroDivisionError), store.transaction("full", "a") as transaction:  # noqa: PT012
        done = transaction.create("c/0")
        done.write([b"whole"])
        done.finish()
        transaction.create("c/1").write([b"half"])
        1 // 0  # noqa: B018
    assert [p.name for p in (tmp_path / "s" / "c").iterdir()] == ["0"]


def test_batches_abort_together(tmp_path):
    store = PosixStore(tmp_path / "s")
    with pytest.raises(ZeroDivisionError), store.transaction("batch", "a") as transaction:  # noqa: PT012
        for n in range(3):
            writer = transaction.create(f"c/{n}")
            writer.write([b"x"])
            writer.finish()
        1 // 0  # noqa: B018
    assert list((tmp_path / "s" / "c").iterdir()) == []


@pytest.mark.parametrize("durability", ["none", "full", "batch"])
def test_a_rename_whose_answer_was_lost_is_done(tmp_path, monkeypatch, durability):
    """The system made it twice, and tells of the second; it counts only if what is there is what
    was to be renamed."""
    real, lost = os.rename, []

    def rename(source, target):
        real(source, target)
        lost.append(target)
        if len(lost) == 3:
            os.unlink(target)
            pathlib.Path(target).write_bytes(b"3")  # somebody else's
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rename", rename)
    store = PosixStore(tmp_path / "s")
    for n in range(2):
        with store.transaction(durability, "a") as transaction:
            writer = transaction.create(f"c/{n}")
            writer.write([b"%d" % n])
            writer.finish()
        assert transaction.committed == {f"c/{n}"}
        assert store.open(f"c/{n}").read(0, 1) == b"%d" % n
    with (  # noqa: PT012
        pytest.raises(StoreError, match="No such file"),
        store.transaction(durability, "a") as transaction,
    ):
        writer = transaction.create("c/2")
        writer.write([b"mine"])
        writer.finish()
    assert not transaction.committed


def test_a_directory_that_another_process_removed_is_made_again(tmp_path):
    """Whether an object lies in it, or in a directory below it that was not there yet."""
    store = PosixStore(tmp_path / "s")
    with store.transaction("full", "removed-directories.1") as transaction:
        for key in ("c/0/0", "c/0/1", "c/1/0"):
            writer = transaction.create(key)
            writer.write([b"x"])
            writer.finish()
            shutil.rmtree(tmp_path / "s" / "c")
    (tmp_path / "s" / "c").mkdir()
    (tmp_path / "s" / "c" / "2").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="symbolic link"):
        store.transaction("full", "removed-directories.2").create("c/2/0")


def test_short_writes_are_continued(tmp_path, monkeypatch):
    import os

    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, [memoryview(buffers[0])[:3]]))
    store = PosixStore(tmp_path)
    with store.transaction("none", "a") as transaction:
        writer = transaction.create("x")
        assert writer.write([b"0123456789", b"", b"abcdef"]) == 16
        writer.finish()
    assert (tmp_path / "x").read_bytes() == b"0123456789abcdef"


@pytest.mark.parametrize("key", ["", "/x", "a//b", "../x", "a/./b", "a\0b", "a/"])
def test_keys_stay_inside(tmp_path, key):
    with pytest.raises(StoreError):
        check_key(key)
    with pytest.raises(StoreError), PosixStore(tmp_path).transaction("none", "a") as transaction:
        transaction.create(key)


def test_two_attempts_of_one_object(tmp_path):
    store = PosixStore(tmp_path)
    with store.transaction("none", "one") as first, store.transaction("none", "two") as second:
        a, b = first.create("x"), second.create("x")
        a.write([b"aaa"])
        b.write([b"bbb"])
        a.finish()
        assert (tmp_path / "x").read_bytes() == b"aaa"
        b.finish()
    assert (tmp_path / "x").read_bytes() == b"bbb"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_reading(tmp_path):
    write_file(tmp_path / "x", b"0123456789", durability="full", attempt="a")
    store = PosixStore(tmp_path)
    assert store.open("y") is None
    with store.open("x") as reader:
        assert reader.nbytes == 10
        assert reader.read(2, 3) == b"234"
        with pytest.raises(StoreError, match="ends at byte 10"):
            reader.read(8, 5)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(StoreError):
        store.open("link")


def test_new_files_take_the_umask(tmp_path):
    import os

    old = os.umask(0o027)
    try:
        write_file(tmp_path / "x", b"", durability="none", attempt="a")
    finally:
        os.umask(old)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640
    assert shardwrite.__version__


@pytest.mark.parametrize(
    ("row", "most"),
    [
        ("full", 9),
        *(
            pytest.param(row, most, marks=pytest.mark.long)
            for row, most in {
                "batch": 9,
                "none": 6,
                "full, a directory for each shard": 12,
                "none, a directory for each shard": 9,
            }.items()
        ),
    ],
)
def test_a_small_shard_takes_few_system_calls(row, most):
    """With the journal. A process is traced twice, with so many shards."""
    found = calls.per_shard(row, n_few=40, n_many=120)
    assert sum(found.values()) <= most, found
