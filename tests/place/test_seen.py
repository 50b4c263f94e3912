"""What a call has seen of a place in a store: when it is read again, and what is put over it."""

from __future__ import annotations

import errno
import pickle
from dataclasses import replace

import pytest
from obstore.store import MemoryStore

from shardwrite.errors import StoreError
from shardwrite.place.base import MARK_NAME, RECEIPT_NAME, Over
from shardwrite.place.objects import InStore
from shardwrite.stores.bucket import BucketStore

HOW = {"durability": "none", "attempt": "run.0"}


class Counting(BucketStore):
    """Counts how often it is asked for an object."""

    asked: list

    def _see(self, name, first=0):
        self.asked.append(name)
        return super()._see(name, first)

    def version_of_object(self, name):
        self.asked.append(name)
        return super().version_of_object(name)


@pytest.fixture
def store():
    made = Counting(MemoryStore())
    made.asked = []
    return made


@pytest.fixture
def place(store):
    return InStore(store, "g/a")


def put(store, name, data):
    """What another process does."""
    store.put_object(name, data)


def test_a_block_reads_once_and_begins_with_nothing(place, store):
    put(store, "g/a/zarr.json", b"one")
    with place.seen.remembering():
        assert [place.read("zarr.json"), place.read("zarr.json")] == [b"one"] * 2
        assert place.has("zarr.json")
        assert not place.has(".zarray")
        assert not place.has(".zarray")
        assert InStore(store, "g", seen=place.seen).member("a").read("zarr.json") == b"one"
        assert store.asked == ["g/a/zarr.json", "g/a/.zarray"]
        put(store, "g/a/zarr.json", b"two")
        assert place.read("zarr.json") == b"one"
        place.forget()
        assert place.read("zarr.json") == b"two"
    put(store, "g/a/zarr.json", b"three")
    assert place.read("zarr.json") == b"three"
    with place.seen.remembering():
        put(store, "g/a/zarr.json", b"four")
        assert place.read("zarr.json") == b"four"


def test_a_document_is_put_over_the_version_that_was_seen_last(place, store):
    put(store, "g/a/zarr.json", b"one")
    assert place.last("zarr.json") is None
    place.read("zarr.json")
    store.asked.clear()
    assert place.last("zarr.json") == b"one"
    place.write("zarr.json", b"two", over=Over(b"one"), **HOW)
    assert store.asked == []
    assert place.read("zarr.json") == b"two"


def test_what_another_process_has_put_is_not_replaced(place, store):
    put(store, "g/a/zarr.json", b"one")
    with place.seen.remembering():
        place.read("zarr.json")
        put(store, "g/a/zarr.json", b"other")
        with pytest.raises(StoreError) as caught:
            place.write("zarr.json", b"two", over=Over(b"one"), **HOW)
        assert caught.value.errno == errno.ESTALE
        assert place.read("zarr.json") == b"other", "and it is read anew"


def test_own_documents_are_not_taken_for_those_of_others(place, store):
    with place.seen.remembering():
        place.write("zarr.json", b"own", over=Over(None), **HOW)
        assert place.read("zarr.json") == b"own"
        put(store, "g/a/zarr.json", b"other")
        with pytest.raises(StoreError):
            place.write("zarr.json", b"more", over=Over(b"own"), **HOW)
        assert place.read("zarr.json") == b"other"


def test_a_receipt_replaces_whatever_stands_there(place, store):
    assert not place.is_occupied()
    put(store, f"g/a/{RECEIPT_NAME}", b"other")
    place.write(RECEIPT_NAME, b"own", **HOW)
    assert place.read(RECEIPT_NAME) == b"own"


def test_an_empty_place_has_no_documents(place, store):
    with place.seen.remembering():
        assert not place.is_occupied()
        store.asked.clear()
        assert place.read("zarr.json") is None
        assert place.mark.run == ""
        assert not place.has(MARK_NAME)
        assert store.asked == []
        place.forget()
        put(store, f"g/a/{MARK_NAME}", b'{"run": "x"}')
        assert place.mark.run == "x"


def test_it_does_not_travel(place, store):
    put(store, "g/a/zarr.json", b"one")
    place.read("zarr.json")
    there = replace(place, seen=pickle.loads(pickle.dumps(place.seen)))
    assert (place.last("zarr.json"), there.last("zarr.json")) == (b"one", None)
