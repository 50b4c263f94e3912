"""The sharded format of Neuroglancer precomputed: bytes and numbers that were computed by hand from
the format's document, hashes against a scalar implementation, and what is refused."""

from __future__ import annotations

import gzip
import itertools
import json
import struct

import numpy as np
import pytest

from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.order import BY_CHUNK_ID, boxes, permutation
from shardwrite.grid import Box, ShardGrid
from shardwrite.volumes.scale import ScatteredShards, scattered_ids
from shardwrite.volumes.sharding import (
    MortonCode,
    ShardingParameters,
    check_ranges,
    decode_minishard,
    murmurhash3_x86_128,
    parse_entries,
    seal,
    sequence,
)

LEGAL = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "preshift_bits": 1,
    "hash": "identity",
    "minishard_bits": 2,
    "shard_bits": 1,
    "minishard_index_encoding": "raw",
    "data_encoding": "raw",
}
WORD = 2**32 - 1


def murmur_of(data: bytes) -> int:
    """MurmurHash3_x86_128 with seed 0 of fewer than 16 bytes, one step after the other."""
    rotate = lambda x, n: (x << n | x >> 32 - n) & WORD  # noqa: E731
    c = [0x239B961B, 0xAB0E9789, 0x38B34AE5, 0xA1E38B93]
    h = [0, 0, 0, 0]
    words = struct.unpack("<4I", data.ljust(16, b"\0"))
    for i, turn in enumerate((15, 16, 17, 18)):
        k = rotate(words[i] * c[i] & WORD, turn) * c[(i + 1) % 4] & WORD
        h[i] ^= k ^ len(data)

    def mix_all():
        h[0] = sum(h) & WORD
        h[1:] = [(one + h[0]) & WORD for one in h[1:]]

    mix_all()
    for i, x in enumerate(h):
        x ^= x >> 16
        x = x * 0x85EBCA6B & WORD
        x ^= x >> 13
        x = x * 0xC2B2AE35 & WORD
        h[i] = x ^ x >> 16
    mix_all()
    return h[0] | h[1] << 32


def test_murmur():
    rng = np.random.default_rng(0)
    ids = np.concatenate(
        [
            rng.integers(0, 2**64, 200, dtype=np.uint64),
            np.array([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1], np.uint64),
        ]
    )
    wanted = [murmur_of(int(one).to_bytes(8, "little")) for one in ids]
    assert murmurhash3_x86_128(ids).tolist() == wanted


@pytest.mark.parametrize(
    ("grid", "position", "code"),
    [
        ((3, 3, 3), (2, 2, 1), 0b011100),
        ((2, 3, 1), (1, 2, 0), 0b000101),
        ((8, 8, 2), (5, 5, 0), 0b1100011),
        ((1, 1, 1), (0, 0, 0), 0),
    ],
)
def test_codes_computed_by_hand(grid, position, code):
    assert MortonCode(grid).encode([position]).tolist() == [code]
    assert MortonCode(grid).decode([code]).tolist() == [list(position)]


@pytest.mark.parametrize("grid", [(5, 3, 2), (1, 7, 4), (2**30, 2**20, 2**14), (6, 1, 1, 3)])
def test_codes_are_unique_and_reversible(grid):
    rng = np.random.default_rng(0)
    cells = np.unique(np.stack([rng.integers(0, n, 200) for n in grid], axis=1), axis=0)
    codes = MortonCode(grid).encode(cells)
    assert len(np.unique(codes)) == len(cells)
    np.testing.assert_array_equal(MortonCode(grid).decode(codes), cells)


