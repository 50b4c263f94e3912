"""Encodings of the chunks of volumes: golden bytes, random values, foreign writers, bad bytes."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from tiers import drawn

from shardwrite.errors import CodecError, CorruptShardError
from shardwrite.volumes import codecs
from shardwrite.volumes.codecs import (
    CompressedSegmentation,
    VolumeSerializer,
    image_shape,
    volume_encoding,
)

CASES = drawn(100, n_quick=12)
SEGMENTATION = "neuroglancer_compressed_segmentation"


def labels(number):
    rng = np.random.default_rng(number)
    dtype = np.dtype(["uint32", "uint64"][number % 2])
    shape = (int(rng.integers(1, 3)), *rng.integers(1, 30, 3).tolist())
    block = tuple(rng.choice([1, 2, 3, 4, 8, 16], 3).tolist()) if number % 3 else (8, 8, 8)
    if number % 4 == 2:  # no block is cut
        shape = (shape[0], *(b * int(rng.integers(1, 4)) for b in reversed(block)))
    values = rng.integers(0, int(rng.choice([2, 3, 10, 300, 2**31])), shape).astype(dtype)
    if dtype.itemsize == 8:
        values = values * np.uint64(2**33) + values
    if number % 5 == 0:
        values[:, : shape[1] // 2] = 7
    return values, block


@pytest.mark.parametrize("number", CASES)
def test_segmentations(number):
    values, block = labels(number)
    codec = CompressedSegmentation(block, values.dtype)
    encoded = codec.encode(values)
    assert len(encoded) <= codec.most_nbytes(values.shape)
    np.testing.assert_array_equal(codec.decode(encoded, values.shape), values)


@pytest.mark.parametrize("number", CASES)
def test_segmentations_of_another_library(number):
    library = pytest.importorskip("compressed_segmentation")
    values, block = labels(number)
    codec = CompressedSegmentation(block, values.dtype)
    theirs = np.asfortranarray(values.transpose())
    if len(values) == 1:
        plain = library.compress(theirs, block_size=block, order="F")
        assert codec.encode(values) == plain, "the same bytes"
    keywords = {"dtype": values.dtype, "block_size": block, "order": "F"}
    size = theirs.shape[:3] if len(values) == 1 else theirs.shape
    back = library.decompress(codec.encode(values), volume_size=size, **keywords)
    np.testing.assert_array_equal(np.asarray(back).reshape(theirs.shape, order="F"), theirs)


def test_a_segmentation_byte_by_byte():
    """Four blocks of 2 by 1 by 1 voxels. Two of them are cut, and two share a table."""
    codec = CompressedSegmentation((2, 1, 1), np.dtype("uint32"))
    encoded = codec.encode(np.array([[[[9, 5, 5]], [[5, 5, 9]]]], "uint32"))
    headers = [(9 | 1 << 24, 8), (11, 11), (11, 12), (12, 12)]
    words = [1, *(word for header in headers for word in header), 0b01, 5, 9, 5, 9]
    assert encoded == np.array(words, "<u4").tobytes()
    back = codec.decode(encoded, (1, 2, 1, 3))
    assert back.tolist() == [[[[9, 5, 5]], [[5, 5, 9]]]]


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 1, 3)])
def test_codes_of_32_bits(shape):
    """Codes are seldom so wide. Two blocks, of which the second is cut in one of the cases."""
    codec = CompressedSegmentation((2, 1, 1), np.dtype("uint64"))
    words = [1, 4 | 32 << 24, 8, 4 | 32 << 24, 10, 7, 1, 8, 2, 1, 0, 0, 1]
    back = codec.decode(np.array(words, "<u4").tobytes(), (1, *shape))
    expected = [8 + 2**33, 7 + 2**32, 7 + 2**32, 8 + 2**33]
    assert back.reshape(-1).tolist() == expected[: shape[2]]


@pytest.mark.long
def test_more_labels_than_a_header_can_address():
    codec = CompressedSegmentation((8, 8, 8), np.dtype("uint64"))
    with pytest.raises(CodecError, match="make chunks smaller"):
        codec.encode(np.arange(2**23 + 2**16, dtype="uint64").reshape(1, 129, 256, 256))


@pytest.mark.parametrize("block", [(64, 64, 64), (64, 64, 32)])
def test_blocks_of_more_labels_than_the_package_takes(block):
    codec = CompressedSegmentation(block, np.dtype("uint32"))
    with pytest.raises(CodecError, match="a block has more than 65,536 labels; make blocks"):
        codec.encode(np.arange(2 * 64**3, dtype="uint32").reshape(2, 64, 64, 64))
    values = np.arange(64**3, dtype="uint32").reshape(1, 64, 64, 64) // 4
    np.testing.assert_array_equal(codec.decode(codec.encode(values), values.shape), values)


@pytest.mark.parametrize(
    ("at", "word", "message"),
    [
        (0, 2**32 - 1, "do not fit"),
        (0, 500, "do not fit"),
        (0, 0, "before the first"),
        (1, 3 << 24, "3 bits"),
        (1, 255 << 24, "255 bits"),
        (1, 2**24 - 1 | 8 << 24, "past its end"),
        (2, 2**32 - 1, "past its end"),
        (2, 300, "past its end"),
    ],
)
def test_hostile_segmentations(at, word, message):
    values = np.arange(512, dtype="uint64").reshape(1, 8, 8, 8) % 9
    codec = CompressedSegmentation((8, 8, 8), values.dtype)
    words = np.frombuffer(codec.encode(values), "<u4").copy()
    words[at] = word
    with pytest.raises(CorruptShardError, match=message):
        codec.decode(words.tobytes(), values.shape)


def test_torn_segmentations():
    values = np.arange(16 * 16 * 16, dtype="uint32").reshape(1, 16, 16, 16) % 77
    codec = CompressedSegmentation((8, 8, 8), values.dtype)
    encoded = codec.encode(values)
    for n in [*range(70), len(encoded) // 2, len(encoded) - 4, len(encoded) - 1]:
        with pytest.raises(CorruptShardError):
            codec.decode(encoded[:n], values.shape)


def test_a_bomb_of_equal_labels():
    codec = CompressedSegmentation((2**10, 2**11, 2**11), np.dtype("uint32"))
    with pytest.raises(CorruptShardError, match="are allowed"):
        codec.decode(np.array([1, 2, 2, 42], "<u4").tobytes(), (1, 2**11, 2**11, 2**10))


def test_tables_that_are_longer_than_their_block():
    """Each voxel has a table of its own with four labels, of which it takes the last."""
    tables = np.arange(100, 108, dtype="<u4")
    headers = [[7 + 4 * n | 8 << 24, 4 + n] for n in range(2)]
    words = np.concatenate([[1], *headers, [3, 3, 0], tables]).astype("<u4")
    found = CompressedSegmentation((1, 1, 1), np.dtype("u4")).decode(words.tobytes(), (1, 1, 1, 2))
    assert found.ravel().tolist() == [103, 107]


def test_huge_blocks_take_no_memory():
    """Of a block that is larger than the chunk, only what lies in the chunk is decoded."""
    codec = CompressedSegmentation((2**10, 2**11, 2**11), np.dtype("uint32"))
    encoded = np.array([1, 2, 2, 42], "<u4").tobytes()
    assert codec.decode(encoded, (1, 2, 2, 2)).tolist() == [[[[42, 42]] * 2] * 2]


def picture(number):
    rng = np.random.default_rng(number)
    dtype, n_channels = ["uint8", "uint16"][number % 2], 1 + number // 2 % 4
    shape = (*rng.integers(1, 40, 2).tolist(), n_channels)
    noise = rng.integers(0, 60_000 if number % 3 else 9, shape)
    return (noise if number % 5 else np.cumsum(noise, axis=number % 2)).astype(dtype)


def read_png(data, pixels):
    found = codecs.decode_png(
        data, (pixels.shape[0] * pixels.shape[1], pixels.shape[2]), pixels.dtype
    )
    np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)


@pytest.mark.parametrize("number", CASES)
def test_pngs(number):
    pixels = picture(number)
    encoded = codecs.encode_png(pixels)
    assert len(encoded) <= codecs.most_png_nbytes(*pixels.shape[:2], pixels[0, 0].nbytes)
    assert encoded == codecs.encode_png(pixels.copy())
    read_png(encoded, pixels)


def paeth(left, up, corner):
    """The neighbour that predicts each byte best, as the format says it."""
    of_left, of_up = abs(up - corner), abs(left - corner)
    of_corner = abs(left + up - 2 * corner)
    other = np.where(of_up <= of_corner, up, corner)
    return np.where((of_left <= of_up) & (of_left <= of_corner), left, other)


@pytest.mark.parametrize("n_channels", [2, 3, 4])
def test_all_bits_are_read(n_channels):
    """Pixels with every filter, of sizes that Pillow reads with 8 bits only."""
    pixels = np.random.default_rng(0).integers(0, 2**16, (9, 7, n_channels), dtype="u2")
    rows = np.ascontiguousarray(pixels.astype(">u2")).view("u1").reshape(9, 7, -1).astype(int)
    around = np.pad(rows, ((1, 0), (1, 0), (0, 0)))
    left, up, corner = around[1:, :-1], around[:-1, 1:], around[:-1, :-1]
    guesses = [0 * left, left, up, (left + up) // 2, paeth(left, up, corner)]
    data = b"".join(
        bytes([y % 5]) + (rows[y] - guesses[y % 5][y]).astype("u1").tobytes() for y in range(9)
    )
    colour = [4, 2, 6][n_channels - 2]
    encoded = made((7, 9, 16, colour, 0, 0, 0), data)
    read_png(encoded, pixels)
    bomb = made((7, 9, 16, colour, 0, 0, 0), bytes(2**26))
    for fault in (bomb, made((7, 9, 16, colour, 0, 0, 0), data[:-1]), encoded[:-1]):
        with pytest.raises(CorruptShardError):
            read_png(fault, pixels)
    with pytest.raises(CorruptShardError, match="interlaced"):
        read_png(made((7, 9, 16, colour, 0, 0, 1), data), pixels)
    with pytest.raises(CorruptShardError):
        read_png(made((7, 9, 16, colour, 0, 0, 0), b"\7" + data[1:]), pixels)


@pytest.mark.parametrize("number", CASES)
def test_pngs_of_pillow(number):
    image = pytest.importorskip("PIL.Image")
    pixels, stream = picture(number), io.BytesIO()
    if pixels.shape[2] > 1:
        pixels = pixels.astype("uint8")
    image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(stream, "PNG")
    read_png(stream.getvalue(), pixels)


def test_a_png_byte_by_byte():
    """Two channels of 16 bits. After the first row, each has the differences to the one above."""
    encoded = codecs.encode_png(np.array([[[1, 515]], [[2, 515]]], "uint16"))
    assert encoded[:8] == b"\x89PNG\r\n\x1a\n"
    assert encoded[8:33] == chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 2, 16, 4, 0, 0, 0))
    n = int.from_bytes(encoded[33:37], "big")
    assert zlib.decompress(encoded[41 : 41 + n]) == bytes([2, 0, 1, 2, 3, 2, 0, 1, 0, 0])
    assert encoded[33 + 12 + n :] == chunk(b"IEND", b"")


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def made(header=(4, 4, 8, 0, 0, 0, 0), rows=b"\0" * 20, *, data=None):
    body = zlib.compress(rows) if data is None else data
    parts = (
        chunk(b"IHDR", struct.pack(">IIBBBBB", *header)),
        chunk(b"IDAT", body),
        chunk(b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


HOSTILE = {
    "size": made((2**31 - 1, 2**31 - 1, 8, 0, 0, 0, 0)),
    "depth": made((4, 4, 16, 0, 0, 0, 0)),
    "palette": made((4, 4, 8, 3, 0, 0, 0)),
    "method": made((4, 4, 8, 0, 1, 0, 0)),
    "nothing": made((0, 4, 8, 0, 0, 0, 0)),
    "rows": made(rows=b"\0" * 7),
    "filter": made(rows=b"\7" * 20),
    "zlib": made(data=b"nonsense"),
    "signature": b"JUNK" + made()[4:],
    "checksum": made()[:-1] + b"x",
    "no header": made()[:8] + chunk(b"IEND", b""),
    "claim": made()[:8] + struct.pack(">I", 2**31) + made()[12:],
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_pngs(fault):
    read_png(made(), np.zeros((4, 4, 1), "uint8"))
    with pytest.raises(CorruptShardError):
        codecs.decode_png(HOSTILE[fault], (16, 1), np.dtype("uint8"))


def test_bombs_and_torn_pngs():
    """No more is decoded than the header says, which is checked before."""
    bomb = made(data=zlib.compress(bytes(2**26), 9))
    tracemalloc.start()
    read_png(bomb, np.zeros((4, 4, 1), "uint8"))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    for n in range(len(made())):
        with pytest.raises(CorruptShardError):
            codecs.decode_png(made()[:n], (16, 1), np.dtype("uint8"))


def test_interlaced_pngs_are_read_by_pillow():
    pytest.importorskip("PIL")
    pixels = np.arange(16, dtype="uint8").reshape(4, 4, 1)
    plain = pixels[..., 0].tolist()
    rows = [[0], [2], plain[2][::2], plain[0][1::2], plain[2][1::2], plain[1], plain[3]]
    data = b"".join(bytes([0, *row]) for row in rows)
    read_png(made((4, 4, 8, 0, 0, 0, 1), data), pixels)


def test_pngs_with_bytes_after_their_rows_are_read_by_pillow():
    pytest.importorskip("PIL")
    for more in (b"\0", b"\0" * 400):
        read_png(made(rows=b"\0" * 20 + more), np.zeros((4, 4, 1), "uint8"))


@pytest.mark.parametrize("n_channels", [1, 3])
def test_jpegs(n_channels):
    pytest.importorskip("simplejpeg")
    y, x = np.mgrid[:40, :30]
    pixels = np.stack([(3 * x + c * y) % 256 for c in range(n_channels)], axis=2).astype("uint8")
    encoded = codecs.encode_jpeg(pixels, 95)
    assert encoded == codecs.encode_jpeg(np.asfortranarray(pixels), 95)
    assert len(codecs.encode_jpeg(pixels, 20)) < len(encoded)
    found = codecs.decode_jpeg(encoded, 1200, n_channels).reshape(pixels.shape)
    assert np.abs(found.astype(int) - pixels).mean() < 3
    for fault in (
        encoded[:-1],
        encoded[: len(encoded) // 2] + b"\xff\xd9",
        encoded[:9] + b"\xff\xd9",
        b"",
        b"\xff\xd9",
    ):
        with pytest.raises(CorruptShardError):
            codecs.decode_jpeg(fault, 1200, n_channels)
    with pytest.raises(CorruptShardError, match="30 by 40"):
        codecs.decode_jpeg(encoded, 1201, n_channels)
    with pytest.raises(CorruptShardError, match="must be"):
        codecs.decode_jpeg(encoded, 1200, 4 - n_channels)


def test_jpegs_as_others_write_and_read_them():
    """Pillow decodes the same pixels. Its progressive and subsampled images are read, too."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("simplejpeg")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype="uint8")
    for n_channels, wanted in ((1, pixels[:, :, 0]), (3, pixels)):
        for options in ({}, {"progressive": True}, {"subsampling": 2}, {"quality": 1}):
            file = io.BytesIO()
            image.fromarray(wanted).save(file, "JPEG", **options)
            found = codecs.decode_jpeg(file.getvalue(), 1200, n_channels)
            same = np.asarray(image.open(file)).reshape(1200, n_channels)
            np.testing.assert_array_equal(found, same)
        encoded = codecs.encode_jpeg(pixels[:, :, :n_channels], 75)
        same = np.asarray(image.open(io.BytesIO(encoded))).reshape(1200, n_channels)
        np.testing.assert_array_equal(codecs.decode_jpeg(encoded, 1200, n_channels), same)
    file = io.BytesIO()
    image.fromarray(pixels).convert("CMYK").save(file, "JPEG")
    with pytest.raises(CorruptShardError, match="in CMYK, where 1200 in RGB must be"):
        codecs.decode_jpeg(file.getvalue(), 1200, 3)


