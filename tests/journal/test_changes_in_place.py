"""Changes in place: claims, what is written down before a shard is touched, and how a change is
taken back."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import sys
import threading
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
from crc32c import crc32c

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, StoreError, open_sharded
from shardwrite.journal import lock
from shardwrite.journal.takeover import recover_changes
from shardwrite.journal.undo import (
    Change,
    OldBytes,
    UndoHead,
    parse_record,
    recover_shard,
    shard_claim,
)
from shardwrite.stores.posix import PosixEditor, PosixStore

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))
import seams
from peaks import least_peak

KEY = "c/0"
OLD = np.arange(64, dtype="u4") + 1
NEW = np.arange(8, dtype="u4") + 1000


def made(tmp_path, **keywords):
    path = tmp_path / "x.zarr"
    da.from_array(OLD, chunks=64).to_sharded_zarr(path, shards=64, chunks=8, **keywords)
    return path


def read(path):
    return shardwrite.from_sharded_zarr(path).compute(scheduler="sync")


@contextlib.contextmanager
def frozen_at(owner, name, function, is_it=lambda *arguments: True):
    """Call a function right before the first of some calls; gives a list that has an item for each
    of these calls."""
    real, calls = getattr(owner, name), []

    def wrapped(*arguments, **keywords):
        if is_it(*arguments):
            calls.append(name)
            if len(calls) == 1:
                function()
        return real(*arguments, **keywords)

    with mock.patch.object(owner, name, wrapped):
        yield calls
    assert calls


def publishes(source, target):
    """Whether a rename puts a new file in the shard's place."""
    return str(source).endswith(".swtmp") and str(target).endswith(KEY)


def removes(source, target):
    """Whether a rename takes a shard away."""
    return "/removed-" in str(target)


def begins(source, target):
    """Whether a link puts a plan in its place."""
    return str(target).endswith("plan.json")


def failing(name, number, times):
    """A method of the editor does its work, and then fails some times: as if written bytes were
    dropped."""
    real, left = getattr(PosixEditor, name), [times]

    def wrapped(self, *arguments):
        real(self, *arguments)
        if left[0]:
            left[0] -= 1
            raise StoreError("told to", key=KEY, errno=number)

    return mock.patch.object(PosixEditor, name, wrapped)


# ---- a failed write


def test_where_the_old_content_cannot_be_put_back_the_message_says_what_to_do(tmp_path):
    path = made(tmp_path)
    with (
        failing("write_at", errno.ENOSPC, 9),
        failing("cut", errno.EIO, 9),
        pytest.raises(StoreError, match="may be torn until the same call, or abandon") as caught,
    ):
        shardwrite.write_region(NEW, path, slice(0, 8), strategy=AppendOnly(in_place=True))
    assert caught.value.errno == errno.ENOSPC
    shardwrite.abandon(path)
    np.testing.assert_array_equal(read(path), OLD)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize(
    "strategy", [AppendOnly(in_place=True), FixedOrder(in_place=True, max_unused=1.0)]
)
def test_a_recovery_that_finds_no_room_says_how_much_it_needs(tmp_path, strategy):
    """Readers find the old content before there is room."""
    path = made(tmp_path)
    with failing("sync", errno.EIO, 9), pytest.raises(StoreError):
        shardwrite.write_region(NEW, path, slice(0, 8), strategy=strategy)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch.object(os, "writev", side_effect=full),
        pytest.raises(StoreError, match=r"anew takes [\d,]+ bytes: free as many") as caught,
    ):
        shardwrite.abandon(path)
    assert caught.value.errno == errno.ENOSPC
    np.testing.assert_array_equal(read(path), OLD)
    shardwrite.abandon(path)
    np.testing.assert_array_equal(read(path), OLD)
    assert shardwrite.verify(path, deep=True).is_good
    assert not seams.state_beside(path).exists()


# ---- a failed sync


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize(
    "strategy",
    [FixedOrder(in_place=True, max_unused=1.0), shardwrite.AppendOnly(in_place=True)],
    ids=str,
)
def test_after_a_failed_sync_the_shard_is_another_file(tmp_path, strategy, times):
    """What was appended reads back, but that proves nothing; so the old content goes to a new file
    before the next attempt."""
    path = made(tmp_path)
    x = da.from_array(NEW, chunks=8)
    with open(path / KEY, "rb") as kept:  # so that its number is not given to another file
        with failing("sync", errno.EIO, times), contextlib.ExitStack() as stack:
            if times == 4:
                stack.enter_context(pytest.raises(StoreError, match="told to"))
            x.to_sharded_zarr(
                path, region=slice(0, 8), strategy=strategy, durability="batch", source_id="new"
            )
        if times == 4:  # the error lasted, and nothing was acknowledged
            shardwrite.abandon(path)
            np.testing.assert_array_equal(read(path), OLD)
        else:
            np.testing.assert_array_equal(read(path), [*NEW, *OLD[8:]])
        assert not os.path.samestat(os.fstat(kept.fileno()), (path / KEY).stat())
    assert shardwrite.verify(path, deep=True).is_good
    assert not seams.state_beside(path).exists()


