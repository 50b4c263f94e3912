"""Parts without a scheduler: one plan for all, whatever the machines; checked and healed by
themselves."""

from __future__ import annotations

import contextlib
import errno
import os

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import without_receipts

import shardwrite
from shardwrite.cli.previews import preview_part
from shardwrite.engines import LocalEngine
from shardwrite.errors import IncompleteError, JournalError, PlanError, SpecError, StoreError
from shardwrite.host import resources
from shardwrite.operations import parts

VALUES = np.arange(96 * 96, dtype="u4").reshape(96, 96) + 1
KEYWORDS = {"shards": 8, "chunks": 4}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=12)


@pytest.fixture
def on_machine(monkeypatch):
    """Pretend to be a machine with so many cores and bytes."""

    def become(n_threads, memory_nbytes):
        def engine(kind):
            made = LocalEngine(kind)
            made.n_threads, made.memory_limit_nbytes = n_threads, memory_nbytes
            return made

        monkeypatch.setattr(parts, "LocalEngine", engine)

    return become


@pytest.fixture
def opened(monkeypatch):
    """Paths that were opened."""
    found, real = [], os.open

    def open_(name, *rest, **more):
        found.append(os.fspath(name))
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", open_)
    return found


def read_of(path, opened):
    """Number of shards that were opened."""
    return len({str(shard) for shard in path.glob("c/*/*")} & {*opened})


@pytest.mark.parametrize("strategy", ["morton", "append-only"])
def test_machines_of_different_sizes_write_the_same_bytes(tmp_path, x, on_machine, strategy):
    with dask.config.set(num_workers=2):
        plan = shardwrite.plan(x, strategy=strategy, memory_limit="50kB", **KEYWORDS)
        large = shardwrite.plan(x, strategy=strategy, memory_limit="8GB", **KEYWORDS)
    assert large.partition.group_counts != plan.partition.group_counts
    for target, machines in (
        ("one", [(1, 10**9)] * 4),
        ("many", [(1, 10**6), (16, 10**8), (2, 10**9), (4, 10**12)]),
    ):
        shardwrite.prepare(x, tmp_path / target, plan)
        for k, machine in enumerate(machines):
            on_machine(*machine)
            result = shardwrite.write_part(x, tmp_path / target, k, 4)
            assert result.n_shards == len(plan.part(k, 4).shards), "neither more nor fewer"
        assert shardwrite.finalize(tmp_path / target).n_shards == 144
    assert without_receipts(tmp_path / "one") == without_receipts(tmp_path / "many")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "many", mode="r")[...], VALUES)


def test_a_machine_that_is_too_small_says_so_in_numbers(tmp_path, x, on_machine):
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    on_machine(8, 1000)
    with pytest.raises(
        PlanError, match=r"8 threads needs [\d,]+ bytes and may use 1,000; .*use fewer threads"
    ) as caught:
        shardwrite.write_part(x, tmp_path / "x", 0, 2)
    assert caught.value.allowed_nbytes == 1000
    assert shardwrite.write_part(x, tmp_path / "x", 0, 1, memory_limit="1GB").n_shards == 144


@pytest.mark.long
def test_a_number_of_parts_taken_over_by_another(tmp_path, x):
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, memory_limit="100kB", **KEYWORDS))
    for k in range(0, 20, 2):
        shardwrite.write_part(x, tmp_path / "x", k, 20)
    results = [shardwrite.write_part(x, tmp_path / "x", k, 7) for k in range(7)]
    assert sum(r.n_shards for r in results) == 144
    assert 0 < sum(r.n_resumed_shards for r in results) < 144
    assert shardwrite.finalize(tmp_path / "x", n_parts=7).n_resumed_shards == 144