def test_damaged_jpegs():
    """Each byte is changed in turn. That gives an error or pixels, and no error of the library."""
    pytest.importorskip("simplejpeg")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype="uint8")
    encoded = codecs.encode_jpeg(pixels, 50)
    n_refused = 0
    for place in range(len(encoded)):
        for value in (0, 0xFF, encoded[place] ^ 0x10):
            damaged = encoded[:place] + bytes([value]) + encoded[place + 1 :]
            try:
                assert codecs.decode_jpeg(damaged, 64, 3).shape == (64, 3)
            except CorruptShardError:
                n_refused += 1
    assert n_refused > len(encoded) // 2


@pytest.mark.parametrize(
    ("package", "name", "configuration", "dtype"),
    [
        ("simplejpeg", "neuroglancer_jpeg", {"quality": 75}, "uint8"),
        ("PIL.Image", "neuroglancer_png", {}, "uint8"),
        ("compressed_segmentation", SEGMENTATION, {"block_size": [8, 8, 8]}, "uint32"),
    ],
)
def test_the_missing_library_is_named(monkeypatch, package, name, configuration, dtype):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CodecError, match=r"shardwrite\[precomputed\]"):
        volume_encoding(name, configuration, np.dtype(dtype), 1)


def test_images_of_chunks():
    assert image_shape((64, 32, 16), 65_500) == (2048, 16)
    assert image_shape((128, 1024, 16), 65_500) == (128, 2**14)
    with pytest.raises(CodecError, match="smaller"):
        image_shape((512, 512, 512), 65_500)