def test_a_flush_after_a_failed_one_keeps_what_was_acknowledged(tmp_path):
    path = tmp_path / "movie.zarr"
    shardwrite.create(path, (0, 16, 16), "u2", shards=(8, 16, 16), chunks=(1, 16, 16))
    frames = np.arange(3 * 256, dtype="u2").reshape(3, 16, 16)
    with ShardWriter(path) as writer:
        writer.append(frames[0])
        writer.flush()
        (before,) = {file.stat().st_ino for file in path.glob("c/0/0/0")}
        writer.append(frames[1])
        with failing("sync", errno.EIO, 1):
            writer.flush()
        (after,) = {file.stat().st_ino for file in path.glob("c/0/0/0")}
        writer.append(frames[2])
    assert after != before
    np.testing.assert_array_equal(read(path), frames)


@pytest.mark.parametrize("durability", ["full", "batch", "none"])
@pytest.mark.parametrize(
    ("strategy", "keywords"),
    [
        (FixedOrder(in_place=True), {"compressors": None}),
        (FixedOrder(in_place=True), {"index_location": "start", "compressors": None}),
        (AppendOnly(in_place=True), {}),
    ],
)
def test_what_has_the_same_file_by_another_name_does_not_change(
    tmp_path, strategy, keywords, durability
):
    path, backup = made(tmp_path, **keywords), tmp_path / "backup"
    os.link(path / KEY, backup)
    before, wanted = backup.read_bytes(), OLD.copy()
    for first in (0, 24, 8):
        wanted[first : first + 8] = NEW + first
        shardwrite.write_region(
            NEW + first,
            path,
            slice(first, first + 8),
            strategy=strategy,
            durability=durability,
        )
        assert (read(path) == wanted).all()
        if first == 0:  # from now on the file has one name, and is changed in place
            inode = (path / KEY).stat().st_ino
    assert backup.read_bytes() == before
    assert (path / KEY).stat().st_ino == inode
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_a_stream_leaves_what_has_another_name(tmp_path, compressors):
    path, backup = tmp_path / "x.zarr", tmp_path / "backup"
    shardwrite.create(path, (0, 8), "u4", shards=(8, 8), chunks=(1, 8), compressors=compressors)
    with ShardWriter(path) as writer:
        writer.append(NEW)
        writer.flush()
        os.link(path / "c/0/0", backup)
        before = backup.read_bytes()
        for _ in range(3):
            writer.append(NEW + 1)
            writer.flush()
    assert backup.read_bytes() == before
    assert (read(path) == np.stack([NEW, *[NEW + 1] * 3])).all()
    assert shardwrite.verify(path, deep=True).is_good


def test_content_is_not_shared_with_the_old_file(tmp_path):
    """A copy inside the system may share blocks that were never written."""
    path = made(tmp_path)
    with (
        failing("sync", errno.EIO, 1),
        mock.patch("os.copy_file_range", side_effect=AssertionError("shared")),
    ):
        da.from_array(NEW, chunks=8).to_sharded_zarr(
            path, region=slice(0, 8), strategy=shardwrite.AppendOnly(in_place=True)
        )
    np.testing.assert_array_equal(read(path), [*NEW, *OLD[8:]])


# ---- a writer that is taken for dead, and is not


@pytest.mark.parametrize("step", ["check_version", "write_at", "sync"])
@pytest.mark.parametrize("compressors", ["auto", None])
def test_a_writer_that_thaws_amid_a_change_in_place_harms_nobody(tmp_path, step, compressors):
    """Whoever takes its run over puts a new file into the place of the one that it has open."""
    path = made(tmp_path, compressors=compressors)
    later = NEW + 5000

    def take_over():
        with seams.leases_run_out(), seams.claims_run_out():
            da.from_array(later, chunks=8).to_sharded_zarr(
                path,
                region=slice(0, 8),
                strategy=FixedOrder(in_place=True, max_unused=1.0),
                restart=True,
                source_id="later",
            )

    with frozen_at(PosixEditor, step, take_over), pytest.raises(shardwrite.ShardwriteError):
        da.from_array(NEW, chunks=8).to_sharded_zarr(
            path,
            region=slice(0, 8),
            strategy=FixedOrder(in_place=True, max_unused=1.0),
            source_id="first",
        )
    np.testing.assert_array_equal(read(path), [*later, *OLD[8:]])
    assert shardwrite.verify(path, deep=True).is_good
    assert not seams.state_beside(path).exists()


