"""An operation asks for what it needs, by one function that says what is missing."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from shardwrite import AppendOnly, SpecError, StoreError
from shardwrite.stores import Capability, MemoryStore
from shardwrite.stores.base import Store, require
from shardwrite.stores.posix import PosixStore


def test_the_error_names_what_is_missing_and_what_to_do():
    strategy = AppendOnly(in_place=True)
    with pytest.raises(SpecError) as caught:
        require(MemoryStore(), Capability.EDIT, field="strategy", value=strategy)
    assert str(caught.value) == (
        f"strategy={strategy!r}: MemoryStore cannot modify an object in place (EDIT); "
        "leave out in_place=True, so that whole shards are replaced"
    )
    assert (caught.value.field, caught.value.value) == ("strategy", strategy)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_an_operation_may_know_a_better_remedy():
    with pytest.raises(SpecError, match="use one process"):
        require(
            MemoryStore(), Capability.SHARED, field="engine", value="x", remedy="use one process"
        )


def test_a_directory_can_do_everything_but_replace_on_condition(tmp_path):
    """Writers on a file system know of each other by claims instead."""
    for capability in set(Capability) - {Capability.CONDITIONAL}:
        require(PosixStore(tmp_path), capability, field="store", value=tmp_path)


@pytest.mark.parametrize("durability", ["full", "batch"])
def test_a_level_that_a_store_cannot_promise_is_refused_before_anything_is_written(durability):
    store = MemoryStore()
    with pytest.raises(SpecError, match=r'power cut \(DURABLE\); give durability="none"'):
        store.transaction(durability, "run.1")
    assert not list(store.list_keys())


def test_members_are_told_apart():
    # Two members of one value would be the same member.
    assert max(Counter(c.value for c in Capability).values()) == 1
    assert pickle.loads(pickle.dumps(Capability.EDIT)) is Capability.EDIT


def test_every_store_has_the_protocols(tmp_path):
    for store in (MemoryStore(), PosixStore(tmp_path)):
        assert isinstance(store, Store)
    assert not isinstance({}, Store)


def test_a_method_that_a_store_does_not_have_refuses():
    with pytest.raises(StoreError, match="cannot modify an object in place; leave out in_place"):
        MemoryStore().edit("c/0")