@pytest.mark.parametrize("grid", [(5, 3, 2), (1, 7, 4), (9, 2, 1)])
def test_low_bits_of_a_code_span_a_box(grid):
    code = MortonCode(grid)
    cells = np.array(list(np.ndindex(grid)))
    for n_bits in range(code.n_bits + 1):
        box = np.array(code.low_box(n_bits))
        of_box = [tuple(cell) for cell in cells // box]
        of_code = (code.encode(cells) >> np.uint64(n_bits)).tolist()
        assert len(set(zip(of_box, of_code, strict=True))) == len(set(of_box)) == len(set(of_code))


def test_codes_that_are_refused():
    for grid in [(0, 1, 1), (2**30, 2**30, 2**5)]:
        with pytest.raises(SpecError):
            MortonCode(grid)
    for position in [(3, 0, 0), (0, -1, 0)]:
        with pytest.raises(SpecError, match="count chunks from 0"):
            MortonCode((3, 3, 3)).encode([position])
    for code in (0b000011 | 0b110000 | 0b001100, 2**40):
        with pytest.raises(SpecError, match="not the code of a chunk"):
            MortonCode((3, 3, 3)).decode([code])


def test_places_and_keys_computed_by_hand():
    sharding = ShardingParameters(preshift_bits=3, minishard_bits=2, shard_bits=9)
    ids = [0b1_000000101_01_000, 0b000000101_01_111, 0b111111111_11_000]
    shards, minishards = sharding.locate(ids)
    assert shards.tolist() == [0b000000101, 0b000000101, 0b111111111]
    assert minishards.tolist() == [1, 1, 3]
    assert [sharding.key_of(n) for n in (5, 511)] == ["005.shard", "1ff.shard"]
    assert ShardingParameters().key_of(0) == "0.shard"
    assert sharding.shard_of("1ff.shard") == 511
    for wrong in ("1FF.shard", "1ff", "01ff.shard", "200.shard", "a/1ff.shard", "info"):
        assert sharding.shard_of(wrong) is None
    assert ShardingParameters().shard_of("0.shard") == 0


@pytest.mark.parametrize("name", ["identity", "murmurhash3_x86_128"])
@pytest.mark.parametrize("bits", [(0, 0, 0), (64, 3, 3), (0, 64, 0), (0, 0, 64), (1, 31, 33)])
def test_places_at_the_limits_of_bits(bits, name):
    preshift, minishard, shard = bits
    sharding = ShardingParameters(
        preshift_bits=preshift, hash=name, minishard_bits=minishard, shard_bits=shard
    )
    ids = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    for one, *found in zip(ids, *sharding.locate(ids), strict=True):
        code = one >> preshift
        code = code if name == "identity" else murmur_of(code.to_bytes(8, "little"))
        assert found == [code >> minishard & (1 << shard) - 1, code & (1 << minishard) - 1]


def shard_of(sharding, values):
    """Bytes of a shard."""
    ids = np.array(list(values), np.uint64)
    ids = ids[sequence(sharding, ids)]
    sealed = seal(sharding, ids, np.array([len(values[int(one)]) for one in ids], np.uint64))
    index = bytearray(sharding.shard_index_nbytes)
    for at, piece in sealed.entries:
        index[at : at + len(piece)] = piece
    return bytes(index) + b"".join(values[int(one)] for one in ids) + sealed.suffix


def test_golden_bytes():
    """preshift 1, four minishards: ids 0, 1, 16 and 17 lie in minishard 0, and 4 in minishard 2."""
    sharding = ShardingParameters.from_dict(LEGAL)
    shard = shard_of(sharding, {17: b"d", 0: b"aa", 4: b"ee", 1: b"b", 16: b"ccc"})
    words = lambda *values: struct.pack(f"<{len(values)}Q", *values)  # noqa: E731
    assert shard == b"".join(
        [
            words(9, 9 + 96),  # minishard 0: nine bytes of chunks lie before its index
            words(0, 0),
            words(105, 105 + 24),
            words(0, 0),
            b"aabcccdee",
            words(0, 1, 15, 1),  # ids, each as the difference to the one before
            words(0, 0, 0, 0),  # the first chunk lies at 0, and all others follow it
            words(2, 1, 3, 1),
            words(4, 7, 2),
        ]
    )


def test_gzip_indexes_hold_the_same_and_no_time():
    raw = ShardingParameters.from_dict(LEGAL)
    zipped = ShardingParameters.from_dict({**LEGAL, "minishard_index_encoding": "gzip"})
    values = {0: b"aa", 4: b"ee"}
    shard = shard_of(zipped, values)
    start, end = struct.unpack_from("<QQ", shard)
    data = shard[64 + start : 64 + end]
    assert gzip.decompress(data) == shard_of(raw, values)[-48:-24]
    assert data[:2] == b"\x1f\x8b"
    assert data[4:8] == bytes(4)


def test_an_empty_shard_is_zeros():
    assert shard_of(ShardingParameters(minishard_bits=3), {}) == bytes(128)


def test_an_index_of_many_minishards_costs_what_is_in_it():
    sharding = ShardingParameters(minishard_bits=40)
    ids = np.array([5, 2**39, 2**40 - 1], np.uint64)
    entries = seal(sharding, ids, np.ones(3, np.uint64)).entries
    assert [at for at, _ in entries] == [16 * one for one in ids.tolist()]
    assert sum(len(piece) for _, piece in entries) == 48


def test_numbers_of_bits_may_be_those_of_numpy():
    found = ShardingParameters(preshift_bits=np.uint64(3), shard_bits=np.int8(1))
    assert found == ShardingParameters(preshift_bits=3, shard_bits=1)
    assert json.loads(json.dumps(found.to_dict()))["preshift_bits"] == 3


def test_parameters_come_back():
    assert ShardingParameters.from_dict(LEGAL).to_dict() == LEGAL
    short = {key: value for key, value in LEGAL.items() if not key.endswith("encoding")}
    assert ShardingParameters.from_dict(short).data_encoding == "raw"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"@type": "neuroglancer_uint64_sharded_v2"}, "@type"),
        *(
            ({field: wrong}, field)
            for field, wrong in itertools.product(
                ("preshift_bits", "minishard_bits", "shard_bits"), (-1, 65, 1.0, True, "3", None)
            )
        ),
        ({"hash": "murmurhash3"}, "hash"),
        ({"data_encoding": "zstd"}, "data_encoding"),
        ({"minishard_index_encoding": None}, "minishard_index_encoding"),
        ({"minishard_bits": 60, "shard_bits": 5}, "shard_bits"),
        ({"data_encodings": "raw"}, "sharding"),
    ],
)
def test_parameters_that_are_refused(change, field):
    with pytest.raises(SpecError) as caught:
        ShardingParameters.from_dict({**LEGAL, **change})
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize("document", [None, [], "x", {}, {"@type": LEGAL["@type"]}])
def test_documents_that_are_refused(document):
    with pytest.raises(SpecError):
        ShardingParameters.from_dict(document)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[5, 4]], "ends before it starts"),
        ([[0, 101]], "past the end"),
        ([[2**63, 2**64 - 1]], "past the end"),
        ([[0, 10], [20, 30], [9, 11]], "overlaps another"),
        ([[0, 10], [0, 10]], "overlaps another"),
    ],
)
def test_ranges_that_cannot_be(ranges, message):
    with pytest.raises(CorruptShardError, match=message):
        check_ranges(np.array(ranges, np.uint64), 100, "index")