def test_a_shard_is_erased_by_its_own_run_alone(tmp_path):
    """A process that is frozen right before it removes a shard may thaw after another has written a
    new one."""
    path = made(tmp_path)

    def take_over():
        with seams.leases_run_out():
            da.from_array(NEW, chunks=8).to_sharded_zarr(
                path, region=slice(0, 8), restart=True, source_id="later"
            )

    with frozen_at(os, "rename", take_over, removes), pytest.raises(shardwrite.ShardwriteError):
        shardwrite.erase(path, slice(0, 64))
    np.testing.assert_array_equal(read(path), [*NEW, *OLD[8:]])


def test_a_rename_that_comes_late_fails(tmp_path):
    """The successor has removed the temporary before it commits anything itself."""
    path = made(tmp_path)

    def take_over():
        with seams.leases_run_out():
            da.from_array(NEW + 7, chunks=8).to_sharded_zarr(
                path, region=slice(8, 16), restart=True, source_id="later"
            )

    with frozen_at(os, "rename", take_over, publishes), pytest.raises(shardwrite.ShardwriteError):
        da.from_array(NEW, chunks=8).to_sharded_zarr(path, region=slice(0, 8), source_id="first")
    np.testing.assert_array_equal(read(path), [*OLD[:8], *(NEW + 7), *OLD[16:]])


def test_an_array_that_appears_before_a_run_begins_is_not_written_over(tmp_path):
    """Between the look at the target and the beginning of the run another run may come and go."""
    path = tmp_path / "x.zarr"

    def write():
        da.from_array(OLD, chunks=64).to_sharded_zarr(path, shards=64, chunks=8, source_id="other")

    with (
        frozen_at(os, "link", write, begins),
        pytest.raises(shardwrite.SpecError, match="an array exists there"),
    ):
        da.zeros(64, chunks=64, dtype="u4").to_sharded_zarr(
            path, shards=64, chunks=8, source_id="first"
        )
    np.testing.assert_array_equal(read(path), OLD)
    assert not seams.state_beside(path).exists()


# ---- claims


