"""Documents: other readers accept what is made, bits survive, and whatever cannot be followed is
refused with a remedy."""

import copy
import json
import pickle
import random

import numpy as np
import pytest
import zarr
from zarr.buffer.cpu import Buffer as ZarrBuffer

from shardwrite.errors import CodecError, CorruptShardError, SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Box

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Numcodecs codecs are not in the Zarr version 3 specification"
    ),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:The data type:FutureWarning"),
]

CORE = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
STRUCT = np.dtype([("a", "<i4"), ("b", "<f8")])
OTHER = ["datetime64[ns]", "timedelta64[s]", "S5", "U3", "V4", STRUCT, np.dtypes.StringDType()]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
NESTED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [2],
        "codecs": [LITTLE],
        "index_codecs": [LITTLE],
        "index_location": "end",
    },
}


def make(dtype="uint16", shape=(10, 7), shards=(8, 4), chunks=(2, 2), **layout):
    return make_metadata(shape, np.dtype(dtype), shards, chunks, ArrayOptions(**layout))


def open_with_zarr(metadata):
    memory = {"zarr.json": ZarrBuffer.from_bytes(metadata.text.encode())}
    return zarr.open_array(zarr.storage.MemoryStore(memory), mode="r+")


def open_with_tensorstore(metadata, path):
    tensorstore = pytest.importorskip("tensorstore")
    (path / "zarr.json").write_text(metadata.text)
    return tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    ).result()


def bits(value, dtype):
    return np.asarray(value, dtype=dtype).tobytes()


def refused(call, *args, **kwargs):
    """The SpecError, which must say field, value and remedy."""
    with pytest.raises(SpecError) as caught:
        call(*args, **kwargs)
    error = caught.value
    assert error.field
    assert error.remedy
    text = str(error)
    assert error.field in text
    assert repr(error.value) in text
    assert error.remedy in text
    return error


# ---- what is made


@pytest.mark.parametrize("dtype", [*CORE, *OTHER], ids=str)
@pytest.mark.parametrize("location", ["start", "end"])
def test_zarr_opens_what_is_made(dtype, location):
    metadata = make(dtype, index_location=location)
    array = open_with_zarr(metadata)
    assert array.shape == (10, 7)
    assert array.shards == (8, 4)
    assert array.chunks == (2, 2)
    assert array.dtype == metadata.dtype == np.dtype(dtype)
    if metadata.dtype.kind != "T":
        assert bits(array.fill_value, metadata.dtype) == bits(metadata.fill_value, metadata.dtype)
    if (
        metadata.dtype.kind != "V"
    ):  # of which zarr-python opens sharded arrays, but cannot hash the fill value to read them
        array[3:5, 1:6] = array[0:2, 0:5]
    assert parse_metadata(metadata.text, writing=True) == metadata


@pytest.mark.parametrize("dtype", CORE)
def test_tensorstore_opens_what_is_made(dtype, tmp_path):
    store = open_with_tensorstore(make(dtype, attributes={"a": 1}), tmp_path)
    assert store.shape == (10, 7)
    assert store.dtype.numpy_dtype == np.dtype(dtype)
    assert store.chunk_layout.write_chunk.shape == (8, 4)
    assert store.chunk_layout.read_chunk.shape == (2, 2)


@pytest.mark.parametrize("compressors", ["zstd", "gzip", None, [], "crc32c"], ids=str)
@pytest.mark.parametrize("dimension_names", [None, ["y", None]], ids=str)
def test_tensorstore_opens_other_layouts(compressors, dimension_names, tmp_path):
    transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
    keywords = {"filters": [transpose], "index_location": "start", "chunk_key_encoding": "v2"}
    made = make(compressors=compressors, dimension_names=dimension_names, **keywords)
    store = open_with_tensorstore(made, tmp_path)
    assert store.shape == (10, 7)
    assert [label or None for label in store.domain.labels] == (dimension_names or [None, None])