def test_ranges_of_no_bytes_lie_anywhere():
    found = check_ranges(np.array([[50, 60], [2**63, 2**63], [0, 50]], np.uint64), 100, "index")
    assert found.tolist() == [[0, 50], [50, 60]]


def columns(*rows):
    return np.array(rows, "<u8").tobytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x" * 25, "no multiple of 24"),
        (columns([0, 0], [0, 0], [1, 1]), "names chunk 0 twice"),
        (columns([2], [0], [1]), "belongs elsewhere"),
        (columns([0], [0], [2**63]), "past the end"),
        (columns([0], [37], [0]), "past the end"),
        (columns([0], [2**64 - 1], [2]), "past the end"),
        (columns([0, 16], [0, 2**64 - 2], [1, 1]), "past the end"),
        (columns([0] * 5, [0] * 5, [0] * 5), "bytes, and 100 are allowed"),
    ],
)
def test_indexes_that_cannot_be(data, message):
    with pytest.raises(CorruptShardError, match=message):
        decode_minishard(ShardingParameters.from_dict(LEGAL), data, 100, (0, 0), 100)


def test_a_chunk_may_lie_before_the_one_with_the_smaller_id():
    data = columns([0, 16], [10, 2**64 - 7], [2, 3])
    found = decode_minishard(ShardingParameters.from_dict(LEGAL), data, 100, (0, 0), 100)
    assert found.find(0) == (74, 2)
    assert found.find(16) == (69, 3)
    assert found.find(17) is None


