"""Codecs: the bytes are zarr-python's in both directions, and wrong bytes are refused without
taking memory."""

import contextlib
import gzip
import importlib.util
import json
import math
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.dtype
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.buffer.cpu import Buffer as ZarrBuffer

from shardwrite.codecs.datatypes import native_dtype
from shardwrite.codecs.foreign import ForeignPipeline
from shardwrite.codecs.pipeline import NativePipeline, build_pipeline
from shardwrite.codecs.stages import NumcodecsStage, build_stage
from shardwrite.errors import CodecError, CorruptShardError

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))
from peaks import least_peak

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Numcodecs codecs are not in the Zarr version 3 specification"
    ),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:The data type:FutureWarning"),
]

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def blosc(**changes):
    return codec(
        "blosc",
        **{
            "cname": "lz4",
            "clevel": 5,
            "shuffle": "shuffle",
            "typesize": 4,
            "blocksize": 0,
            **changes,
        },
    )


def json_dtype(dtype):
    """What zarr-python calls a dtype."""
    memory = {}
    zarr.create_array(zarr.storage.MemoryStore(memory), shape=(1,), dtype=dtype, zarr_format=3)
    document = json.loads(memory["zarr.json"].to_bytes())
    return document["data_type"], document["fill_value"]


def document_of(codecs, shape, dtype):
    data_type, fill_value = json_dtype(dtype)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "data_type": data_type,
        "fill_value": fill_value,
        "shape": list(shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs,
        "attributes": {},
    }


class Zarr:
    """A one-chunk array of zarr-python."""

    def __init__(self, document):
        self.memory = {"zarr.json": ZarrBuffer.from_bytes(json.dumps(document).encode())}
        self.key = "/".join(["c", *"0" * len(document["shape"])])
        with zarr.config.set({"array.write_empty_chunks": True}):
            self.array = zarr.open_array(zarr.storage.MemoryStore(self.memory), mode="r+")

    def encode(self, chunk):
        self.array[...] = chunk
        return self.memory[self.key].to_bytes()

    def decode(self, data):
        self.memory[self.key] = ZarrBuffer.from_bytes(data)
        return np.asarray(self.array[...])


def pipeline_for(codecs, shape, dtype):
    document = document_of(codecs, shape, dtype)
    native = native_dtype(document["data_type"])
    return build_pipeline(codecs, shape, native, document), document


def same(a, b):
    """Equal to the bit, whatever the byte order."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "OT" or b.dtype.kind in "OT":
        return a.shape == b.shape and a.astype(object).tolist() == b.astype(object).tolist()
    return a.shape == b.shape and a.tobytes() == b.astype(a.dtype).tobytes()


def sample(dtype, shape, seed=0):
    """Compressible data with the dtype's odd values in it."""
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    n = math.prod(shape)
    if dtype.kind in "OT":
        words = ["", "a", "äöü", "many " * 30, "\U0001f40d", "z"]
        return np.array([words[i] for i in random.integers(0, len(words), n)], dtype=dtype).reshape(
            shape
        )
    if dtype.kind == "U":
        return np.array(
            [["", "a", "äb", "xyz"][i] for i in random.integers(0, 4, n)], dtype=dtype
        ).reshape(shape)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    raw = (
        random.integers(0, 256, n * dtype.itemsize)
        & random.integers(0, 2, n * dtype.itemsize) * 255
    ).astype(np.uint8)
    values = raw.view(dtype).reshape(shape)
    if dtype.kind in "fc":
        values = random.normal(size=shape).astype(dtype.newbyteorder("=")).astype(dtype)
        flat = values.reshape(-1)
        odd = [np.nan, -0.0, np.inf, -np.inf, 0.0][: flat.size]
        flat[: len(odd)] = odd
    return values.copy(order="C")


def check_compatible(codecs, dtype, shape=(6, 5), exact=True):
    """Both directions, in batches and by rows."""
    pipeline, document = pipeline_for(codecs, shape, dtype)
    theirs = Zarr(document)
    chunks = [sample(dtype, shape, seed) for seed in range(3)]
    batch = np.stack(chunks).astype(pipeline.stored_dtype)
    encoded = [bytes(e) for e in pipeline.encode(batch)]
    assert len(encoded) == 3
    for chunk, data in zip(chunks, encoded, strict=True):
        expected = chunk if exact else theirs.decode(theirs.encode(chunk))
        read = theirs.decode(data)
        assert same(expected, read), "zarr-python reads something else"
        assert same(read, pipeline.decode(data)), "we read something else than zarr-python"
        assert same(expected, pipeline.decode(memoryview(theirs.encode(chunk)))), (
            "we read zarr-python's bytes wrongly"
        )
        if pipeline.encoded_nbytes is not None:
            assert len(data) == pipeline.encoded_nbytes == len(theirs.encode(chunk))
    rows = np.array([2, 0], np.int64)
    assert [bytes(e) for e in pipeline.encode(batch, rows)] == [encoded[2], encoded[0]]
    assert list(pipeline.encode(batch, rows[:0])) == []
    decoded = pipeline.decode(encoded[0])
    assert decoded.shape == shape
    assert decoded.dtype == pipeline_dtype(document)
    if pipeline.is_identity:
        assert encoded == [chunk.astype(pipeline.stored_dtype).tobytes() for chunk in chunks]
    return pipeline