@pytest.mark.parametrize("harm", ["gone", "cut", "other index"])
def test_finalize_looks_at_shards_and_the_same_part_heals_them(tmp_path, x, harm):
    path = tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, memory_limit="100kB", **KEYWORDS))
    for k in range(5):
        shardwrite.write_part(x, path, k, 5)
    bad = path / "c" / "11" / "11"
    if harm == "gone":
        bad.unlink()
    elif harm == "cut":
        os.truncate(bad, bad.stat().st_size - 1)
    else:
        bad.write_bytes((path / "c" / "0" / "0").read_bytes())
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(path, n_parts=5)
    assert caught.value.missing == ["c/11/11"]
    assert caught.value.parts == [4]
    assert not (path / "zarr.json").exists()
    again = shardwrite.write_part(x, path, 4, 5)
    assert again.n_shards - again.n_resumed_shards == 1
    shardwrite.finalize(path, n_parts=5)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], VALUES)


@pytest.mark.parametrize("which", [{}, {"names": ["x", "y"]}], ids=["alone", "several"])
def test_a_shard_that_cannot_be_read_is_no_missing_one(tmp_path, x, monkeypatch, which):
    """Nobody can tell whether it is whole, so nothing is published, and no part is told."""
    several = which.get("names", [])
    source = [x] * len(several) or x
    plan = shardwrite.plan(x, **KEYWORDS)
    shardwrite.prepare(source, tmp_path / "all", [plan] * len(several) or plan, **which)
    shardwrite.write_part(source, tmp_path / "all", 0, 1, **which)
    path = tmp_path / "all" / "".join(several[-1:])
    real, is_away = os.pread, True

    def pread(descriptor, nbytes, offset):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if is_away and name == str(path / "c/11/11"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"cannot be looked at: .*c/11/11") as caught:
            shardwrite.finalize(tmp_path / "all", n_parts=1, **which)
        assert caught.value.errno == errno.ESTALE
        assert not (path / "zarr.json").exists()
    is_away = False
    shardwrite.finalize(tmp_path / "all", n_parts=1, **which)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], VALUES)


def test_a_part_writes_again_what_it_cannot_read(tmp_path, x, monkeypatch):
    path, real = tmp_path / "x", os.pread
    shardwrite.prepare(x, path, shardwrite.plan(x, **KEYWORDS))
    shardwrite.write_part(x, path, 0, 1)
    bad = os.stat(path / "c/3/4").st_ino

    def pread(descriptor, nbytes, offset):
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(StoreError, match="cannot be looked at"):
        shardwrite.finalize(path)
    os.utime(path / "c/3/4")  # else it counts as checked within a day
    again = shardwrite.write_part(x, path, 0, 1)
    assert again.n_shards - again.n_resumed_shards == 1
    shardwrite.finalize(path)


def test_what_a_dead_attempt_on_another_host_has_left_is_swept(tmp_path, x):
    """Its lease has not run out, so that it might live; once the array is whole it cannot commit
    any more."""
    path = tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, **KEYWORDS))
    for k in range(2):
        shardwrite.write_part(x, path, k, 2)
    run = seams.run_directory(path)
    journal = next(p for p in seams.logs_of(path) if b"begins" in p.read_bytes())
    head, line = (
        {"host": "elsewhere", "pid": 1},
        seams.begins("abcdefabcdef.123456", (0, 0), (1, 1)),
    )
    seams.forge_log(run, "abcdefabcdef", head, [line])
    seams.forge_lease(run, "abcdefabcdef", **head, boot="other")
    left = path / "c" / "0" / ".0.abcdefabcdef.123456.swtmp"
    left.write_bytes(b"half a shard")
    assert journal.exists()
    shardwrite.finalize(path)
    assert not left.exists()
    assert not list(path.rglob("*.swtmp"))
    assert not seams.state_beside(path).exists()


def test_part_files_of_the_dead_that_another_process_sweeps_at_the_same_time(
    tmp_path, x, monkeypatch
):
    path = tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, **KEYWORDS))
    parts = seams.part_directory(path, 0, 1) / "parts-dead"
    parts.mkdir(parents=True)
    (parts / "unit").touch()
    real = seams.real("sweep what is left")

    def swept_by_another(directory):
        real(directory)
        assert not directory.exists()
        real(directory)

    monkeypatch.setattr(*seams.step("sweep what is left"), swept_by_another)
    shardwrite.write_part(x, path, 0, 1)
    assert not parts.exists()


