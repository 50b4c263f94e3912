"""Servers of S3, Azure and GCS keep the contract of all stores, as the probe has found them."""

from __future__ import annotations

import itertools

from servers import on

from shardwrite.stores import Capability, open_bucket
from shardwrite.stores.clauses import Subject
from shardwrite.stores.contract import CLAUSES, check_store

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
    assert not list(store.list_keys())
    assert not seaweed.keys(url.removeprefix("s3://bucket/"))
