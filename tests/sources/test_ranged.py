"""Ranges of arrays that are stored in one piece, and file objects of which blocks are kept."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field

import numpy as np
import pytest

from shardwrite import StoreError
from shardwrite.sources import raw
from shardwrite.sources.inside import FileStream
from shardwrite.stores.bucket_url import parent_of


@dataclass
class Counted:
    """A file that tells what was read of it."""

    data: bytes
    asked: list = field(default_factory=list)
    url = "s3://bucket/x"

    @property
    def nbytes(self):
        return len(self.data)

    def read(self, offset, nbytes):
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        self.asked.append(nbytes)
        return self.data[offset : offset + nbytes]


def source_of(values, order="C", before=b"head!"):
    file = Counted(before + values.tobytes(order))
    return raw.RangedSource(
        path="x",
        shape=values.shape,
        dtype=values.dtype.newbyteorder("="),
        chunks=values.shape,
        identity="x",
        file=file,
        stored=values.dtype,
        offset=len(before),
        order=order,
    ), file


@pytest.mark.parametrize("limits", [(1, 64, 1), (50, 200, 2), (2**20, 2**23, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [">i4", "u1", "c16"])
def test_boxes_are_those_of_numpy(monkeypatch, limits, order, dtype):
    for name, value in zip(("_LITTLE_NBYTES", "_MOST_NBYTES", "_MOST_WASTE"), limits, strict=True):
        monkeypatch.setattr(raw, name, value)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 250, (5, 7, 6)).astype(dtype)
    source, file = source_of(values, order)
    for _ in range(40):
        key = tuple(slice(*sorted(rng.integers(0, n + 1, 2))) for n in values.shape)
        found = source[key]
        np.testing.assert_array_equal(found, values[key])
        assert found.dtype == source.dtype
    assert max(file.asked) <= max(limits[1], values.itemsize)


def test_requests_are_few_and_bounded(monkeypatch):
    monkeypatch.setattr(raw, "_MOST_NBYTES", 2**16)
    monkeypatch.setattr(raw, "_LITTLE_NBYTES", 2**12)
    values = np.arange(2**17, dtype="u2").reshape(512, 256)
    source, file = source_of(values)
    source[100:400]
    assert len(file.asked) == 4, "half of 150 KiB is more than 64 KiB, and a quarter is not"
    assert sum(file.asked) == 300 * 512
    file.asked.clear()
    np.testing.assert_array_equal(source[:, 7:9], values[:, 7:9])
    assert max(file.asked) <= 2**12
    assert len(file.asked) == 64, "up to eight rows at a time, and what lies between them"


def test_a_scalar():
    source, _ = source_of(np.float32(2.5).reshape(()))
    assert source[()] == 2.5


# ---- file objects


def test_a_file_object_reads_what_is_there():
    data = np.random.default_rng(0).bytes(3 * 2**20 + 17)
    stream, plain = FileStream(Counted(data)), io.BytesIO(data)
    rng = np.random.default_rng(1)
    for _ in range(300):
        at, n = int(rng.integers(0, len(data) + 99)), int(rng.choice([1, 8, 5000, 2**16, 2**18]))
        assert stream.seek(at) == plain.seek(at) == stream.tell()
        if rng.integers(2):
            assert stream.read(n) == plain.read(n)
        else:
            one, other = bytearray(n), bytearray(n)
            assert stream.readinto(one) == plain.readinto(other)
            assert one == other
        assert stream.tell() == plain.tell()
        assert len(stream._blocks) <= 32
    assert stream.seek(-5, os.SEEK_END) == len(data) - 5
    assert stream.seek(2, os.SEEK_CUR) == len(data) - 3
    assert stream.readall() == data[-3:]
    assert (stream.read(1), stream.readable(), stream.seekable(), stream.writable()) == (
        b"",
        True,
        True,
        False,
    )
    with pytest.raises(OSError, match="before the beginning"):
        stream.seek(-1)


def test_small_reads_from_front_to_back_take_few_requests():
    file = Counted(bytes(2**22))
    stream = FileStream(file)
    while stream.read(1000):
        pass
    assert len(file.asked) == 8, "of 1, 2, 4, 8, 16, 16, 16 and 1 blocks of 64 KiB"
    assert sum(file.asked) == 2**22


def test_an_error_that_a_library_swallows_is_raised_later():
    class Broken(Counted):
        def read(self, offset, nbytes):
            raise StoreError("replaced", key="x", errno=116)

    stream = FileStream(Broken(bytes(9)))
    stream.check()
    with pytest.raises(StoreError):
        stream.read(1)
    with pytest.raises(StoreError, match="replaced"):
        stream.check()


def test_names_with_marks_of_urls():
    assert parent_of("s3://bucket/a%23b/x%3F.h5/") == ("s3://bucket/a%23b", "x?.h5")
    assert parent_of("az://container/x.npy") == ("az://container", "x.npy")
    assert parent_of("gs://bucket/") == ("gs://bucket/", "")
