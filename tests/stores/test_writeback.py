"""Files that will be synced are begun while they grow."""

import os
import sys

import pytest

import shardwrite.stores.posix
from shardwrite.stores.posix import PosixStore, begin_writeback

MIB = 2**20
SIZES = (5 * MIB, MIB, 5 * MIB, 100)
BEGUN = [(0, 5 * MIB), (5 * MIB, 11 * MIB)]


@pytest.fixture
def begun(monkeypatch):
    found = []
    monkeypatch.setattr(
        shardwrite.stores.posix,
        "begin_writeback",
        lambda _, start, stop: found.append((start, stop)),
    )
    return found


def write(root, durability, sizes, fill=lambda writer: None):
    with PosixStore(root).transaction(durability, "run.attempt") as transaction:
        writer = transaction.create("c/0")
        fill(writer)
        for nbytes in sizes:
            writer.write([bytes(nbytes)])
        writer.finish()
    return (root / "c/0").stat().st_size


@pytest.mark.parametrize(
    ("durability", "expected"), [("full", BEGUN), ("batch", BEGUN), ("none", [])]
)
def test_every_few_mebibytes_where_they_will_be_synced(tmp_path, begun, durability, expected):
    assert write(tmp_path, durability, SIZES) == sum(SIZES)
    assert begun == expected


def test_small_files_are_left_to_the_sync(tmp_path, begun):
    write(tmp_path, "full", [MIB])
    assert begun == []


def test_what_was_copied_and_skipped_counts(tmp_path, begun):
    write(tmp_path, "none", [3 * MIB])

    def fill(writer):
        with PosixStore(tmp_path).open("c/0") as reader:
            writer.copy(reader, 0, 2 * MIB)
        writer.skip(MIB)

    assert write(tmp_path, "full", [2 * MIB], fill) == 5 * MIB
    assert begun == [(0, 5 * MIB)]


@pytest.mark.skipif(sys.platform != "linux", reason="sync_file_range is Linux's")
def test_it_is_a_hint_that_cannot_fail(tmp_path):
    with open(tmp_path / "x", "wb") as file:
        file.write(b"abc")
        file.flush()
        begin_writeback(file.fileno(), 0, 3)
    reading, writing = os.pipe()
    begin_writeback(writing, 0, 3)  # the system refuses it
    os.close(reading)
    os.close(writing)
    assert (tmp_path / "x").read_bytes() == b"abc"