def pipeline_dtype(document):
    return native_dtype(document["data_type"])


STRUCT = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3")])
DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "datetime64[ns]", "datetime64[D]", "timedelta64[s]", "S1", "S7", "U1", "U4", "V5",
]  # fmt: skip


@pytest.mark.compat
@pytest.mark.parametrize("dtype", [*DTYPES, STRUCT], ids=str)
@pytest.mark.parametrize("serializer", [LITTLE, BIG], ids=["little", "big"])
@pytest.mark.parametrize("rest", [[], [ZSTD, CRC]], ids=["bare", "zstd+crc32c"])
def test_every_dtype(dtype, serializer, rest):
    is_single_byte = np.dtype(dtype).itemsize == 1 or np.dtype(dtype).kind in "SV"
    if np.dtype(dtype).fields and serializer is BIG:
        pytest.skip(
            "zarr-python writes the fields of a structure as they are in memory, whatever the codec says"
        )
    pipeline = check_compatible([serializer, *rest], dtype)
    assert isinstance(pipeline, NativePipeline)
    if not rest and not is_single_byte:
        pipeline, _ = pipeline_for([serializer], (3,), dtype)
        chunk = sample(dtype, (3,))
        order = "<" if serializer is LITTLE else ">"
        expected = (
            chunk.tobytes()
            if np.dtype(dtype).fields
            else chunk.astype(np.dtype(dtype).newbyteorder(order)).tobytes()
        )
        assert bytes(pipeline.encode(chunk[None].astype(pipeline.stored_dtype))[0]) == expected


@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 1, 3), (1, 1, 1, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "codecs",
    [[LITTLE], [LITTLE, CRC], [LITTLE, GZIP], [LITTLE, ZSTD, CRC]],
    ids=lambda c: c[-1]["name"],
)
def test_every_rank(shape, codecs):
    check_compatible(codecs, "uint16", shape)