def test_a_claim_excludes(tmp_path):
    order = []

    def second():
        with seams.hold_claim(tmp_path / "claim", tmp_path):
            order.append("second")

    with seams.hold_claim(tmp_path / "claim", tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_recorded", [False, True])
def test_of_a_holder_and_its_successor_one_ends_the_change(tmp_path, is_recorded):
    """A holder that was taken for dead cannot end its change any more, nor remove its successor's
    claim."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(seams.hold_claim(tmp_path / "claim", tmp_path))
        first.check()
        if is_recorded:
            first.record([b"what was there"], is_durable=True)
        with seams.claims_run_out():
            second = stack.enter_context(seams.hold_claim(tmp_path / "claim", tmp_path))
        with pytest.raises(StoreError) as raised:
            first.check()
        assert raised.value.errno == errno.ESTALE
        for record in second.path.glob("undo-*"):
            record.rename(record.with_name(record.name.replace("undo-", "fenced-")))
        with pytest.raises(StoreError):
            first.settle()
        for record in second.path.glob("fenced-*"):
            record.unlink()
        first.release()
        second.check()
        assert second.path.exists()
    assert list(tmp_path.iterdir()) == []


class Handover:
    """A change in place that its writer has begun, and whose claim another process has taken over.

    Parameters
    ----------
    tmp_path : pathlib.Path
        For the array and the run.
    stack : contextlib.ExitStack
        Gives the claims back at its end.
    """

    def __init__(self, tmp_path, stack):
        path, self.run, self._stack = made(tmp_path), tmp_path / "run", stack
        self.run.mkdir()
        self.metadata, self.store, self.shard = (
            open_sharded(path).metadata,
            PosixStore(path),
            path / KEY,
        )
        self.whole = self.shard.read_bytes()
        self.first = self.claim()
        self.first.record(
            [seams.undo_record(KEY, len(self.whole), [(0, self.whole)])], is_durable=True
        )
        self.shard.write_bytes(bytes(len(self.whole)))
        self.second = self.claim()

    def claim(self):
        with seams.claims_run_out():
            return self._stack.enter_context(shard_claim(str(self.run), KEY))

    def recover(self, claim):
        recover_shard(claim, self.store, self.metadata)

    def check_first_is_told(self):
        with pytest.raises(StoreError, match="has taken this change over"):
            self.first.settle()


def test_a_holder_that_thaws_amid_its_recovery_does_not_end_its_change(tmp_path):
    """Else it would acknowledge what the recovery is about to take back."""
    with contextlib.ExitStack() as stack:
        change = Handover(tmp_path, stack)
        with frozen_at(os, "rename", change.check_first_is_told, publishes) as calls:
            change.recover(change.second)
    assert len(calls) == 1
    assert change.shard.read_bytes() == change.whole
    assert list(change.run.iterdir()) == []


def test_a_recovery_that_comes_late_takes_nothing_back(tmp_path):
    """It began before the writer made its record void; what a third process has written since then
    stays."""
    with contextlib.ExitStack() as stack:
        change = Handover(tmp_path, stack)

        def end():
            change.check_first_is_told()
            change.recover(change.claim())
            change.shard.write_bytes(change.whole + b"acknowledged")

        with frozen_at(os, "rename", end, publishes), pytest.raises(StoreError):
            change.recover(change.second)
    assert change.shard.read_bytes() == change.whole + b"acknowledged"


def test_a_claim_of_this_process_that_nobody_holds_is_free(tmp_path):
    """Storage that failed when a claim was given back must not make this process wait for itself."""
    claim = lock._wait(tmp_path / "claim", tmp_path)
    claim.forget()
    with seams.hold_claim(tmp_path / "claim", tmp_path) as again:
        again.check()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_a_living_process_holds_is_waited_for(tmp_path):
    claim = tmp_path / "claim"
    claim.mkdir()
    parent = seams.this_process(**seams.parent_process(), token="x")
    (claim / "owner-0").write_text(json.dumps(parent))
    with (
        dask.config.set({"shardwrite.lease.claim-wait": 0.05}),
        pytest.raises(shardwrite.JournalError, match=str(os.getppid())),
    ):
        lock._wait(claim, tmp_path)
    assert (claim / "owner-0").exists()


def test_an_error_amid_a_record_is_told_as_it_is(tmp_path):
    """It was told as ``None``."""

    def pieces():
        yield b"x"
        raise StoreError("the shard was changed", key=KEY, errno=errno.ESTALE)

    with (
        seams.hold_claim(tmp_path / "claim", tmp_path) as claim,
        pytest.raises(StoreError, match="the shard was changed"),
    ):
        claim.record(pieces(), is_durable=False)


def test_an_error_of_the_system_names_the_claim(tmp_path, monkeypatch):
    claim = tmp_path / "claim"
    with seams.hold_claim(claim, tmp_path) as held:
        with monkeypatch.context() as patched:
            patched.setattr(lock, "opened", mock.Mock(side_effect=OSError(errno.EIO, "no answer")))
            with pytest.raises(StoreError, match=rf"look at a claim in '{claim}': no answer"):
                held.check()
        held.check()


def test_nfs_repeats_the_link_by_which_a_claim_is_taken_over(tmp_path, monkeypatch):
    """Its reply was lost. The process waited for itself then, until the claim had to be back."""
    claim, link = tmp_path / "claim", os.link
    claim.mkdir()
    (claim / "owner-0").write_text(json.dumps(seams.this_process(**seams.DEAD, token="x")))

    def link_twice(*arguments, **where):
        link(*arguments, **where)
        link(*arguments, **where)

    monkeypatch.setattr(os, "link", link_twice)
    with dask.config.set({"shardwrite.lease.claim-wait": 0.05}):
        held = lock._wait(claim, tmp_path)
    held.check()
    held.release()
    assert list(tmp_path.iterdir()) == []


# ---- records that are damaged, or that somebody has made up


@contextlib.contextmanager
def small_files():
    """No file may become larger than 16 MiB, so that a test that fails does not fill the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**24, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def undo_record(key, old_nbytes, saved):
    data = b"".join(data for _, data in saved)
    sizes = tuple((offset, len(data)) for offset, data in saved)
    return UndoHead(key, old_nbytes, sizes, crc32c(data)).encode() + data


@pytest.mark.parametrize("nbytes", [2**32, 2**50, 2**62, 2**80])
def test_a_record_of_a_shard_that_cannot_have_been(tmp_path, nbytes):
    """Its index fits at that size; a recovery filled the disk with what stood nowhere."""
    path = made(tmp_path)
    metadata, store, shard = open_sharded(path).metadata, PosixStore(path), path / KEY
    whole, run = shard.read_bytes(), tmp_path / "run"
    run.mkdir()
    size = metadata.index_codec.encoded_nbytes
    record = run / "claim-c.0" / "undo-1"
    record.parent.mkdir()
    record.write_bytes(undo_record(KEY, nbytes, [(nbytes - size, whole[-size:])]))
    with (
        small_files(),
        pytest.raises(
            shardwrite.JournalError, match=r"Move it away|Use the version that wrote it"
        ) as raised,
    ):
        recover_changes(run, store, metadata)
    assert shard.read_bytes() == whole
    Path(raised.value.fields["path"]).rename(tmp_path / "away")
    recover_changes(run, store, metadata)
    assert shard.read_bytes() == whole
    assert list(run.iterdir()) == []
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize(
    "record", [(-1, []), (10, [(8, b"beyond")]), (2**40, [(2**40, b"x")])], ids=str
)
def test_an_undo_record_whose_numbers_do_not_fit(tmp_path, record):
    path = made(tmp_path)
    whole, claim = (path / KEY).read_bytes(), tmp_path / "run" / "claim-c.0"
    claim.mkdir(parents=True)
    (claim / "undo-1").write_bytes(undo_record(KEY, *record))
    with small_files(), pytest.raises(shardwrite.JournalError, match="not a record"):
        recover_changes(claim.parent, PosixStore(path), open_sharded(path).metadata)
    assert (path / KEY).read_bytes() == whole


@pytest.mark.parametrize("fields", [{"key": KEY, "crc32c": 0}, {"crc32c": "of another kind"}, {}])
def test_a_record_of_a_later_format_is_kept_whatever_it_holds(tmp_path, fields):
    """One whose checksum did not match was taken for torn, and removed."""
    path = made(tmp_path)
    whole, claim = (path / KEY).read_bytes(), tmp_path / "run" / "claim-c.0"
    claim.mkdir(parents=True)
    head = json.dumps({"format": 2, **fields}).encode()
    record = b"%08x %s\n" % (crc32c(head), head) + b"some bytes"
    (claim / "undo-1").write_bytes(record)
    with pytest.raises(shardwrite.JournalError, match="Use the version that wrote it"):
        recover_changes(claim.parent, PosixStore(path), open_sharded(path).metadata)
    assert (path / KEY).read_bytes() == whole
    assert [file.read_bytes() for file in claim.iterdir() if file.read_bytes() == record]


def test_a_record_that_is_larger_than_all_that_a_shard_can_hold(tmp_path):
    """It was read whole, up to 64 GiB."""
    path, record = made(tmp_path), tmp_path / "run/claim-c.0/undo-1"
    record.parent.mkdir(parents=True)
    with record.open("wb") as file:
        file.truncate(2**35)
    with pytest.raises(StoreError, match="larger"):
        recover_changes(tmp_path / "run", PosixStore(path), open_sharded(path).metadata)


@pytest.mark.long
def test_a_record_of_half_a_large_shard_takes_little_memory(tmp_path):
    data = np.random.default_rng(0).bytes(40 * 2**20 + 5)
    (tmp_path / "x").write_bytes(data)
    with (
        PosixStore(tmp_path).open("x") as reader,
        seams.hold_claim(tmp_path / "claim", tmp_path) as claim,
    ):
        old = OldBytes(reader, [(3, 11), (2**20, len(data))])

        def record():
            claim.record(Change("x", len(data), (), old).record(), is_durable=False)

        assert least_peak(record, 2**24) < 2**24
        (written,) = (tmp_path / "claim").glob("undo-*")
        head, rest = parse_record(written.read_bytes())
        claim.settle()
    assert crc32c(rest) == head.crc32c
    assert rest == data[3:11] + data[2**20 :]
    assert sum(nbytes for _, nbytes in head.saved) == len(rest)
    assert dict(head.saved)[3] == 8


def test_what_changes_while_it_is_recorded_is_told(tmp_path):
    """The record would not be taken for whole, and its change could not be undone."""

    class Changing:
        times = 0

        def read(self, offset, nbytes):
            self.times += 1
            return bytes([self.times]) * nbytes

    with pytest.raises(StoreError, match="changed by another program") as raised:
        list(Change("x", 9, (), OldBytes(Changing(), [(0, 9)])).record())
    assert raised.value.errno == errno.ESTALE


def test_only_the_claimed_shard_is_recovered(tmp_path):
    """Names of shards may begin alike, and whoever holds the claim of one has no right to another's
    record."""
    path = made(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    with shard_claim(str(run), "c/1") as one, shard_claim(str(run), "c/10") as ten:
        assert one.path != ten.path
        one.record([], is_durable=False)
        assert not list(ten.path.glob("undo-*"))
        one.settle()
    assert not seams.has_run(path)
    assert list(Path(run).iterdir()) == []