def test_document_says_what_was_asked_for():
    metadata = make(
        compressors=[{"name": "gzip", "configuration": {"level": 2}}],
        fill_value=7,
        index_location="start",
        index_codecs=["bytes", "crc32c"],
        dimension_names=["y", None],
        attributes={"unit": "nm", "n": [1, None, {"a": 2.5}]},
    )
    document = json.loads(metadata.text)
    assert document["shape"] == [10, 7]
    assert document["data_type"] == "uint16"
    assert document["fill_value"] == 7
    assert document["chunk_grid"] == {"name": "regular", "configuration": {"chunk_shape": [8, 4]}}
    assert document["dimension_names"] == ["y", None]
    assert document["attributes"] == {"unit": "nm", "n": [1, None, {"a": 2.5}]}
    (sharding,) = document["codecs"]
    assert sharding["name"] == "sharding_indexed"
    assert sharding["configuration"]["chunk_shape"] == [2, 2]
    assert [c["name"] for c in sharding["configuration"]["codecs"]] == ["bytes", "gzip"]
    assert sharding["configuration"]["codecs"][1]["configuration"] == {"level": 2}
    assert [c["name"] for c in sharding["configuration"]["index_codecs"]] == ["bytes", "crc32c"]
    assert sharding["configuration"]["index_location"] == "start"
    assert metadata.index_codec.location == "start"
    assert metadata.grid.chunks_per_shard == (4, 2)


def test_defaults():
    metadata = make()
    assert [c["name"] for c in metadata.inner_codecs] == ["bytes", "zstd", "crc32c"]
    assert metadata.document["codecs"][0]["configuration"]["index_location"] == "end"
    assert metadata.index_codec.encoded_nbytes == 16 * 8 + 4
    assert not metadata.has_codecs_around
    assert metadata.raw_nbytes == 10 * 7 * 2


def test_codec_objects_names_and_mappings_mean_the_same():
    as_object = make(compressors=zarr.codecs.GzipCodec(level=3)).text
    as_mapping = make(compressors={"name": "gzip", "configuration": {"level": 3}}).text
    assert as_object == as_mapping == make(compressors=[zarr.codecs.GzipCodec(level=3)]).text
    assert make(compressors="crc32c").text == make(compressors=zarr.codecs.Crc32cCodec()).text


@pytest.mark.parametrize("serializer", ["vlen-utf8", "vlen-bytes"])
def test_objects_with_a_serializer(serializer):
    metadata = make(object, serializer=serializer)
    assert open_with_zarr(metadata).shape == (10, 7)
    assert metadata.inner_codecs[0]["name"] == serializer
    assert metadata.fill_value in ("", b"")


def test_pickled_metadata_is_its_text():
    metadata = make()
    metadata.pipeline, metadata.index_codec, metadata.fill_pattern  # noqa: B018 (fills the caches)
    again = pickle.loads(pickle.dumps(metadata))
    assert again == metadata
    assert hash(again) == hash(metadata)
    assert again.grid == metadata.grid
    assert len(pickle.dumps(metadata)) < len(metadata.text) + 200


# ---- fill values


def float_from(bits_, dtype):
    return np.array(bits_, f"u{np.dtype(dtype).itemsize}").view(dtype)[()]


FILLS = [
    *[
        ("float64", float_from(b, "f8"))
        for b in (0x7FF8000000000000, 0x7FF8000000000123, 0xFFF8000000000001, 0x7FF0000000000001)
    ],
    *[
        ("float32", float_from(b, "f4"))
        for b in (0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001, 1)
    ],
    *[("float16", float_from(b, "f2")) for b in (0x7E00, 0x7E01, 0xFE00, 1)],
    *[(t, v) for t in ("float16", "float32", "float64") for v in (0.0, -0.0, np.inf, -np.inf, 1.5)],
    ("float64", 0.1),
    ("float64", 5e-324),
    ("float32", np.float32(0.1)),
    *[
        ("complex128", complex(a, b))
        for a, b in ((np.nan, 0.0), (0.0, -0.0), (-0.0, np.inf), (1.5, -np.inf), (np.nan, np.nan))
    ],
    ("complex64", np.array([0x7FC00001, 0xFFC00002], "u4").view("c8")[0]),
    ("complex128", np.array([0x7FF8000000000123, 1 << 63], "u8").view("c16")[0]),
    ("uint64", 2**64 - 1),
    ("int64", -(2**63)),
    ("uint8", 255),
    ("bool", True),
]