ORDERS = [[1, 0, 2], [2, 1, 0], [0, 1, 2], [2, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("serializer", [LITTLE, BIG], ids=["little", "big"])
def test_transpose(order, serializer):
    check_compatible([codec("transpose", order=order), serializer], "int32", (2, 3, 4))
    check_compatible([codec("transpose", order=order), serializer, ZSTD], "float64", (2, 3, 4))


def test_transposes_add_up():
    check_compatible(
        [codec("transpose", order=[1, 2, 0]), codec("transpose", order=[2, 1, 0]), LITTLE],
        "int32",
        (2, 3, 4),
    )
    pipeline, _ = pipeline_for(
        [codec("transpose", order=[1, 2, 0])] * 3 + [LITTLE], (2, 3, 4), "int32"
    )
    chunk = sample("int32", (1, 2, 3, 4))
    assert bytes(pipeline.encode(chunk)[0]) == chunk.tobytes(), "three turns are none"


@pytest.mark.parametrize(
    "order", [None, [0, 0], [0], [0, 1, 2], ["0", "1"], [1.0, 0.0], "10", [True, False]], ids=str
)
def test_transpose_that_is_no_permutation_is_refused(order):
    with pytest.raises(CodecError) as caught:
        build_pipeline([codec("transpose", order=order), LITTLE], (2, 3), np.dtype("u1"), {})
    assert caught.value.codec == "transpose"


@pytest.mark.compat
@pytest.mark.parametrize("level", range(10))
def test_gzip_levels(level):
    check_compatible([LITTLE, codec("gzip", level=level)], "uint16", (40, 50))


@pytest.mark.compat
@pytest.mark.parametrize("level", [-5, 0, 1, 3, 9, 19])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_levels(level, checksum):
    check_compatible([LITTLE, codec("zstd", level=level, checksum=checksum)], "uint16", (40, 50))


@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_frames_say_their_size_and_have_the_checksum_asked_for(checksum):
    for n in (1, 3):
        frames = build_stage("zstd", {"level": 1, "checksum": checksum}, 1).encode(
            [b"abc" * 100] * n
        )
        for frame in map(bytes, frames):
            assert bool(frame[4] & 4) == checksum
            assert frame[4] >> 6 or frame[4] >> 5 & 1, "the header has no content size"


@pytest.mark.compat
@pytest.mark.parametrize("cname", ["lz4", "lz4hc", "blosclz", "snappy", "zlib", "zstd"])
@pytest.mark.parametrize("shuffle", ["noshuffle", "shuffle", "bitshuffle"])
def test_blosc(cname, shuffle):
    if cname == "snappy" and "snappy" not in numcodecs.blosc.list_compressors():
        pytest.skip("this numcodecs has no snappy")
    check_compatible([LITTLE, blosc(cname=cname, shuffle=shuffle)], "uint32", (40, 50))


@pytest.mark.parametrize(
    "changes",
    [{"clevel": 0}, {"clevel": 9}, {"blocksize": 256}, {"typesize": 1}, {"typesize": 8}],
    ids=str,
)
def test_blosc_settings(changes):
    check_compatible([LITTLE, blosc(**changes)], "uint32", (40, 50))


@pytest.mark.parametrize("dtype", ["uint8", "float64", "S3", "complex64"])
def test_blosc_of_other_sizes(dtype):
    check_compatible([LITTLE, blosc(typesize=np.dtype(dtype).itemsize), CRC], dtype)


def test_crc32c_bytes():
    pipeline, _ = pipeline_for([LITTLE, CRC], (9,), "uint8")
    assert bytes(pipeline.encode(np.frombuffer(b"123456789", np.uint8)[None])[0])[
        -4:
    ] == struct.pack("<I", 0xE3069283)


NUMCODECS = [
    codec("numcodecs.zlib", level=3), codec("numcodecs.gzip", level=2), codec("numcodecs.bz2", level=2),
    codec("numcodecs.lzma", preset=1), codec("numcodecs.lzma", format=2, preset=1), codec("numcodecs.lz4", acceleration=1),
    codec("numcodecs.zstd", level=2), codec("numcodecs.blosc", cname="zstd", clevel=3, shuffle=1, blocksize=0),
    codec("numcodecs.shuffle", elementsize=4), codec("numcodecs.crc32"), codec("numcodecs.crc32c"),
    codec("numcodecs.adler32"), codec("numcodecs.fletcher32"), codec("numcodecs.jenkins_lookup3"),
]  # fmt: skip


@pytest.mark.compat
@pytest.mark.parametrize("stage", NUMCODECS, ids=lambda c: f"{c['name']}-{c['configuration']}")
def test_numcodecs_bytes_to_bytes(stage):
    if stage["name"] == "numcodecs.jenkins_lookup3":
        with pytest.raises(
            CodecError
        ):  # zarr-python's registry has none, but ours reads the bytes all the same
            build_pipeline(
                [LITTLE, codec("numcodecs.no_such")],
                (4,),
                np.dtype("u4"),
                document_of([LITTLE], (4,), "u4"),
            )
        built = build_stage(stage["name"], {}, 1)
        assert bytes(built.decode(built.encode([b"abcd" * 9])[0], 36)) == b"abcd" * 9
        return
    pipeline = check_compatible([LITTLE, stage], "uint32", (10, 20))
    assert isinstance(pipeline, NativePipeline)
    check_compatible([LITTLE, stage, CRC], "float32", (10, 20))


FILTERS = {
    "delta": (codec("numcodecs.delta", dtype="<i4"), "int32", True),
    "fixedscaleoffset": (
        codec("numcodecs.fixedscaleoffset", offset=0, scale=10, dtype="<f8", astype="<i4"),
        "float64",
        False,
    ),
    "bitround": (codec("numcodecs.bitround", keepbits=5), "float32", False),
    "astype": (codec("numcodecs.astype", encode_dtype="<f4", decode_dtype="<f8"), "float64", False),
    "quantize": (codec("numcodecs.quantize", digits=2, dtype="<f8"), "float64", False),
    "packbits": (codec("numcodecs.packbits"), "bool", True),
}


@pytest.mark.compat
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("rest", [[], [ZSTD, CRC]], ids=["bare", "zstd+crc32c"])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_numcodecs_filters(name, rest):
    array_codec, dtype, exact = FILTERS[name]
    shape = (24,) if name == "packbits" else (6, 5)
    pipeline = check_compatible([array_codec, LITTLE, *rest], dtype, shape, exact=exact)
    assert isinstance(pipeline, ForeignPipeline)


def test_threads_leave_the_configuration_of_zarr_as_it_was(monkeypatch):
    """Threads open the array of such a pipeline at the same time, and zarr's settings are global."""
    pipeline, _ = pipeline_for([FILTERS["delta"][0], LITTLE], (4,), "int32")
    before, opened, seen = zarr.config.get("array.write_empty_chunks"), zarr.open_array, []

    def slow(*args, **kwargs):
        time.sleep(0.02)
        seen.append(zarr.config.get("array.write_empty_chunks"))
        return opened(*args, **kwargs)

    monkeypatch.setattr(zarr, "open_array", slow)
    started = threading.Barrier(4)

    def encode(_):
        started.wait()
        return bytes(pipeline.encode(np.zeros((1, 4), "int32"))[0])

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(encode, range(4)))) == 1
    assert seen == [True] * 4
    assert zarr.config.get("array.write_empty_chunks") == before