def test_begun_in_parts_and_finished_by_a_write(tmp_path, x):
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, memory_limit="100kB", **KEYWORDS))
    n = shardwrite.write_part(x, tmp_path / "x", 1, 3).n_shards
    assert 0 < n < 144
    assert x.to_sharded_zarr(tmp_path / "x", **KEYWORDS).n_resumed_shards == n
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], VALUES)


@pytest.mark.long
def test_slabs_go_by_way_of_part_files_of_one_row_at_a_time(tmp_path, on_machine):
    """A part of many rows never holds the encoded units of more than one."""
    slabs = da.from_array(VALUES, chunks=(2, 96))
    plan = shardwrite.plan(slabs, memory_limit="10kB", **KEYWORDS)
    assert plan.layout == "staged"
    shardwrite.prepare(slabs, tmp_path / "x", plan)
    run, seen = seams.run_directory(tmp_path / "x"), []

    def count(_):
        seen.append(sum(1 for _ in run.rglob("parts-*/*")))

    on_machine(1, 10**6)
    for k in range(2):
        shardwrite.write_part(slabs, tmp_path / "x", k, 2, progress=count)
    assert 0 < max(seen) <= plan.partition.n_blocks // plan.partition.group_counts[0]
    shardwrite.finalize(tmp_path / "x")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], VALUES)


def test_directories_are_made_once(tmp_path, x, monkeypatch):
    """Tasks on many nodes find them, and make none."""
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    assert len(list((tmp_path / "x" / "c").iterdir())) == 12
    made = []
    real = os.mkdir
    monkeypatch.setattr(
        os, "mkdir", lambda path, *more: (made.append(str(path)), real(path, *more))
    )
    shardwrite.write_part(x, tmp_path / "x", 0, 1)
    assert not [path for path in made if "x.shardwrite" not in path]


@pytest.mark.parametrize("trusts", [False, True])
def test_finalize_reads_no_index_again_if_it_trusts_journals(tmp_path, x, opened, trusts):
    path = tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, **KEYWORDS))
    shardwrite.write_part(x, path, 0, 1)
    opened.clear()
    assert shardwrite.finalize(path, trust_journals=trusts).n_shards == 144
    assert read_of(path, opened) == (0 if trusts else 144)


def test_directories_are_synced_by_those_above_them(tmp_path, x, monkeypatch):
    """One sync for each directory that has new ones in it, not one for each new one."""
    synced, real = [], os.fsync

    def sync(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS), durability="full")
    assert synced.count(str(tmp_path / "x" / "c")) == 1, "it has 12 directories"
    assert str(tmp_path / "x") in synced


def test_stripes_on_lustre(tmp_path, x, monkeypatch):
    """A program that stands for Lustre's: called once, on the array's directory while nothing is in
    it."""
    program = tmp_path / "lfs"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nls "$4" >> {tmp_path}/called\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    plan = shardwrite.plan(x, **KEYWORDS)
    shardwrite.prepare(x, tmp_path / "a", plan, stripe_count=1)
    assert not (tmp_path / "called").exists(), "this is not Lustre"
    monkeypatch.setattr(resources, "file_system", lambda _: "lustre")
    shardwrite.prepare(x, tmp_path / "b", plan, stripe_count=2)
    assert (tmp_path / "called").read_text() == f"setstripe --stripe-count 2 {tmp_path}/b\n"
    program.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    with pytest.raises(shardwrite.StoreError, match=r"lfs setstripe .*: no"):
        shardwrite.prepare(x, tmp_path / "c", plan, stripe_count=2)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(shardwrite.StoreError, match="lfs is not in PATH"):
        shardwrite.prepare(x, tmp_path / "c", plan, stripe_count=2)
    with pytest.raises(SpecError, match="stripe_count"):
        shardwrite.prepare(x, tmp_path / "c", plan, stripe_count=0)


