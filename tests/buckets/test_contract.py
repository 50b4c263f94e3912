"""Two servers of S3 keep the contract of all stores, as the probe has found them."""

from __future__ import annotations

import itertools

import pytest

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


@pytest.mark.parametrize("name", ["moto", pytest.param("seaweed", marks=pytest.mark.long)])
def test_some_clauses(name, url, tmp_path, request):
    request.getfixturevalue(name)
    make = maker(url)
    assert {Capability.EXCLUSIVE, Capability.CONDITIONAL} <= make().capabilities
    clauses = [one for one in CLAUSES if any(word in one for word in QUICK)]
    assert len(clauses) == len(QUICK)
    for clause in clauses:
        CLAUSES[clause](Subject(make(), tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("name", ["moto", "seaweed"])
def test_the_contract(name, url, request):
    request.getfixturevalue(name)
    check_store(maker(url))


def test_the_probe_leaves_nothing(seaweed, url):
    store = maker(url)()
    assert not list(store.list_keys())
    assert not seaweed.keys(url.removeprefix("s3://bucket/"))
