"""The index against struct and crc32c, and its checks against Python integers."""

import math
import struct

import crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.document import DEFAULT_INDEX_CODECS
from shardwrite.format.index import EMPTY, IndexCodec, ShardIndex
from shardwrite.grid import unravel

MAX = 2**64 - 1
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}


def table_of(rows):
    return np.array(rows, dtype=np.uint64).reshape(-1, 2)


def packed(rows, endian="<"):
    return b"".join(struct.pack(endian + "QQ", *row) for row in rows)


def with_crc(data):
    return data + struct.pack("<I", crc32c.crc32c(data))


def refusals(rows, shard_nbytes, span):
    """For each kind of refusal the ranks that a reader on Python integers would name."""
    half, past, inside, overlap = set(), set(), set(), set()
    solid = []
    for rank, (offset, nbytes) in enumerate(rows):
        if offset == nbytes == MAX:
            continue
        if MAX in (offset, nbytes):
            half.add(rank)
        if offset + nbytes > shard_nbytes:
            past.add(rank)
        if nbytes and offset < span[1] and offset + nbytes > span[0]:
            inside.add(rank)
        if nbytes:
            solid.append((offset, offset + nbytes, rank))
    for i, (a, b, rank) in enumerate(solid):
        for c, d, other in solid[i + 1 :]:
            if a < d and c < b and (a, b) != (c, d):  # equal ranges are shared
                overlap |= {rank, other}
    return half, past, inside, overlap


def agrees_with_oracle(rows, shard_nbytes, span):
    half, past, inside, overlap = refusals(rows, shard_nbytes, span)
    index = ShardIndex(table_of(rows))
    grid = (len(rows),)
    if not (half or past or inside or overlap):
        index.check(shard_nbytes, span, grid)
        return
    with pytest.raises(CorruptShardError) as caught:
        index.check(shard_nbytes, span, grid)
    error = caught.value
    blamed = next(kind for kind in (half, past, inside, overlap) if kind)
    assert error.inner_chunk[0] in blamed
    assert (error.offset, error.nbytes) == tuple(rows[error.inner_chunk[0]])


EDGES = [
    0,
    1,
    2,
    19,
    20,
    99,
    100,
    101,
    2**31,
    2**32,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 100,
    MAX - 1,
    MAX,
]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(0, 120), st.integers(0, MAX))


@pytest.mark.long
@settings(max_examples=400)
@given(
    st.lists(st.tuples(numbers, numbers), max_size=6),
    st.integers(0, 120),
    st.integers(0, 20),
    st.booleans(),
)
@example([(MAX - 9, 20)], 100, 20, True)
@example([(10, MAX - 5)], 100, 20, True)
@example([(2**63, 2**63)], 100, 20, True)
@example([(30, 40), (35, 1), (60, 5)], 100, 20, True)
def test_check_equals_oracle_on_random_tables(rows, shard_nbytes, index_nbytes, at_start):
    index_nbytes = min(index_nbytes, shard_nbytes)
    span = (0, index_nbytes) if at_start else (shard_nbytes - index_nbytes, shard_nbytes)
    agrees_with_oracle(rows, shard_nbytes, span)


@pytest.mark.long
@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=5), st.booleans())
def test_check_equals_oracle_on_small_tables(rows, at_start):
    span = (0, 8) if at_start else (32, 40)
    agrees_with_oracle(rows, 40, span)


def test_overlap_with_an_earlier_long_chunk_is_found():
    """The neighbour in offset order ends before; the one that covers it lies further back."""
    agrees_with_oracle([(0, 50), (10, 5), (40, 5)], 100, (80, 100))


def test_bytes_that_two_entries_share_are_accepted_and_counted():
    index = ShardIndex(table_of([(0, 20), (0, 20), (20, 30), (0, 20)]))
    index.check(100, (80, 100), (4,))
    assert (index.n_shared, index.used_nbytes) == (2, 50)