def test_after_the_end_every_call_says_so_and_writes_nothing(tmp_path, x):
    path = tmp_path / "x"
    plan = shardwrite.plan(x, **KEYWORDS)
    shardwrite.prepare(x, path, plan)
    shardwrite.write_part(x, path, 0, 1)
    shardwrite.finalize(path)
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    shardwrite.prepare(x, path, plan)
    assert shardwrite.write_part(x, path, 1, 3).n_resumed_shards == 144
    assert shardwrite.finalize(path, n_parts=3).n_resumed_shards == 144
    assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with pytest.raises(IncompleteError, match="nothing was begun"):
        shardwrite.write_part(x + 1, path, 1, 3)


NO_CUTS = [
    [[7, 1], [89, 1]],
    [[96, 0]],
    [[-96, -1]],
    [[96, 2]],
    [[48.0, 2]],
    [[2**40, 2**40]],
    [[48]],
    [48, 48],
    {},
    "96",
]


@pytest.mark.parametrize(
    "harm",
    [
        {"partition": {}},
        *({"partition": {"groups": [cut] * 2, "blocks": [cut] * 2}} for cut in NO_CUTS),
    ],
    ids=str,
)
def test_a_plan_that_is_not_whole_is_refused(tmp_path, x, harm):
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    seams.change_plan(seams.plan_file(tmp_path / "x"), **harm)
    with pytest.raises(JournalError, match="does not hold a plan"):
        shardwrite.write_part(x, tmp_path / "x", 0, 1)


@pytest.mark.parametrize(
    ("index", "count"), [(3, 3), (-1, 3), (0, 0), ("0", 3), (0, None), (1.5, 3), (0, 2**70)]
)
def test_a_part_that_is_none(tmp_path, x, index, count):
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    with pytest.raises(SpecError, match="no such part"):
        shardwrite.write_part(x, tmp_path / "x", index, count)
    with pytest.raises(SpecError, match="no such part"):
        preview_part(x, tmp_path / "x", (index, count), name=None, source_id="")
    if count != 3:
        with pytest.raises(SpecError, match="part"):
            shardwrite.finalize(tmp_path / "x", n_parts=count or 0)


def test_far_more_parts_than_groups(tmp_path, x):
    """All of them were cut, which took 8 TB."""
    path, count = tmp_path / "x", 10**12
    shardwrite.prepare(x, path, shardwrite.plan(x, memory_limit="100kB", **KEYWORDS))
    assert shardwrite.write_part(x, path, 0, count).n_shards == 0
    assert preview_part(x, path, (0, count), name=None, source_id="").raw_nbytes == 0
    with pytest.raises(IncompleteError) as error:
        shardwrite.finalize(path, n_parts=count)
    for part in error.value.fields["parts"]:
        assert shardwrite.write_part(x, path, part, count).n_shards
    assert shardwrite.finalize(path, n_parts=count).n_shards == 144


def test_a_source_of_another_shape_or_type_under_the_same_name(tmp_path):
    x = da.from_array(VALUES[:8, :8], chunks=8)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, source_id="mine", **KEYWORDS))
    for field, other in (("shape", x[:5]), ("dtype", x.astype("f4"))):
        with pytest.raises(SpecError, match=rf"x\.{field}.*is not the array's"):
            shardwrite.write_part(other, tmp_path / "x", 0, 1, source_id="mine")
    shardwrite.write_part(x, tmp_path / "x", 0, 1, source_id="mine")
    shardwrite.finalize(tmp_path / "x")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], VALUES[:8, :8])


def test_the_configuration_of_dask_is_not_changed(tmp_path):
    """It belongs to all threads of the process, so two calls side by side would mix it up."""
    seen = set()

    def block(values):
        seen.add(dask.config.get("scheduler", None))
        return values

    x = da.from_array(VALUES, chunks=12).map_blocks(block, dtype=VALUES.dtype, meta=VALUES[:0])
    with dask.config.set(scheduler="sync"):
        shardwrite.prepare(x, tmp_path / "x.zarr", shardwrite.plan(x, **KEYWORDS))
        shardwrite.write_part(x, tmp_path / "x.zarr", 0, 1)
        shardwrite.finalize(tmp_path / "x.zarr")
    assert seen == {"sync"}