@pytest.mark.parametrize(("dtype", "value"), FILLS, ids=lambda v: str(v))
def test_fill_value_survives_to_the_bit(dtype, value):
    metadata = make(dtype, fill_value=value)
    expected = bits(value, dtype)
    assert bits(metadata.fill_value, dtype) == expected
    again = parse_metadata(metadata.text)
    assert bits(again.fill_value, dtype) == expected
    batch = np.full((1, 2, 2), value, dtype)
    assert metadata.fill_pattern.empty(batch).tolist() == [True]
    json.loads(metadata.text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    read = open_with_zarr(metadata)[...]
    with np.errstate(invalid="ignore"):
        assert np.array_equal(
            read, np.full((10, 7), value, dtype), equal_nan=np.dtype(dtype).kind in "fc"
        )


@pytest.mark.parametrize(
    ("dtype", "value"),
    [f for f in FILLS if f[0] not in ("complex64", "complex128")],
    ids=lambda v: str(v),
)
def test_tensorstore_reads_the_same_fill_value(dtype, value, tmp_path):
    store = open_with_tensorstore(make(dtype, fill_value=value), tmp_path)
    assert bits(store.read().result()[0, 0], dtype) == bits(value, dtype)


@pytest.mark.parametrize(
    ("dtype", "default"),
    [
        ("bool", False),
        ("int8", 0),
        ("float32", 0.0),
        ("complex64", 0j),
        ("S3", b""),
        ("U2", ""),
        (STRUCT, (0, 0.0)),
    ],
    ids=str,
)
def test_no_fill_value_takes_the_default(dtype, default):
    assert bits(make(dtype).fill_value, dtype) == bits(default, dtype)
    assert make(dtype, fill_value=None).text == make(dtype).text


OTHER_FILLS = [
    ("S3", b"ab"),
    ("U3", "äb"),
    (STRUCT, np.array((7, -0.0), STRUCT)[()]),
    ("datetime64[s]", np.datetime64("NaT")),
    ("V4", b"abcd"),
]


@pytest.mark.parametrize(("dtype", "value"), OTHER_FILLS, ids=str)
def test_other_fill_values_survive(dtype, value):
    expected = (
        np.asarray(value).astype(dtype) if not isinstance(value, bytes) else np.array(value, dtype)
    )
    again = parse_metadata(make(dtype, fill_value=expected[()]).text)
    assert bits(again.fill_value, dtype) == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("uint8", 256), ("uint8", -1), ("uint8", "x"), ("float32", 1j), ("int16", [1, 2])],
    ids=str,
)
def test_fill_value_of_another_kind_is_refused(dtype, value):
    error = refused(make, dtype, fill_value=value)
    assert error.field == "fill_value"
    assert error.value == value


# ---- shard keys