def test_empty_and_zero_length_entries_are_accepted():
    ShardIndex(table_of([(MAX, MAX), (0, 0), (80, 0), (0, 80), (100, 0), (MAX, MAX)])).check(
        100, (80, 100), (6,)
    )
    ShardIndex(table_of([(MAX, MAX)] * 4)).check(20, (0, 20), (2, 2))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    ("serializer", "endian"), [(LITTLE, "<"), (BIG, ">")], ids=["little", "big"]
)
@pytest.mark.parametrize("checksums", [0, 1, 2])
def test_encoded_form_equals_struct_and_crc32c(shape, location, serializer, endian, checksums):
    n = math.prod(shape)
    codec = IndexCodec([serializer, *[CRC] * checksums], shape, location)
    assert codec.encoded_nbytes == 16 * n + 4 * checksums
    assert codec.has_checksum == (checksums > 0)
    base = codec.encoded_nbytes if location == "start" else 0
    rows = [(base + 10 * i, 10) if i % 3 != 1 else (MAX, MAX) for i in range(n)]
    expected = packed(rows, endian)
    for _ in range(checksums):
        expected = with_crc(expected)
    seal = codec.seal(ShardIndex(table_of(rows)))
    assert (seal.prefix, seal.suffix) == (
        (expected, b"") if location == "start" else (b"", expected)
    )
    decoded = codec.decode(memoryview(expected), 10 * n + codec.encoded_nbytes)
    assert decoded.table.dtype == np.uint64
    assert [tuple(map(int, row)) for row in decoded.table] == rows
    assert decoded.is_empty.tolist() == [row == (MAX, MAX) for row in rows]
    assert decoded.used_nbytes == sum(nbytes for offset, nbytes in rows if offset != MAX)


def test_build_marks_negative_sizes_as_empty():
    index = ShardIndex.build(np.array([5, 0, 9], np.int64), np.array([4, -1, 0], np.int64))
    assert index.table.tolist() == [[5, 4], [MAX, MAX], [9, 0]]
    assert index.table.dtype == np.uint64
    assert index.is_empty.tolist() == [False, True, False]
    assert index.used_nbytes == 4
    assert int(EMPTY) == MAX


def test_used_nbytes_does_not_wrap():
    assert ShardIndex(table_of([(0, 2**63), (0, 2**63), (0, 5)])).used_nbytes == 2**63 + 5


@pytest.mark.parametrize(("location", "expected"), [("start", (0, 36)), ("end", (64, 100))])
def test_span(location, expected):
    codec = IndexCodec(DEFAULT_INDEX_CODECS, (2,), location)
    assert codec.encoded_nbytes == 36
    assert codec.span(100) == expected
    assert codec.span(36) == (0, 36)
    for short in (0, 1, 35):
        with pytest.raises(CorruptShardError, match="too few"):
            codec.span(short)


N = 6
GRID = (2, 3)
ROWS = [(0, 10), (10, 20), (MAX, MAX), (30, 5), (35, 1), (36, 14)]
DATA_NBYTES = 50
SHARD_NBYTES = DATA_NBYTES + 16 * N + 4


def shifted(location):
    base = 16 * N + 4 if location == "start" else 0
    return [row if row[0] == MAX else (row[0] + base, row[1]) for row in ROWS]


def changed(rank, offset=None, nbytes=None):
    def apply(rows):
        rows = list(rows)
        old = rows[rank]
        rows[rank] = (old[0] if offset is None else offset, old[1] if nbytes is None else nbytes)
        return rows

    return apply


HOSTILE = {
    "offset past the end": changed(1, offset=SHARD_NBYTES + 1),
    "offset at the end": changed(1, offset=SHARD_NBYTES),
    "nbytes 2**40": changed(0, nbytes=2**40),
    "nbytes 2**63": changed(0, nbytes=2**63),
    "offset 2**63": changed(0, offset=2**63),
    "wrap-around to inside": changed(3, offset=2**64 - 4, nbytes=8),
    "wrap-around to zero": changed(3, offset=2**64 - 4, nbytes=4),
    "nearly wraps": changed(5, nbytes=2**64 - 2),
    "half empty, offset": changed(4, offset=MAX),
    "half empty, nbytes": changed(4, nbytes=MAX),
    "overlap by one byte": changed(0, nbytes=11),
    "swallows all others": changed(0, nbytes=DATA_NBYTES),
    "all inside the index": lambda rows: [
        (i * 2 + (0 if rows[0][0] else DATA_NBYTES), 2) for i in range(N)
    ],
}


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_table_with_a_right_checksum_is_refused(name, location):
    codec = IndexCodec(DEFAULT_INDEX_CODECS, GRID, location)
    good = shifted(location)
    codec.decode(with_crc(packed(good)), SHARD_NBYTES)
    rows = HOSTILE[name](good)
    with pytest.raises(CorruptShardError) as caught:
        codec.decode(with_crc(packed(rows)), SHARD_NBYTES)
    error = caught.value
    rank = error.inner_chunk[0] * 3 + error.inner_chunk[1]
    assert unravel(rank, GRID) == error.inner_chunk
    assert (error.offset, error.nbytes) == rows[rank]
    assert type(error.offset) is int
    assert all(type(i) is int for i in error.inner_chunk)
    blamed = set().union(*refusals(rows, SHARD_NBYTES, codec.span(SHARD_NBYTES)))
    assert rank in blamed


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunk_over_one_byte_of_the_index_is_refused(location):
    codec = IndexCodec(DEFAULT_INDEX_CODECS, (1,), location)
    touching = (19, 5) if location == "start" else (15, 6)
    beside = (20, 5) if location == "start" else (15, 5)
    codec.decode(with_crc(packed([beside])), 40)
    with pytest.raises(CorruptShardError, match="inside the index"):
        codec.decode(with_crc(packed([touching])), 40)