@pytest.mark.compat
def test_pcodec():
    pytest.importorskip("pcodec")
    check_compatible([codec("numcodecs.pcodec", level=8)], "float32", exact=False)


@pytest.mark.compat
@pytest.mark.parametrize(
    "rest", [[], [ZSTD], [ZSTD, CRC], [codec("numcodecs.lz4", acceleration=1)]]
)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)], ids=str)
def test_vlen_utf8(rest, shape):
    codecs = [codec("vlen-utf8"), *rest]
    check_compatible(codecs, np.dtypes.StringDType(), shape)
    # transposed, zarr-python reads what we write, but not what it writes itself: it lays the
    # elements in memory order
    transposed = [codec("transpose", order=list(range(len(shape)))[::-1]), *codecs]
    pipeline, document = pipeline_for(transposed, shape, np.dtypes.StringDType())
    chunk = sample(np.dtypes.StringDType(), shape)
    data = bytes(pipeline.encode(chunk[None])[0])
    assert same(chunk, Zarr(document).decode(data))
    assert same(chunk, pipeline.decode(data))


@pytest.mark.compat
@pytest.mark.parametrize("whose", ["ours", "zarr's"])
def test_rows_of_long_text(whose):
    """numpy before 2.2 ends the process where rows of one such element are taken by numbers."""
    text = np.dtypes.StringDType()
    pipeline, document = pipeline_for([codec("vlen-utf8")], (1,), text)
    if whose == "zarr's":
        pipeline = ForeignPipeline((1,), text, document, (), (0,))
    batch = np.array([[f"{n}" * 1000] for n in range(3)], text)
    encoded = pipeline.encode(batch, np.array([2, 0]))
    assert [pipeline.decode(data).tolist() for data in encoded] == batch.tolist()[2::-2]


def test_a_lack_of_memory_is_not_taken_for_wrong_bytes(monkeypatch):
    def fail(*_, **__):
        raise MemoryError("no room")

    document = document_of([codec("bytes", endian="little")], (4,), np.dtype("i4"))
    pipeline = ForeignPipeline((4,), np.dtype("i4"), document, (), (0,))
    data = bytes(pipeline.encode(np.zeros((1, 4), "i4"))[0])
    stage = NumcodecsStage("zlib", {"level": 1}, 1)
    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__getitem__", fail)
        with pytest.raises(MemoryError, match="no room"):
            pipeline.decode(data)
        patch.setattr(stage, "_decode", fail)
        with pytest.raises(MemoryError, match="no room"):
            stage.decode(data, 16)


@pytest.mark.compat
@pytest.mark.parametrize("rest", [[], [ZSTD, CRC]], ids=["bare", "zstd+crc32c"])
def test_vlen_bytes(rest):
    codecs = [codec("vlen-bytes"), *rest]
    document = document_of(codecs, (2, 3), zarr.dtype.VariableLengthBytes())
    pipeline = build_pipeline(codecs, (2, 3), np.dtype(object), document)
    chunk = np.array([[b"", b"a", b"\0\0"], [b"xyz" * 50, b"\xff", b"0"]], dtype=object)
    theirs = Zarr(document)
    data = bytes(pipeline.encode(chunk[None])[0])
    assert theirs.decode(data).tolist() == chunk.tolist()
    assert pipeline.decode(theirs.encode(chunk)).tolist() == chunk.tolist()


STACKS = [
    [a, b]
    for a in (ZSTD, GZIP, blosc(), codec("numcodecs.shuffle", elementsize=4))
    for b in (ZSTD, GZIP, blosc(), CRC)
]
STACKS += [
    [CRC, ZSTD, CRC, GZIP, CRC],
    [ZSTD, codec("numcodecs.bz2", level=1)],
    [ZSTD, codec("numcodecs.fletcher32")],
    [CRC, CRC],
]


@pytest.mark.parametrize("stack", STACKS, ids=lambda s: "+".join(c["name"] for c in s))
def test_stacked_stages(stack):
    check_compatible([LITTLE, *stack], "uint32", (10, 20))