def test_a_bomb_is_stopped():
    sharding = ShardingParameters.from_dict({**LEGAL, "minishard_index_encoding": "gzip"})
    bomb = gzip.compress(bytes(10**7))
    with pytest.raises(CorruptShardError, match="gzip"):
        decode_minishard(sharding, bomb, 10**9, (0, 0), 10**6)


@pytest.mark.parametrize("grid", [(3, 2, 1), (8, 8, 2), (5, 1, 9), (1, 1, 1), (16, 3, 7)])
def test_chunks_of_a_shard_lie_in_the_order_of_their_ids(grid):
    """The order of chunks in a box of z, y and x is that of the ids, and so are its parts."""
    code = MortonCode(grid)
    for n_low in range(code.n_bits + 3):
        box = code.low_box(n_low)
        codes = code.low_codes(n_low)
        assert codes.shape == box
        assert sorted(codes.ravel().tolist()) == list(range(2 ** min(n_low, code.n_bits)))
        inside = [cell for cell in np.ndindex(box) if all(map(int.__lt__, cell, grid))]
        assert [codes[cell] for cell in inside] == code.encode(inside).tolist()
        by_rank = codes.T.ravel()
        assert (np.diff(by_rank[permutation(box[::-1], BY_CHUNK_ID)].astype(int)) == 1).all()
        cut = tuple(max(1, n - 1) for n in box)[::-1]
        within = codes.T[tuple(slice(0, n) for n in cut)].ravel()
        for most in (1, 4, 100):
            ranks = []
            for part in boxes(cut, BY_CHUNK_ID, most):
                rows = np.arange(len(within)).reshape(cut)[part.slices].ravel()
                ranks += rows[permutation(part.shape, BY_CHUNK_ID)].tolist()
            assert (np.diff(within[ranks].astype(int)) > 0).all()


def test_chunks_that_lie_in_another_order_are_found():
    """Offsets are differences that wrap around, as readers add them."""
    sharding = ShardingParameters(preshift_bits=2, minishard_bits=1, minishard_index_encoding="raw")
    ids, sizes = np.array([0, 1, 3, 4], "u8"), np.array([5, 6, 7, 8], "u8")
    starts = np.array([20, 0, 13, 6], "u8")
    sealed = seal(sharding, ids, sizes, starts)
    entries = parse_entries(sealed.entries[0][1])
    assert entries[0, 0] == 25  # indexes follow the last byte of all chunks
    for number, (start, end) in enumerate(entries.tolist()):
        data = sealed.suffix[start - 25 : end - 25]
        found = decode_minishard(sharding, data, 1000, (0, number), 1000)
        own = ids >> np.uint64(2) == number
        assert found.ids.tolist() == ids[own].tolist()
        assert found.offsets.tolist() == (starts[own] + np.uint64(32)).tolist()
        assert found.nbytes.tolist() == sizes[own].tolist()


@pytest.mark.parametrize("region", [((0, 9), (0, 8), (0, 7)), ((2, 3), (3, 8), (1, 6))])
def test_chunks_of_a_box_that_are_scattered(region):
    """Each element is in one chunk, which lies where `origins` says."""
    sharding = ShardingParameters(hash="murmurhash3_x86_128", minishard_bits=1, shard_bits=2)
    code = MortonCode((2, 3, 3))
    ids = scattered_ids(sharding, code)
    grid = ShardGrid(
        (ids.n_slots * len(ids.numbers), 4, 3, 4), (ids.n_slots, 4, 3, 4), (1, 4, 3, 4)
    )
    placed = ScatteredShards(sharding, (7, 8, 9), grid)
    assert placed.origin_shape == (9, 8, 7)
    seen = np.zeros((9, 8, 7), int)
    box = Box(tuple(a for a, _ in region), tuple(b for _, b in region))
    boxes = ShardGrid((9, 8, 7), (4, 3, 4), (4, 3, 4))
    for number, chunks in placed.chunks_in(box):
        cells, _ = placed.origins((number, 0, 0, 0), boxes)
        for rank, part in chunks:
            seen[part.slices] += 1
            cell = np.unravel_index(cells[rank], boxes.counts)
            assert part.start == tuple(int(i) * c for i, c in zip(cell, (4, 3, 4), strict=True))
    assert (seen[box.slices] == 1).all()
    assert seen.max() == 1