@pytest.mark.parametrize(
    ("name", "configuration", "dtype", "n_channels"),
    [
        ("neuroglancer_png", {}, "uint32", 1),
        ("neuroglancer_png", {}, "uint8", 5),
        ("neuroglancer_jpeg", {"quality": 75}, "uint16", 1),
        ("neuroglancer_jpeg", {"quality": 75}, "uint8", 2),
        ("neuroglancer_jpeg", {"quality": 0}, "uint8", 1),
        ("neuroglancer_jpeg", {}, "uint8", 1),
        (SEGMENTATION, {"block_size": [8, 8, 8]}, "uint16", 1),
        (SEGMENTATION, {"block_size": [8, 8]}, "uint32", 1),
        (SEGMENTATION, {"block_size": [8, 0, 8]}, "uint32", 1),
        (SEGMENTATION, {"block_size": [2**20] * 3}, "uint32", 1),
        (SEGMENTATION, {}, "uint32", 1),
    ],
)
def test_what_does_not_fit(name, configuration, dtype, n_channels):
    with pytest.raises(CodecError):
        volume_encoding(name, configuration, np.dtype(dtype), n_channels)


def test_pipelines():
    stages = [{"name": "neuroglancer_png"}, {"name": "gzip", "configuration": {"level": 5}}]
    made = VolumeSerializer.build(stages, (2, 3, 4, 5), np.dtype("uint16"))
    batch = np.arange(360, dtype="uint16").reshape(3, 2, 3, 4, 5)
    for row, buffer in zip([2, 0], made.encode(batch, np.array([2, 0])), strict=True):
        assert len(buffer) <= made.most_encoded_nbytes
        np.testing.assert_array_equal(made.decode(buffer), batch[row])
    for shape, wrong in (((4, 5), stages), ((2, 2, 2), [stages[0], {"name": "transpose"}])):
        with pytest.raises(CodecError):
            VolumeSerializer.build(wrong, shape, np.dtype("uint16"))
