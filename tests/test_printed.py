"""No text of a result, an error or the log carries control characters of a name to the terminal."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import ShardwriteError, ShardWriter
from shardwrite.sources import open_source

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
SIZES = {"shards": 4, "chunks": 2}
VALUES = np.arange(64.0).reshape(8, 8)


def is_plain(text):
    return not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in text)


def texts_of(thing):
    yield from (str(thing), repr(thing), f"{thing}")
    if hasattr(type(thing), "_repr_html_"):
        yield thing._repr_html_()


@pytest.fixture
def root(tmp_path):
    place = tmp_path / EVIL
    zarr.create_group(place)
    return place


def results(root):
    described = {"dimension_names": (EVIL, "b"), "attributes": {EVIL: EVIL}}
    named = {"source_id": EVIL, **SIZES}
    yield shardwrite.plan(VALUES, **named, **described)
    yield shardwrite.to_sharded_zarr(VALUES, root / "x", keep_report=True, **named, **described)
    yield shardwrite.open_sharded(root / "x")
    yield open_source(str(root / "x"))
    yield shardwrite.report(root / "x")
    yield shardwrite.census(root / "x")
    yield shardwrite.plan_region(VALUES[:3], root / "x", slice(3))
    yield shardwrite.write_region(VALUES[:3], root / "x", slice(3))
    with ShardWriter(root / "x") as writer:
        writer.append(VALUES[:1])
        yield writer.report()
    yield shardwrite.verify(root / "x", deep=True)
    yield shardwrite.compact(root / "x", above=0)
    yield shardwrite.plan_reshard(root / "x", shards=8)
    yield shardwrite.reshard(root / "x", root / "y", shards=8)
    yield shardwrite.to_precomputed(
        np.zeros((8, 8, 8), "u1"), root / "volume", axes="zyx", resolution=(1, 1, 1)
    )
    (root / "x/c/0/0").unlink()
    yield shardwrite.verify(root / "x")
    yield shardwrite.repair(root / "y")


def refused(root):
    for call in (
        lambda: shardwrite.open_sharded(root / "none"),
        lambda: shardwrite.to_sharded_zarr(VALUES, root / "z", name=f"{EVIL}/..", **SIZES),
        lambda: shardwrite.write_region(VALUES, root / "y", ..., strategy=EVIL),
        lambda: shardwrite.finalize(root / "none"),
        lambda: shardwrite.to_sharded_zarr(VALUES + 1, root / "y", **SIZES),
        lambda: shardwrite.to_sharded_zarr(
            shardwrite.open_sharded(root / "y"), root / "y", mode="w", **SIZES
        ),
    ):
        with pytest.raises(ShardwriteError) as caught:
            call()
        yield caught.value


def test_results_errors_and_the_log(root, caplog):
    with caplog.at_level(logging.DEBUG, "shardwrite"):
        names = []
        for thing in results(root):
            names.append(type(thing).__name__)
            for text in texts_of(thing):
                assert is_plain(text), (names[-1], text)
        assert len(names) == 16
        for error in refused(root):
            assert is_plain(str(error)), repr(error)
            assert is_plain(error.message)
    assert caplog.records
    assert all(is_plain(record.getMessage()) for record in caplog.records)


def test_a_path_stays_what_it_is(root):
    result = shardwrite.to_sharded_zarr(VALUES, root / "x", **SIZES)
    assert result.path == str(root / "x")
    assert r"\x1b]0;owned\x07" in str(result)
