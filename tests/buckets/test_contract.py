"""Servers of S3, Azure and GCS keep the contract of all stores, as the probe has found them."""

from __future__ import annotations

import itertools

import pytest
from servers import on

from shardwrite.place.base import STATE_PREFIX
from shardwrite.stores import Capability, bucket
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.bucket_url import open_bucket
from shardwrite.stores.contract import CLAUSES, Subject, check_store

QUICK = ("CONDITIONAL", "version changes", "range that is asked")


def maker(url):
    numbers = itertools.count()

    def make():
        store = open_bucket(f"{url}/{next(numbers)}", {})
        store.prepare()
        return store

    return make


@on("moto", "azurite", "gcs", long=["seaweed"])
def test_some_clauses(service, url, tmp_path):
    make = maker(url)
    assert {Capability.EXCLUSIVE, Capability.CONDITIONAL} <= make().capabilities
    clauses = [one for one in CLAUSES if any(word in one for word in QUICK)]
    assert len(clauses) == len(QUICK)
    for clause in clauses:
        CLAUSES[clause](Subject(make(), tmp_path))


@on(long=["moto", "seaweed", "azurite", "gcs"])
def test_the_contract(service, url):
    check_store(maker(url))


def test_the_probe_leaves_nothing(seaweed, url):
    store = maker(url)()
    assert bucket._PROBES.startswith(STATE_PREFIX), "no reader takes it for an object of the array"
    assert not list(store.list_keys())
    assert not seaweed.keys(url.removeprefix("s3://bucket/"))


def test_the_probe_of_a_process_that_was_killed_is_removed(moto, url, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(BucketStore, "remove_object", lambda self, name: None)
        open_bucket(url, {}).prepare()
    assert len(moto.keys_of(url)) == 1
    open_bucket(url, {}).prepare()
    assert moto.keys_of(url) == []


@pytest.mark.parametrize("number", range(3))
def test_a_probe_that_another_process_removes_is_made_again(moto, url, monkeypatch, number):
    original, numbers = BucketStore._put, itertools.count()

    def put(self, name, data, mode):
        original(self, name, data, mode)
        if next(numbers) == number:
            self.remove_object(name)

    monkeypatch.setattr(BucketStore, "_put", put)
    store = open_bucket(url, {})
    store.prepare()
    assert Capability.CONDITIONAL in store.capabilities
    assert moto.keys_of(url) == []