@pytest.mark.parametrize("location", ["start", "end"])
def test_every_bit_flip_is_found_by_the_checksum(location):
    codec = IndexCodec(DEFAULT_INDEX_CODECS, GRID, location)
    seal = codec.seal(ShardIndex(table_of(shifted(location))))
    encoded = bytes(seal.prefix or seal.suffix)
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptShardError, match="crc32c"):
            codec.decode(bytes(flipped), SHARD_NBYTES)


@pytest.mark.parametrize("codecs", [[LITTLE], [LITTLE, CRC]], ids=["bare", "crc32c"])
def test_truncated_and_zeroed_indexes_are_refused(codecs):
    codec = IndexCodec(codecs, GRID, "end")
    encoded = bytes(codec.seal(ShardIndex(table_of(ROWS))).suffix)
    for length in range(len(encoded)):
        with pytest.raises(CorruptShardError):
            codec.decode(encoded[:length], SHARD_NBYTES)
    with pytest.raises(CorruptShardError):
        codec.decode(encoded + b"\0", SHARD_NBYTES)
    if len(codecs) == 2:
        with pytest.raises(CorruptShardError):
            codec.decode(bytes(len(encoded)), SHARD_NBYTES)


def test_zeroed_index_without_checksum_names_no_bytes():
    """Nothing tells it from a shard of zero-length chunks; these fail later, when a codec meets no
    bytes."""
    assert IndexCodec([LITTLE], GRID, "end").decode(bytes(16 * N), 16 * N + 50).used_nbytes == 0


@pytest.mark.long
@settings(max_examples=200)
@given(st.binary(min_size=16 * 3, max_size=16 * 3), st.integers(48, 10**6))
def test_random_bytes_never_give_a_chunk_out_of_bounds(data, shard_nbytes):
    codec = IndexCodec([LITTLE], (3,), "end")
    try:
        index = codec.decode(data, shard_nbytes)
    except CorruptShardError:
        return
    for offset, nbytes in index.table.tolist():
        assert (offset, nbytes) == (MAX, MAX) or offset + nbytes <= shard_nbytes


@pytest.mark.parametrize(
    "compressor",
    [
        {"name": "gzip", "configuration": {"level": 1}},
        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
        {
            "name": "blosc",
            "configuration": {
                "cname": "lz4",
                "clevel": 5,
                "shuffle": "shuffle",
                "typesize": 8,
                "blocksize": 0,
            },
        },
    ],
    ids=lambda c: c["name"],
)
def test_compressed_index_is_refused(compressor):
    with pytest.raises(SpecError) as caught:
        IndexCodec([LITTLE, compressor], (2,), "end")
    assert caught.value.field == "index_codecs"
    assert caught.value.value == ["bytes", compressor["name"]]
    assert "crc32c" in caught.value.remedy


@pytest.mark.parametrize("location", ["middle", "", None, 0])
def test_unknown_location_is_refused(location):
    with pytest.raises(SpecError) as caught:
        IndexCodec(DEFAULT_INDEX_CODECS, (2,), location)
    assert (caught.value.field, caught.value.value) == ("index_location", location)
    assert "start" in caught.value.remedy