@pytest.mark.parametrize(
    ("encoding", "key", "scalar_key"),
    [
        (None, "c/1/2", "c"),
        ("default", "c/1/2", "c"),
        ("v2", "1.2", "0"),
        ({"name": "default", "separator": "."}, "c.1.2", "c"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.2", "c"),
        ({"name": "v2", "separator": "/"}, "1/2", "0"),
    ],
    ids=str,
)
def test_shard_keys(encoding, key, scalar_key):
    metadata = make(chunk_key_encoding=encoding)
    assert metadata.shard_key((1, 2)) == key
    scalar = make(shape=(), shards=(), chunks=(), chunk_key_encoding=encoding)
    assert scalar.shard_key(()) == scalar_key
    for made, index in ((metadata, (1, 1)), (scalar, ())):
        # zarr-python cannot write a sharded array of no axes, but its keys are those of unsharded
        # chunks
        document = {**made.document, "codecs": made.inner_codecs}
        memory = {"zarr.json": ZarrBuffer.from_bytes(json.dumps(document).encode())}
        array = zarr.open_array(zarr.storage.MemoryStore(memory), mode="r+")
        array[tuple(i * s for i, s in zip(index, made.grid.shards, strict=True))] = 5
        assert set(memory) - {"zarr.json"} == {made.shard_key(index)}


@pytest.mark.parametrize(("name", "key"), [("default", "c/1/2"), ("v2", "1.2")])
def test_shard_keys_without_a_configuration(name, key):
    document = json.loads(make().text)
    document["chunk_key_encoding"] = {"name": name}
    assert parse_metadata(json.dumps(document)).shard_key((1, 2)) == key


# ---- refusals when making


def test_two_array_to_bytes_codecs_are_refused():
    error = refused(make, serializer=[LITTLE, LITTLE])
    assert (error.field, error.value) == ("serializer", [LITTLE, LITTLE])
    error = refused(make, compressors=[LITTLE])
    assert (error.field, error.value) == ("compressors", [LITTLE])
    assert refused(make, filters=[LITTLE]).field == "filters"


@pytest.mark.parametrize("field", ["compressors", "filters", "serializer"])
@pytest.mark.parametrize("name", ["no-such-codec", "numcodecs.no_such"])
def test_unknown_codec_is_refused(field, name):
    error = refused(make, **{field: name})
    assert error.field == field
    assert name in str(error)


@pytest.mark.parametrize(
    "codecs",
    [
        ["bytes", "zstd"],
        [LITTLE, {"name": "gzip", "configuration": {"level": 1}}],
        ["bytes", "crc32c", "zstd"],
    ],
    ids=str,
)
def test_compression_in_the_index_is_refused(codecs):
    error = refused(make, index_codecs=codecs)
    assert error.field == "index_codecs"
    assert error.value[0] == "bytes"
    assert "crc32c" in error.remedy


@pytest.mark.parametrize(
    "codecs",
    [["no-such"], ["bytes", "no-such"], [], "zstd", 5, [5], [None], ["bytes", "bytes"]],
    ids=str,
)
def test_index_codecs_that_are_none_are_refused(codecs):
    error = refused(make, index_codecs=codecs)
    assert error.field == "index_codecs"


@pytest.mark.parametrize("dtype", [object, [("a", object)], [("a", "i4"), ("b", object)]], ids=str)
def test_objects_are_refused(dtype):
    error = refused(make, dtype)
    assert error.field == "dtype"
    assert "vlen-utf8" in error.remedy
    assert "astype" in error.remedy


@pytest.mark.parametrize("serializer", ["bytes", LITTLE])
def test_objects_with_another_serializer_are_refused(serializer):
    assert refused(make, object, serializer=serializer).field == "dtype"


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long doubles are doubles here")
def test_unknown_dtype_is_refused():
    error = refused(make, np.longdouble)
    assert (error.field, error.value) == ("dtype", str(np.dtype(np.longdouble)))


def test_shardings_may_lie_in_each_other_to_a_depth():
    """What walks them calls itself, so a deep document would exhaust the stack somewhere."""

    def nested(depth):
        document = make(shape=(8,), shards=(8,), chunks=(4,), serializer=NESTED).document
        document = json.loads(json.dumps(document))
        for _ in range(depth):
            (codec,) = document["codecs"]
            codec["configuration"]["chunk_shape"] = [8]
            outer = json.loads(json.dumps(codec))
            outer["configuration"]["codecs"] = [codec]
            document["codecs"] = [outer]
        return json.dumps(document)

    assert parse_metadata(nested(10)).is_sharded
    for depth in (40, 150):
        with pytest.raises(SpecError, match="more than 32 shardings in each other") as caught:
            parse_metadata(nested(depth))
        assert caught.value.field == "codecs"


def test_sharding_within_sharding():
    """Its codec is the serializer of the inner chunks, which are not compressed again by default."""
    metadata = make(shape=(8,), shards=(8,), chunks=(4,), serializer=NESTED)
    assert [codec["name"] for codec in metadata.inner_codecs] == ["sharding_indexed"]
    assert (metadata.is_sharded, metadata.grid.chunks_per_shard) == (True, (2,))
    wrong = {"name": "sharding_indexed", "configuration": {"chunk_shape": [3], "codecs": [LITTLE]}}
    error = refused(make, shape=(8,), shards=(8,), chunks=(4,), serializer=wrong)
    assert "cannot be cut" in str(error)
    error = refused(
        make,
        shape=(8,),
        shards=(8,),
        chunks=(4,),
        serializer={**wrong, "configuration": {"chunk_shape": "x"}},
    )
    assert error.field == "serializer"


CYCLE = {}
CYCLE["a"] = CYCLE
UNSERIALISABLE = [
    {"a": object()},
    {"a": {1, 2}},
    {"a": np.float32(1)},
    {"a": float("nan")},
    {"a": b"x"},
    {"a": ["\udcff"]},
    {"\udcff": 1},
    5,
    [1],
]


@pytest.mark.parametrize("value", UNSERIALISABLE, ids=lambda v: ascii(v).split(" at ")[0])
def test_attributes_that_json_cannot_hold_are_refused(value):
    assert refused(make, attributes=value).field == "attributes"


def test_attributes_in_a_circle_are_refused():
    assert refused(make, attributes=CYCLE).field == "attributes"


@pytest.mark.parametrize(
    "names", [["x"], ["x", "y", "z"], [1, 2], 5, [["x"], "y"], ["x", "\udcff"]], ids=ascii
)
def test_wrong_dimension_names_are_refused(names):
    error = refused(make, dimension_names=names)
    assert (error.field, error.value) == ("dimension_names", names)


@pytest.mark.parametrize(
    "encoding",
    ["no-such", 5, {"name": "default", "separator": "_"}, {"separator": "/"}, {}],
    ids=str,
)
def test_wrong_key_encoding_is_refused(encoding):
    assert refused(make, chunk_key_encoding=encoding).field == "chunk_key_encoding"


@pytest.mark.parametrize("location", ["middle", "", None, 1], ids=str)
def test_wrong_index_location_is_refused(location):
    error = refused(make, index_location=location)
    assert (error.field, error.value) == ("index_location", location)


# ---- refusals when reading


def changed(**nodes):
    document = json.loads(make().text)
    document.update(nodes)
    return json.dumps(document)


def with_codecs(change):
    document = json.loads(make().text)
    document["codecs"] = change(document["codecs"])
    return json.dumps(document)


@pytest.mark.parametrize("length", [0, 1, 10, 100, -1])
def test_torn_json_is_refused(length):
    error = refused(parse_metadata, make().text[:length])
    assert error.field == "zarr.json"
    assert "whole document" in error.remedy


def test_every_torn_length_is_refused():
    text = make().text
    for length in range(len(text)):
        with pytest.raises(SpecError):
            parse_metadata(text[:length])


NO_DOCUMENTS = ["[" * 100_000, '{"a":' * 100_000, "null", "3", '"x"', "[]", "{}", "NaN", "\ufeff{}"]


@pytest.mark.parametrize("text", NO_DOCUMENTS, ids=lambda t: t[:5])
def test_json_that_is_no_document_is_refused(text):
    assert refused(parse_metadata, text).field in ("zarr.json", "zarr_format")


def test_group_is_refused():
    error = refused(
        parse_metadata, json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
    )
    assert (error.field, error.value) == ("node_type", "group")


def test_version_2_is_refused():
    memory = {}
    zarr.create_array(zarr.storage.MemoryStore(memory), shape=(4,), dtype="u1", zarr_format=2)
    error = refused(parse_metadata, memory[".zarray"].to_bytes().decode())
    assert (error.field, error.value) == ("zarr_format", 2)


def test_an_array_without_shards_has_a_chunk_for_each_object():
    memory = {}
    store = zarr.storage.MemoryStore(memory)
    zarr.create_array(store, shape=(9, 4), chunks=(4, 3), dtype="u1", zarr_format=3)
    metadata = parse_metadata(memory["zarr.json"].to_bytes().decode(), writing=True)
    assert not metadata.is_sharded
    assert metadata.grid.shards == metadata.grid.chunks == (4, 3)
    assert metadata.grid.counts == (3, 2)
    assert not metadata.has_codecs_around
    assert [codec["name"] for codec in metadata.inner_codecs] == ["bytes", "zstd"]
    assert metadata.index_codec.encoded_nbytes == 0
    assert metadata.index_codec.decode(b"", 77).table.tolist() == [[0, 77]]
    with pytest.raises(CorruptShardError, match="empty"):
        metadata.index_codec.span(0)


def test_two_shardings_one_after_the_other_are_refused():
    codecs = json.loads(make().text)["codecs"]
    error = refused(parse_metadata, changed(codecs=codecs * 2))
    assert error.field == "codecs"
    assert "sharding_indexed" in error.remedy


@pytest.mark.parametrize(
    "data_type", ["no_such", "float128", 5, None, {"name": "no_such"}, ["uint8"], {}], ids=str
)
def test_unknown_data_type_is_refused(data_type):
    error = refused(parse_metadata, changed(data_type=data_type))
    assert (error.field, error.value) == ("data_type", data_type)


CRC = {"name": "crc32c"}
AROUND = {
    "before": lambda codecs: [{"name": "transpose", "configuration": {"order": [1, 0]}}, *codecs],
    "after": lambda codecs: [*codecs, CRC],
    "both": lambda codecs: [
        {"name": "transpose", "configuration": {"order": [0, 1]}},
        *codecs,
        CRC,
    ],
}


@pytest.mark.parametrize("where", AROUND)
def test_an_object_with_codecs_around_its_sharding_is_one_chunk(where):
    text = with_codecs(AROUND[where])
    metadata = parse_metadata(text, writing=True)
    assert (metadata.is_sharded, metadata.has_codecs_around) == (False, True)
    assert metadata.grid.chunks == metadata.grid.shards == (8, 4)
    alone = metadata.without_codecs_around
    assert (alone.is_sharded, alone.has_codecs_around) == (True, False)
    assert alone.grid.chunks == (2, 2)
    assert alone.without_codecs_around is alone
    values = np.arange(32, dtype="u2").reshape(1, 8, 4)
    (encoded,) = metadata.pipeline.encode(values)
    np.testing.assert_array_equal(metadata.pipeline.decode(encoded), values[0])


def test_a_codec_inside_a_sharding_that_cannot_encode_is_refused():
    inner = {
        "chunk_shape": [2, 2],
        "codecs": [LITTLE, {"name": "zstd", "configuration": {"level": "x"}}],
    }
    inner["index_codecs"] = [LITTLE]
    sharding = {"name": "sharding_indexed", "configuration": inner}
    assert refused(make, serializer=sharding, shards=None, chunks=(8, 4)).field in (
        "serializer",
        "compressors",
    )
    text = with_codecs(lambda codecs: [sharding, CRC])
    assert refused(parse_metadata, text, writing=True).field == "codecs"


@pytest.mark.parametrize("codecs", [[], [CRC], [{"name": "transpose", "configuration": {}}, CRC]])
@pytest.mark.parametrize("field", ["codecs", "index_codecs"])
def test_a_list_in_which_no_codec_makes_bytes_is_refused(codecs, field):
    """At every level, with the list; and with one more codec, it is taken."""
    inner = {"chunk_shape": [2, 2], "codecs": [LITTLE], "index_codecs": [LITTLE]}
    broken = {"name": "sharding_indexed", "configuration": {**inner, field: codecs}}
    around = {**inner, "chunk_shape": [4, 4], "codecs": [broken]}
    nested = {"name": "sharding_indexed", "configuration": around}
    wanted = 'no codec here makes bytes of an array; put one that does into the list, such as "byt'
    for whole in ([broken], [nested], [nested, CRC]):
        error = refused(parse_metadata, with_codecs(lambda _, whole=whole: whole))
        assert (error.field, error.value) == (field, codecs)
        assert wanted in str(error)
    assert wanted in str(refused(parse_metadata, with_codecs(lambda _: codecs)))
    inner[field] = [LITTLE, *(codec for codec in codecs if codec["name"] == "crc32c")]
    mended = {"name": "sharding_indexed", "configuration": inner}
    make(serializer=mended, shards=None, chunks=(8, 4))


def test_an_empty_list_in_a_sharding_is_told_to_its_writer():
    sharding = {"chunk_shape": [2, 2], "codecs": [], "index_codecs": [LITTLE]}
    given = {"name": "sharding_indexed", "configuration": sharding}
    error = refused(make, serializer=given, shards=None, chunks=(8, 4))
    assert str(error).startswith("codecs=[]: no codec here makes bytes of an array")


def test_the_name_that_the_proposal_gave_to_bytes():
    """The document of ZEP 2 calls the codec `endian`."""
    big = [{"name": "endian", "configuration": {"endian": "big"}}]
    document = json.loads(make(chunks=(2, 2)).text)
    configuration = document["codecs"][0]["configuration"]
    configuration["codecs"], configuration["index_codecs"] = big, big
    metadata = parse_metadata(json.dumps(document), writing=True)
    (encoded,) = metadata.pipeline.encode(np.full((1, 2, 2), 258, dtype="u2"))
    assert bytes(encoded) == b"\1\2" * 4
    assert metadata.pipeline.decode(encoded).tolist() == [[258] * 2] * 2
    assert [codec["name"] for codec in metadata.inner_codecs] == ["bytes"]
    assert (
        bytes(metadata.index_codec.seal(ShardIndex.build(np.arange(8), np.full(8, 8))).suffix)[:16]
        == bytes(15) + b"\10"
    )


def test_two_shardings_are_refused():
    assert refused(parse_metadata, with_codecs(lambda codecs: codecs * 2)).field == "codecs"


@pytest.mark.parametrize(
    ("nodes", "field"),
    [
        ({"shape": [10]}, "zarr.json"),
        ({"shape": [-1, 7]}, "shape"),
        ({"shape": [10.0, 7]}, "shape"),
        ({"shape": [True, 7]}, "shape"),
        ({"shape": ["10", 7]}, "shape"),
        ({"shape": "10"}, "shape"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}},
            "chunk_grid",
        ),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [9, 4]}}},
            "zarr.json",
        ),
        ({"chunk_grid": {"name": "rectangular"}}, "chunk_grid"),
        ({"chunk_grid": None}, "chunk_grid"),
        ({"chunk_key_encoding": {"name": "other"}}, "chunk_key_encoding"),
        (
            {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "_"}}},
            "chunk_key_encoding",
        ),
        ({"chunk_key_encoding": {"name": "v2", "configuration": None}}, "chunk_key_encoding"),
        ({"chunk_key_encoding": {"name": ["v2"]}}, "chunk_key_encoding"),
        ({"storage_transformers": [{"name": "x"}]}, "storage_transformers"),
        ({"offsets": {"name": "x"}}, "offsets"),
        ({"offsets": {"name": "x", "must_understand": True}}, "offsets"),
        ({"offsets": {"name": "x", "must_understand": 0}}, "offsets"),
        ({"offsets": None}, "offsets"),
        ({"dimension_names": ["x"]}, "dimension_names"),
        ({"dimension_names": [1, 2]}, "dimension_names"),
        ({"dimension_names": "xy"}, "dimension_names"),
        ({"codecs": None}, "codecs"),
        ({"codecs": {}}, "codecs"),
        ({"codecs": [None]}, "codecs"),
        ({"codecs": [{"name": "sharding_indexed", "configuration": None}]}, "codecs"),
        ({"codecs": [{"name": "sharding_indexed"}]}, "codecs"),
        ({"fill_value": "x"}, "fill_value"),
        ({"fill_value": 70000}, "fill_value"),
        ({"fill_value": None}, "fill_value"),
        ({"zarr_format": "3"}, "zarr_format"),
        ({"node_type": None}, "node_type"),
    ],
    ids=str,
)
def test_document_that_does_not_add_up_is_refused(nodes, field):
    assert refused(parse_metadata, changed(**nodes)).field == field