@pytest.mark.parametrize(
    "name",
    ["zstd", "gzip", "blosc", "crc32c", "numcodecs.lz4", "numcodecs.zlib", "numcodecs.crc32"],
)
def test_stages_take_every_kind_of_buffer(name):
    stage = build_stage(name, {}, 1)
    data = b"abc" * 50
    kinds = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)]
    expected = bytes(stage.encode([data])[0])
    for kind in kinds:
        assert [bytes(e) for e in stage.encode([kind] * 3)] == [expected] * 3
    for kind in (bytes, bytearray, memoryview, lambda e: np.frombuffer(e, np.uint8)):
        assert bytes(stage.decode(kind(expected), 150)) == data
    assert list(stage.encode([])) == []


@pytest.mark.parametrize("name", ["zstd", "gzip", "crc32c"])
def test_stages_take_no_bytes(name):
    stage = build_stage(name, {}, 1)
    for n in (1, 2):
        assert len(stage.encode([b""] * n)) == n


@pytest.mark.long
@settings(max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4),
    st.sampled_from(["zstd", "gzip", "blosc", "crc32c"]),
)
def test_stages_round_trip(batch, name):
    stage = build_stage(name, {}, 1)
    for data, encoded in zip(batch, stage.encode(batch), strict=True):
        assert bytes(stage.decode(bytes(encoded), len(data))) == data
        if stage.added_nbytes is not None:
            assert len(encoded) == len(data) + stage.added_nbytes


# ---- with and without the fast libraries


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
def fast(request, monkeypatch):
    find_spec = importlib.util.find_spec
    if request.param:
        pytest.importorskip("zstandard")
        pytest.importorskip("isal")
        pytest.importorskip("zlib_ng")
    else:
        hidden = ("zstandard", "isal", "zlib_ng")
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: None if name in hidden else find_spec(name, *rest),
        )
    return request.param


@pytest.mark.compat
@pytest.mark.parametrize(
    "stage",
    [
        codec("zstd", level=0, checksum=False),
        codec("zstd", level=5, checksum=True),
        *(codec("gzip", level=n) for n in (1, 3, 4, 9)),
    ],
    ids=str,
)
def test_results_decode_the_same_with_and_without_fast_libraries(stage, fast, monkeypatch):
    here = build_stage(stage["name"], stage["configuration"], 1)
    if stage["name"] == "zstd":
        assert (here._zstandard is not None) == fast
    else:
        assert (here._zlib is not zlib) == fast
    with monkeypatch.context() as patch:
        patch.undo()
        monkeypatch.undo()
        there = build_stage(stage["name"], stage["configuration"], 1)
    batch = [sample("uint16", (1000,), seed).tobytes() for seed in range(3)] + [b"x"]
    for encoder in (here, there):
        for decoder in (here, there):
            for data, encoded in zip(batch, encoder.encode(batch), strict=True):
                assert bytes(decoder.decode(bytes(encoded), len(data))) == data


def test_compatible_without_fast_libraries(fast):
    check_compatible([LITTLE, ZSTD, CRC], "uint16", (40, 50))
    check_compatible([LITTLE, GZIP], "uint16", (40, 50))