class KilledError(BaseException):
    """As SIGKILL: nothing is tidied."""


def begun_and_written(path, x, n_parts=1, **keywords):
    plan = shardwrite.plan(x, memory_limit="100kB", **KEYWORDS)
    shardwrite.prepare(x, path, plan, **keywords)
    for k in range(n_parts):
        shardwrite.write_part(x, path, k, n_parts)


@seams.checked_at_a_time(40)
@pytest.mark.long
def test_a_killed_finalize_goes_on_where_it_was(tmp_path, x, opened, monkeypatch):
    path = tmp_path / "x"
    begun_and_written(path, x)
    told = []

    def kill(_, line):
        told.append("checked" in line)
        if sum(told) == 3:
            raise KilledError

    with monkeypatch.context() as patch, seams.dying_by(KilledError):
        seams.before(patch, "append to the log", kill)
        with pytest.raises(KilledError):
            shardwrite.finalize(path)
    assert read_of(path, opened) == 120
    opened.clear()
    assert shardwrite.finalize(path).n_shards == 144
    assert read_of(path, opened) == 144 - 80
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], VALUES)


@pytest.mark.parametrize("late", [False, True])
def test_parts_check_for_finalize_but_only_for_a_day(tmp_path, x, opened, late):
    """A job array that is submitted again checks what it has written, part by part."""
    path = tmp_path / "x"
    begun_and_written(path, x, 3)
    for k in range(3):
        opened.clear()
        part = shardwrite.write_part(x, path, k, 3)
        assert read_of(path, opened) == part.n_resumed_shards == part.n_shards
    bad = path / "c" / "0" / "0"
    bad.unlink()
    again = shardwrite.write_part(x, path, 0, 3)
    assert again.n_shards - again.n_resumed_shards == 1, "a part always looks, and heals"
    if late:
        change_notes(path, lambda line: line.update(since=line["since"] - 90_000))
    opened.clear()
    assert shardwrite.finalize(path, n_parts=3).n_shards == 144
    assert read_of(path, opened) == (144 if late else 1), "the healed one is newer than its check"


def change_notes(path, change):
    """Change the lines of all journals that tell what was checked."""
    for log in seams.logs_of(path):
        lines = seams.read_lines(log)
        for line in lines:
            if "checked" in line:
                change(line)
        seams.write_lines(log, lines)


def test_a_shard_that_is_lost_or_changed_after_its_check_is_missed(tmp_path, x):
    """The next `finalize` publishes nothing, although each shard was good when it was checked."""
    change_after_check(tmp_path / "x", x, deep=False)


@pytest.mark.long
def test_so_is_a_shard_that_was_decoded_after_a_power_cut(tmp_path, x):
    change_after_check(tmp_path / "x", x, deep=True)


def change_after_check(path, x, *, deep):
    with seams.after_restart(1) if deep else contextlib.nullcontext():
        begun_and_written(path, x, durability="none" if deep else "full")
    shardwrite.write_part(x, path, 0, 1)
    noted = [line for log in seams.logs_of(path) for line in seams.read_lines(log)]
    assert {line.get("deep", False) for line in noted if "checked" in line} == {deep}
    (path / "c" / "0" / "0").unlink()
    shard = path / "c" / "3" / "7"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    os.utime(shard, (1e9, 1e9))  # as programs do that copy files with their times
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(path)
    assert caught.value.fields["missing"] == ["c/0/0", "c/3/7"]
    shardwrite.write_part(x, path, 0, 1)
    shardwrite.finalize(path)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], VALUES)


def test_a_shard_that_was_written_again_is_checked_again(tmp_path, x, opened):
    """What was noted is true of other bytes."""
    path = tmp_path / "x"
    begun_and_written(path, x)
    shardwrite.write_part(x, path, 0, 1)
    change_notes(path, lambda line: line.update(facts_crc32c=line["facts_crc32c"] ^ 1))
    opened.clear()
    assert shardwrite.finalize(path).n_shards == 144
    assert read_of(path, opened) == 144