def test_members_that_need_not_be_understood_are_passed_over():
    text = changed(offsets={"name": "x", "must_understand": False})
    assert parse_metadata(text).grid == parse_metadata(changed()).grid


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", "0xzz"), ("float32", "0x1ffffffff"), ("float32", "nan?"), ("float32", [1]), ("float32", "0x"),
        ("complex64", [1]), ("complex64", [1, 2, 3]), ("complex64", "x"), ("complex64", [None, 1]), ("complex64", {}),
        ("bool", "x"), (STRUCT, "!!"), (STRUCT, "AA=="), (STRUCT, ""), (STRUCT, None), ("S3", 5), ("datetime64[s]", "x"),
    ],
    ids=str,
)  # fmt: skip
def test_fill_value_that_is_none_of_the_dtype_is_refused(dtype, value):
    document = json.loads(make(dtype).text)
    document["fill_value"] = value
    error = refused(parse_metadata, json.dumps(document))
    assert error.field == "fill_value"


# ---- hostile documents


def paths(node, path=()):
    yield path
    if isinstance(node, dict):
        for key, child in node.items():
            yield from paths(child, (*path, key))
    elif isinstance(node, list):
        for i, child in enumerate(node):
            yield from paths(child, (*path, i))


def replaced(document, path, change):
    document = copy.deepcopy(document)
    if not path:
        return change(document, None)
    node = document
    for step in path[:-1]:
        node = node[step]
    change(node, path[-1])
    return document