@pytest.mark.parametrize("sized", [True, False])
def test_zstd_frames_with_and_without_content_size(fast, sized):
    """Streaming writers make them without."""
    zstandard = pytest.importorskip("zstandard")
    stage = build_stage("zstd", {}, 1)
    data = bytes(range(256)) * 1000
    frame = zstandard.ZstdCompressor(write_content_size=sized).compress(data)
    assert bytes(stage.decode(frame, len(data))) == data
    for wrong in (frame[:-1], frame[: len(frame) // 2], frame + b"more", frame + frame):
        with pytest.raises(CorruptShardError):
            stage.decode(wrong, len(data))
    with pytest.raises(CorruptShardError):
        stage.decode(frame, len(data) - 1)
    assert bytes(stage.decode(frame, 2**40)) == data


def test_a_compressor_that_blosc_does_not_have():
    data = bytes(100)
    frame = build_stage("blosc", {"cname": "lz4"}, 1).encode([data])[0]
    stage = build_stage("blosc", {"cname": "none of them"}, 1)
    assert bytes(stage.decode(frame, 100)) == data
    with pytest.raises(CodecError, match="none of them"):
        stage.encode([data])


@pytest.mark.parametrize("name", ["gzip", "numcodecs.gzip"])
def test_gzip_does_not_write_the_time(name, monkeypatch):
    stage, data = build_stage(name, {"level": 4}, 1), [b"abcd" * 100]
    first = [bytes(encoded) for encoded in stage.encode(data)]
    monkeypatch.setattr(time, "time", lambda: 1_900_000_000.0)
    assert [bytes(encoded) for encoded in stage.encode(data)] == first
    assert first[0][4:8] == bytes(4), "RFC 1952, MTIME: no time is available"


@pytest.mark.parametrize("level", [4, 6])
def test_gzip_of_noise_takes_the_quick_library(level):
    """Where the usual library gives no less; what is smaller in the end has the bytes of that."""
    quick = pytest.importorskip("isal.isal_zlib")
    usual = pytest.importorskip("zlib_ng.zlib_ng")
    rng = np.random.default_rng(level)
    noise = rng.normal(128, 20, 2**17).astype("uint8")
    half = np.pad(noise, 2**17)
    stage = build_stage("gzip", {"level": level}, 1)
    encoded = stage.encode([noise, half, noise[:100]])
    assert encoded == [
        quick.compress(noise, 2, 31),
        usual.compress(half, level, 31),
        usual.compress(noise[:100], level, 31),
    ]
    assert len(encoded[0]) < 1.02 * len(usual.compress(noise, level, 31))
    for data, found in zip([noise, half, noise[:100]], encoded, strict=True):
        assert stage.decode(found, data.nbytes) == data.tobytes()
    best = build_stage("gzip", {"level": 9}, 1)
    assert best.encode([noise]) == [usual.compress(noise, 9, 31)]


def test_gzip_of_several_members():
    stage = build_stage("gzip", {}, 1)
    both = gzip.compress(b"ab") + gzip.compress(b"cd")
    assert bytes(stage.decode(both, 4)) == b"abcd"
    for limit in (1, 2, 3):
        with pytest.raises(CorruptShardError):
            stage.decode(both, limit)


@pytest.mark.parametrize("name", ["gzip", "numcodecs.zlib"])
def test_isal_and_zlib_decode_the_same_streams(name, monkeypatch):
    """What one of them refuses, whole or with a wrong bit, the other does not decode otherwise."""
    pytest.importorskip("isal")
    quick = build_stage(name, {}, 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    plain = build_stage(name, {}, 1)
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 9, 90, dtype="u1").tobytes(), bytes(70_000), rng.bytes(70_000)]
    streams = [plain.encode([part])[0] for part in parts]
    whole = [*streams, b"".join(streams), streams[0] + b"junk", streams[0] + bytes(3)]
    flips = [bytearray(streams[0]) for _ in range(8 * len(streams[0]))]
    for bit, flipped in enumerate(flips):
        flipped[bit // 8] ^= 1 << bit % 8
    limit = len(b"".join(parts))

    def decoded(stage, data):
        try:
            return bytes(stage.decode(data, limit))
        except CorruptShardError:
            return None

    found = [decoded(quick, data) for data in whole]
    assert found == [decoded(plain, data) for data in whole]
    assert found == [*parts, b"".join(parts), None, None]
    pairs = {(decoded(quick, data), decoded(plain, data)) for data in flips}
    assert pairs <= {(None, None), (parts[0], parts[0]), (parts[0], None), (None, parts[0])}


# ---- wrong bytes

WHOLE = {
    "bytes": [LITTLE],
    "crc32c": [LITTLE, CRC],
    "zstd": [LITTLE, ZSTD],
    "zstd checksum": [LITTLE, codec("zstd", level=1, checksum=True)],
    "gzip": [LITTLE, GZIP],
    "blosc lz4": [LITTLE, blosc(typesize=2)],
    "blosc zstd": [LITTLE, blosc(cname="zstd", shuffle="bitshuffle", typesize=2)],
    "blosc zlib": [LITTLE, blosc(cname="zlib", typesize=2)],
    "zstd+crc32c": [LITTLE, ZSTD, CRC],
    "zlib": [LITTLE, codec("numcodecs.zlib", level=1)],
    "bz2": [LITTLE, codec("numcodecs.bz2", level=1)],
    "lzma": [LITTLE, codec("numcodecs.lzma", preset=1)],
    "lz4": [LITTLE, codec("numcodecs.lz4", acceleration=1)],
    "fletcher32": [LITTLE, codec("numcodecs.fletcher32")],
    "foreign": [codec("numcodecs.delta", dtype="<u2"), LITTLE, ZSTD],
}
DETECTS_EVERY_FLIP = {"crc32c", "zstd+crc32c", "fletcher32"}


def encoded_sample(name):
    pipeline, _ = pipeline_for(WHOLE[name], (8, 10), "uint16")
    chunk = sample("uint16", (8, 10))
    return pipeline, chunk, bytes(pipeline.encode(chunk[None].astype(pipeline.stored_dtype))[0])


@pytest.mark.parametrize("name", WHOLE)
def test_torn_bytes_are_refused(name):
    pipeline, _, data = encoded_sample(name)
    for length in range(len(data)):
        with pytest.raises(CorruptShardError):
            pipeline.decode(data[:length])


@pytest.mark.parametrize("name", WHOLE)
def test_bit_flips_are_refused_or_harmless(name):
    """Never another exception, never another shape; and found where a checksum covers every byte."""
    pipeline, chunk, data = encoded_sample(name)
    step = 1 if name in DETECTS_EVERY_FLIP else 3
    refused = 0
    for bit in range(0, 8 * len(data), step):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = pipeline.decode(bytes(flipped))
        except CorruptShardError:
            refused += 1
        else:
            assert name not in DETECTS_EVERY_FLIP, f"bit {bit} went unseen"
            assert decoded.shape == chunk.shape
            assert decoded.dtype == chunk.dtype
    assert refused or name == "bytes"


@pytest.mark.long
@settings(max_examples=150)
@given(st.binary(max_size=80), st.sampled_from(sorted(WHOLE)))
def test_random_bytes_are_refused_or_decoded(data, name):
    if name == "foreign":
        return
    pipeline = build_pipeline(WHOLE[name], (8, 10), np.dtype("<u2"), {})
    try:
        decoded = pipeline.decode(data)
    except CorruptShardError:
        return
    assert decoded.shape == (8, 10)


@pytest.mark.parametrize("name", WHOLE)
def test_a_chunk_of_another_size_is_refused(name):
    pipeline, _, _ = encoded_sample(name)
    for shape in ((8, 9), (8, 11), (80, 100)):
        other, _ = pipeline_for(WHOLE[name], shape, "uint16")
        data = bytes(other.encode(sample("uint16", (1, *shape)).astype(other.stored_dtype))[0])
        with pytest.raises(CorruptShardError):
            pipeline.decode(data)


@pytest.mark.parametrize("rest", [[], [ZSTD], [CRC]], ids=["bare", "zstd", "crc32c"])
def test_wrong_text_is_refused(rest):
    pipeline, _ = pipeline_for([codec("vlen-utf8"), *rest], (4,), np.dtypes.StringDType())
    data = bytes(pipeline.encode(np.array([["a", "", "bcd", "e"]], np.dtypes.StringDType()))[0])
    for length in range(len(data)):
        with pytest.raises(CorruptShardError):
            pipeline.decode(data[:length])
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CorruptShardError):
            assert pipeline.decode(bytes(flipped)).shape == (4,)
    five, _ = pipeline_for([codec("vlen-utf8"), *rest], (5,), np.dtypes.StringDType())
    with pytest.raises(CorruptShardError):
        five.decode(data)


def zstd_header(content_nbytes):
    """A frame header that claims a size (8-byte field, single segment), and an empty last block."""
    return (
        b"\x28\xb5\x2f\xfd"
        + bytes([0b11100000])
        + struct.pack("<Q", content_nbytes)
        + b"\x01\x00\x00"
    )


def blosc_header(nbytes, blocksize, cbytes):
    return struct.pack("<BBBBIII", 2, 1, 0, 4, nbytes, blocksize, cbytes)


LIES = {
    "zstd 2**40": ("zstd", zstd_header(2**40)),
    "zstd 2**64-1": ("zstd", zstd_header(2**64 - 1)),
    "zstd 2**63": ("zstd", zstd_header(2**63)),
    "zstd one too many": ("zstd", zstd_header(1001)),
    "zstd empty": ("zstd", b""),
    "zstd magic only": ("zstd", b"\x28\xb5\x2f\xfd"),
    "zstd skippable": ("zstd", b"\x50\x2a\x4d\x18" + struct.pack("<I", 2**32 - 1)),
    "blosc nbytes": ("blosc", blosc_header(2**31 - 17, 2**20, 36) + bytes(20)),
    "blosc nbytes, 32 bits": ("blosc", blosc_header(2**32 - 1, 2**32 - 1, 36) + bytes(20)),
    "blosc blocksize": ("blosc", blosc_header(1000, 2**31 - 1, 36) + bytes(20)),
    "blosc cbytes": ("blosc", blosc_header(1000, 1000, 2**31) + bytes(20)),
    "blosc no header": ("blosc", bytes(15)),
    "blosc zero": ("blosc", bytes(16)),
    "lz4 2**31-1": ("numcodecs.lz4", struct.pack("<I", 2**31 - 1) + bytes(30)),
    "lz4 2**32-1": ("numcodecs.lz4", struct.pack("<I", 2**32 - 1) + bytes(30)),
    "lz4 empty": ("numcodecs.lz4", b""),
    "gzip size field": ("gzip", gzip.compress(b"abc")[:-4] + struct.pack("<I", 2**32 - 1)),
    "gzip empty": ("gzip", b""),
    "numcodecs.zstd 2**40": ("numcodecs.zstd", zstd_header(2**40)),
    "numcodecs.blosc nbytes": ("numcodecs.blosc", blosc_header(2**31 - 17, 2**20, 36) + bytes(20)),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_headers_are_refused_without_memory(name, fast):
    codec_name, data = LIES[name]
    stage = build_stage(codec_name, {}, 1)

    def refused():
        with pytest.raises(CorruptShardError):
            stage.decode(data, 1000)

    assert least_peak(refused, 2 * 2**20) < 2 * 2**20


BOMBS = r"""
import bz2, gzip, importlib.util, lzma, resource, struct, sys, zlib
if sys.argv[1] == "plain":
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in ("zstandard", "isal", "zlib_ng") else find_spec(name, *rest)
import numcodecs
from shardwrite.codecs.stages import build_stage
from shardwrite.errors import CorruptShardError

N = 256 * 2**20
zeros = bytes(N)
zstd_known = bytes(numcodecs.Zstd(level=1).encode(zeros))
# 2,048 run-length blocks of 128 KiB each, in a frame that says no size
block = ((2**17 << 3) | (1 << 1)).to_bytes(3, "little") + b"\0"
last = ((2**17 << 3) | (1 << 1) | 1).to_bytes(3, "little") + b"\0"
zstd_unknown = b"\x28\xb5\x2f\xfd\x00\x38" + block * 2047 + last
small = bytes(numcodecs.Zstd(level=1).encode(bytes(10)))
bombs = [
    ("zstd", zstd_known), ("zstd", zstd_unknown), ("zstd", small + zstd_known), ("zstd", small + zstd_unknown),
    ("gzip", gzip.compress(zeros, 1)), ("gzip", gzip.compress(b"a") + gzip.compress(zeros, 1)),
    ("blosc", bytes(numcodecs.Blosc("zstd", 1).encode(zeros))),
    ("numcodecs.zlib", zlib.compress(zeros, 1)), ("numcodecs.gzip", gzip.compress(zeros, 1)),
    ("numcodecs.bz2", bz2.compress(zeros, 1)), ("numcodecs.lzma", lzma.compress(zeros, preset=0)),
    ("numcodecs.zstd", zstd_unknown), ("numcodecs.lz4", bytes(numcodecs.LZ4().encode(zeros))),
    ("numcodecs.blosc", bytes(numcodecs.Blosc("zstd", 1).encode(zeros))),
]
del zeros
stages = {name: build_stage(name, {}, 1) for name, _ in bombs}
for stage in stages.values():
    stage.decode(stage.encode([b"warm" * 30])[0], 120)
virtual = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
allowed = virtual + 96 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
try:
    bytes(N)
except MemoryError:
    print("the limit holds")
for name, bomb in bombs:
    try:
        stages[name].decode(bomb, 10_000)
    except CorruptShardError as error:
        print(name, "refused", "memory" in str(error).lower())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and RLIMIT_AS")
@pytest.mark.long
@pytest.mark.parametrize("libraries", ["fast", "plain"])
def test_bombs_are_refused_under_a_memory_limit(libraries):
    """256 MB in a few kB, in a process that may not take 96 MB more: what is allocated would end
    it."""
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, libraries], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "the limit holds"
    assert len(lines) == 15
    assert all(line.endswith(" refused False") for line in lines[1:]), done.stdout


# ---- what cannot be built


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("gzip", {"level": "high"}),
        ("gzip", {"level": None}),
        ("zstd", {"level": [1]}),
        ("blosc", {"shuffle": "twist"}),
        ("blosc", {"shuffle": ["shuffle"]}),
        ("blosc", {"clevel": "x"}),
        ("numcodecs.zlib", {"no_such": 1}),
    ],
    ids=str,
)
def test_configuration_that_does_not_fit_is_refused(name, configuration):
    with pytest.raises(CodecError) as caught:
        build_stage(name, configuration, 1)
    assert caught.value.codec == name
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["nothing", "numcodecs.nothing", "", "bytes", "numcodecs.delta"])
def test_unknown_stage_is_left_to_zarr(name):
    assert build_stage(name, {}, 1) is None


@pytest.mark.parametrize(
    "codecs",
    [
        [LITTLE, codec("no-such")],
        [codec("no-such")],
        [LITTLE, codec("numcodecs.no_such")],
        [],
        [CRC],
        [LITTLE, LITTLE],
        [ZSTD, LITTLE],
    ],
    ids=str,
)
def test_unknown_or_misplaced_codec_is_refused(codecs):
    with pytest.raises(CodecError) as caught:
        build_pipeline(codecs, (4,), np.dtype("u1"), document_of([LITTLE], (4,), "u1"))
    assert isinstance(caught.value.codec, str)
