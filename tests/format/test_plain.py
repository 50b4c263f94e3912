"""The document of a plain array is the one that zarr-python renders."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardwrite.codecs.datatypes import PLAIN_DTYPES, fill_from_json, native_dtype, zarr_dtype
from shardwrite.format.document import DEFAULT_COMPRESSORS, plain_document


def codec(name, **configuration):
    return {"name": name, "configuration": configuration}


def options_of(n_axes):
    """Keywords of which most are plain, and some are not."""
    levels = st.sampled_from([0, 5, 9, 10, 22, 23, -1, True, 2.0, None])
    names = st.sampled_from([None, "a", "b", ""])
    fills = [None, 0, 1, -1, 255, 2**70, True, 0.5, -0.0, 1e39, 1e300, 0j, 1j, "NaN", "3"]
    fills += [np.float32(0.1), np.int64(3), np.bool_(True), np.complex64(0), np.float16(2)]
    fills += [float(word) for word in ("nan", "inf", "-inf")]
    little, big = (codec("bytes", endian=order) for order in ("little", "big"))
    compressor = st.one_of(
        st.sampled_from([codec("gzip"), codec("zstd"), {"name": "zstd"}, {"name": "crc32c"}]),
        st.sampled_from(
            [codec("crc32c"), codec("crc32c", a=1), codec("blosc"), codec("zstd", a=1)]
        ),
        st.builds(lambda level: codec("gzip", level=level), levels),
        st.builds(lambda level, flag: codec("zstd", level=level, checksum=flag), levels, levels),
    )
    return st.fixed_dictionaries(
        {
            "filters": st.sampled_from(["auto", None, (), [], [codec("transpose", order=[0])]]),
            "serializer": st.sampled_from(["auto", little, big]),
            "compressors": st.one_of(
                st.sampled_from([None, (), DEFAULT_COMPRESSORS]), compressor, st.lists(compressor)
            ),
            "fill_value": st.sampled_from(fills),
            "chunk_key_encoding": st.sampled_from(
                [
                    None,
                    {"name": "v2", "separator": "."},
                    {"name": "default", "separator": "/"},
                    zarr.core.chunk_key_encodings.DefaultChunkKeyEncoding(separator="."),
                ]
            ),
            "dimension_names": st.one_of(
                st.none(), st.lists(names, min_size=n_axes, max_size=n_axes)
            ),
            "attributes": st.sampled_from([None, {}, {"a": (1, 2), "ü": {"b": [1.5, None]}}]),
        }
    )


@pytest.mark.long
@given(data=st.data(), n_axes=st.integers(0, 2))
def test_a_plain_document_is_that_of_zarr_python(data, n_axes):
    others = [">i4", "longdouble", "S3", "M8[s]"]
    dtype = np.dtype(data.draw(st.sampled_from([*PLAIN_DTYPES, *others])))
    shape = tuple(data.draw(st.sampled_from([0, 1, 5])) for _ in range(n_axes))
    chunks = tuple(data.draw(st.sampled_from([1, 2, 3])) for _ in range(n_axes))
    chosen = data.draw(options_of(n_axes))
    made = plain_document(shape, dtype, chunks, chosen)
    if made is None:
        return
    memory = {}
    zarr.create_array(
        zarr.storage.MemoryStore(memory),
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        zarr_format=3,
        **chosen,
    )
    theirs = json.loads(memory["zarr.json"].to_bytes())
    assert json.dumps(made) == json.dumps(theirs)  # the order of the fields, too


@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_the_usual_array_of_each_plain_dtype_is_plain(name):
    chosen = dict.fromkeys(
        ("fill_value", "chunk_key_encoding", "dimension_names", "attributes", "filters")
    )
    chosen |= {"serializer": "auto", "compressors": DEFAULT_COMPRESSORS}
    assert plain_document((5, 5), np.dtype(name), (2, 2), chosen) is not None


@pytest.mark.parametrize("name", PLAIN_DTYPES)
def test_plain_dtypes_and_their_fill_values_are_those_of_zarr_python(name):
    theirs = zarr_dtype(name)
    dtype = np.dtype(theirs.to_native_dtype())
    assert native_dtype(name) == dtype
    assert native_dtype(name).byteorder == dtype.byteorder
    values = {
        "b": [True, False],
        "i": [0, 1, -1, 127],
        "u": [0, 255],
        "f": [0, 0.5, -0.0, "NaN", "Infinity", "-Infinity", 1e39],
        "c": [[0.0, 1.5], ["NaN", -0.0]],
    }
    for value in values[dtype.kind]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a float that becomes infinite
            ours = fill_from_json(name, dtype, value)
            expected = theirs.from_json_scalar(value, zarr_format=3)
        assert type(ours) is type(expected)
        assert ours.tobytes() == expected.tobytes()