JUNK = [
    None, True, False, 0, 1, -1, 2**31, 2**64, 10**400, 0.5, 1e308, "", "x", "0x7fc00000", "sharding_indexed", "bytes", "NaN",
    [], [[]], [None], {}, {"name": "bytes"}, {"name": 5}, {"name": "zstd", "configuration": {"level": "x"}}, [1, 2], [0, 0],
    ["a", "b"],
    {"name": "transpose", "configuration": {"order": ["a", 1]}}, {"name": "numcodecs.lz4", "configuration": {"acceleration": []}},
    {"name": "blosc", "configuration": {"cname": 5, "shuffle": {}}},
    {"a": {"b": None}}, "\ud800", "\0",
]  # fmt: skip

ORIGINALS = {
    "uint16": lambda: make(dimension_names=["y", "x"], attributes={"a": [1]}),
    "float32": lambda: make("float32", fill_value=np.nan, compressors="gzip"),
    "complex": lambda: make(
        "complex64", filters=[{"name": "transpose", "configuration": {"order": [1, 0]}}]
    ),
    "struct": lambda: make(
        STRUCT, compressors={"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}
    ),
    "time": lambda: make("datetime64[ns]", compressors="blosc"),
    "text": lambda: make(np.dtypes.StringDType()),
    "bytes": lambda: make("S5", index_location="start", chunk_key_encoding="v2"),
}


@pytest.fixture(params=ORIGINALS)
def original(request):
    return json.loads(ORIGINALS[request.param]().text)


def accepts_or_refuses(document):
    """Never another exception, and what is accepted can be used."""
    text = json.dumps(document)
    accepted = 0
    for writing in (False, True):
        try:
            metadata = parse_metadata(text, writing=writing)
        except SpecError:
            continue
        except CodecError:
            if writing:
                raise
            continue
        accepted += 1
        assert isinstance(metadata, ArrayMetadata)
        assert isinstance(metadata.shard_key((0,) * metadata.grid.ndim), str)
        assert metadata.raw_nbytes >= 0
        if writing:
            assert metadata.pipeline is not None
    return accepted


def deleted(node, step):
    if step is None:
        return None
    del node[step]
    return node


def test_any_node_deleted(original):
    document = original
    assert accepts_or_refuses(document) == 2
    for path in paths(document):
        accepts_or_refuses(replaced(document, path, deleted))


def test_any_node_replaced(original):
    document = original
    every = list(paths(document))
    dice = random.Random(1)
    for path in every:
        for junk in dice.sample(JUNK, 12):

            def change(node, step, junk=junk):
                if step is None:
                    return junk
                node[step] = junk
                return node

            accepts_or_refuses(replaced(document, path, change))


def test_nodes_moved_about(original):
    """Several changes at once, taken from the document itself and from the junk."""
    document = original
    dice = random.Random(2)
    for _ in range(150):
        mutant = copy.deepcopy(document)
        for _ in range(dice.randint(1, 3)):
            every = [p for p in paths(mutant) if p]
            values = [
                *JUNK,
                *document.values(),
                *(c for c in document["codecs"][0]["configuration"].values()),
            ]
            value = copy.deepcopy(dice.choice(values))

            def change(node, step, value=value):
                node[step] = value
                return node

            mutant = replaced(mutant, dice.choice(every), change)
        accepts_or_refuses(mutant)


def test_keys_of_a_part_give_positions_in_it():
    whole = make_metadata((100, 100), np.dtype("u4"), (16, 16), (4, 4), ArrayOptions())
    part, _ = whole.window_of(Box((40, 20), (90, 60)))
    for index in np.ndindex(*part.grid.counts):
        assert part.shard_index(part.shard_key(index)) == index
    assert [part.shard_index(key) for key in ("c/1/1", "c/2/0", "c/6/1", "c/2/4")] == [None] * 4
