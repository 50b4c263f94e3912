"""The lease and the log of runs whose state lies in a bucket, in a bucket in memory."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import dask
import pytest
from helpers import all_in

from shardwrite import JournalError, StoreError
from shardwrite.journal import state_lease
from shardwrite.journal.process import (
    Process,
    deadline_text,
    forget_deadline,
    is_past,
    now,
    set_deadline,
)
from shardwrite.journal.state_lease import LEASE, LeaseRecord, StateLease, read_lease
from shardwrite.journal.state_log import Changes, Step, decode, encode, restore
from shardwrite.stores.bucket import BucketStore

obstore = pytest.importorskip("obstore")


@pytest.fixture
def store():
    return BucketStore(obstore.store.MemoryStore())


def of_another_host(store, beat=0, ttl=0.3):
    """A lease that a process on another host has left."""
    record = LeaseRecord(
        holder="theirs",
        state="before",
        beat=beat,
        process=Process(host="elsewhere", pid=7, ttl=ttl),
    )
    store.put_object(LEASE, record.to_json())
    return record


def nothing(lease):
    return "" if lease is None else lease.state


def test_a_lease_has_one_holder(store):
    first, second = StateLease(store, "x"), StateLease(store, "x")
    assert first.take(nothing) == ""
    assert first.deadline > now() + 100
    with pytest.raises(JournalError, match="is being written by another process"):
        second.take(nothing)
    assert first.renew("mine", None)
    assert first.release("mine")
    assert second.take(nothing) == "mine"
    assert not first.renew("mine", None)
    assert second.release("")
    second.remove()
    assert read_lease(store) is None


def test_a_lease_that_does_not_change_is_taken_over(store):
    of_another_host(store)
    lease = StateLease(store, "x")
    assert lease.take(nothing) == "before"
    assert read_lease(store)[0].holder == lease.holder


def test_a_lease_that_changes_is_not_taken_over(store, monkeypatch):
    of_another_host(store, ttl=60)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        of_another_host(store, beat=len(naps))

    monkeypatch.setattr(state_lease.time, "sleep", nap)
    with pytest.raises(JournalError, match=r"host elsewhere, pid 7.*or end that process first"):
        StateLease(store, "x").take(nothing)
    assert len(naps) == 1


def test_an_old_lease_is_told_by_the_clock_of_the_service(store, monkeypatch):
    of_another_host(store, ttl=60)
    times = {LEASE: 1000.0}
    monkeypatch.setattr(store, "changed_at", lambda key: times.get(key, 1062.0), raising=False)
    monkeypatch.setattr(state_lease.time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert StateLease(store, "x").take(nothing) == "before"


def test_a_lease_of_a_process_that_is_gone_is_taken_at_once(store, monkeypatch):
    from shardwrite.journal.lease import this_process

    me = this_process().to_dict()
    record = of_another_host(store)
    gone = Process.from_dict({**me, "started": "1"})
    store.put_object(LEASE, replace(record, process=gone).to_json())
    monkeypatch.setattr(state_lease.time, "sleep", lambda seconds: pytest.fail("it waits"))
    assert StateLease(store, "x").take(nothing) == "before"


def test_a_lease_whose_answer_was_lost_is_still_held(store):
    lease = StateLease(store, "x")
    lease.take(nothing)
    found, _ = read_lease(store)
    # As if a renewal had been done, and its answer had not arrived.
    store.put_object(LEASE, replace(found, state="", beat=77).to_json())
    assert lease.renew("", None)


def test_a_lease_that_an_earlier_holder_has_removed_is_made_again(store):
    lease = StateLease(store, "x")
    lease.take(nothing)
    store.put_object("proof", b"1")
    store.remove_object(LEASE)
    assert lease.renew("", "proof")
    store.remove_object(LEASE)
    store.remove_object("proof")
    assert not lease.renew("", "proof"), "another process has ended the run"


def test_an_earlier_holder_does_not_remove_the_lease_of_the_next(store):
    first, second = StateLease(store, "x"), StateLease(store, "x")
    first.take(nothing)
    first.release("")
    second.take(nothing)
    first.remove()
    assert second.renew("", None)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "holder": "a", "process": 3}']
)
def test_a_lease_that_is_damaged_or_of_a_later_version_is_refused(store, data):
    store.put_object(LEASE, data)
    with pytest.raises(JournalError, match=r"is no lease|later version"):
        StateLease(store, "x").take(nothing)


def test_a_log_makes_the_directory_again(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    changes, there_ = Changes(here), there

    def follow():
        steps = changes.since_last()
        restore(there_, decode(encode(steps), "key"))
        assert all_in(there_) == all_in(here)
        return [step.what for step in steps]

    (here / "run-1/replaced/all").mkdir(parents=True)
    there.mkdir()
    (here / "plan.json").write_bytes(b"{}")
    (here / "run-1/journal-a-b.jsonl").write_bytes(b"one\n")
    assert sorted(set(follow())) == ["append", "directory", "file"]
    assert follow() == []
    with open(here / "run-1/journal-a-b.jsonl", "ab") as file:
        file.write(b"two\n")
    assert follow() == ["append"]
    os.rename(here / "run-1", here / "ended-1")
    (here / "ended-1/zarr.json").write_bytes(b"new")
    assert follow() == ["rename", "file"]
    assert not changes.is_empty
    (here / "plan.json").rename(here / "ended-1/plan-moved.json")
    assert follow() == ["remove", "file"]
    for path in sorted(here.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert follow() == ["remove"]
    assert changes.is_empty


def test_what_cannot_be_listed_does_not_count_as_removed(tmp_path, monkeypatch):
    """A run counted as ended, and its state was removed from the bucket."""
    (tmp_path / "run-a").mkdir()
    (tmp_path / "run-a" / "plan.json").write_bytes(b"{}")
    changes, real = Changes(tmp_path), os.scandir
    assert [step.what for step in changes.since_last()] == ["directory", "file"]
    for broken in (tmp_path, tmp_path / "run-a"):

        def scandir(path, broken=broken):
            if path == str(broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path)

        monkeypatch.setattr(os, "scandir", scandir)
        with pytest.raises(StoreError, match="cannot list"):
            changes.since_last()
        with pytest.raises(StoreError, match="cannot list"):
            _ = changes.is_empty
    monkeypatch.undo()
    assert changes.since_last() == []
    assert not changes.is_empty


def test_a_line_that_is_being_written_is_left_for_later(tmp_path):
    changes, journal = Changes(tmp_path), tmp_path / "journal-a-b.jsonl"
    journal.write_bytes(b"one\ntw")
    assert [step.data for step in changes.since_last()] == [b"one\n"]
    assert changes.since_last() == []
    with open(journal, "ab") as file:
        file.write(b"o\nthree\n")
    assert [step.data for step in changes.since_last()] == [b"two\nthree\n"]


def test_what_belongs_to_this_process_is_left_out(tmp_path):
    for name in ("lease-a.json", "token-a", "clock-1", "x.swtmp"):
        (tmp_path / name).touch()
    for name in ("parts-a", "claim-end", "draft-a,b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert Changes(tmp_path).since_last() == []


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/../b", "", ".", "a\0b"])
def test_paths_stay_inside_of_the_directory(path):
    with pytest.raises(JournalError, match="is no state of a run"):
        decode(encode([Step("file", path, data=b"x")]), "key")
    with pytest.raises(JournalError, match="is no state of a run"):
        decode(encode([Step("rename", "a", "../b")]), "key")


def test_a_log_that_is_damaged_or_of_a_later_version_is_refused():
    whole = encode([Step("file", "a", data=b"abc")])
    another_kind, too_few = whole.replace(b'"file"', b'"fine"'), whole.replace(b"3]", b"2]")
    torn = (b"", whole[:-1], whole[:20], b"{}\n", whole.replace(b"abc", b"abd"))
    for bad in (*torn, another_kind, too_few):
        with pytest.raises(JournalError, match="is no state of a run"):
            decode(bad, "key")
    with pytest.raises(JournalError, match="later version"):
        decode(whole.replace(b'"format": 1', b'"format": 2'), "key")


def test_deadlines_stand_in_tokens(tmp_path):
    token = tmp_path / "run-1" / "token-a"
    token.parent.mkdir()
    assert deadline_text(token) == b""
    set_deadline(tmp_path, now() + 60, [token])  # which is not there yet
    token.write_bytes(deadline_text(token))
    assert not late(token)
    set_deadline(tmp_path, now() - 1, [token])
    assert late(token)
    forget_deadline(tmp_path)
    assert deadline_text(token) == b""


def late(token):
    fd = os.open(token, os.O_RDONLY)
    try:
        return is_past(fd)
    finally:
        os.close(fd)


def test_heartbeats_are_those_of_the_configuration(store):
    with dask.config.set({"shardwrite.lease.heartbeat": 1, "shardwrite.lease.ttl": 3}):
        lease = StateLease(store, "x")
        lease.take(nothing)
        assert lease.deadline < now() + 3.1
        lease.release("")
