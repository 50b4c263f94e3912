"""Emptiness is decided on bits: against an oracle that compares bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwrite.codecs.pipeline import FillPattern


def oracle(batch, fill_value):
    """Chunk by chunk and element by element, by the bytes of each."""
    item = np.full((1,), fill_value, dtype=batch.dtype).tobytes()
    return [
        all(np.array([e], dtype=batch.dtype).tobytes() == item for e in chunk.reshape(-1))
        for chunk in batch
    ]


def byte_oracle(batch, item):
    size = batch.dtype.itemsize
    result = []
    for i in range(len(batch)):
        raw = batch[i : i + 1].tobytes()
        result.append(all(raw[at : at + size] == item for at in range(0, len(raw), size)))
    return result


def from_bits(bits, dtype):
    dtype = np.dtype(dtype)
    return np.array(bits, dtype=f"u{dtype.itemsize}").view(dtype)[()]


QUIET, PAYLOAD, NEGATIVE = 0x7FF8000000000000, 0x7FF8000000000123, 0xFFF8000000000000
FLOATS64 = [
    from_bits(b, "f8")
    for b in (0, 1 << 63, QUIET, PAYLOAD, NEGATIVE, 0x7FF0000000000000, 0xFFF0000000000000, 1)
]
FLOATS32 = [
    from_bits(b, "f4")
    for b in (0, 1 << 31, 0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800000, 0xFF800000, 1)
]
FLOATS16 = [from_bits(b, "f2") for b in (0, 1 << 15, 0x7E00, 0x7E01, 0xFE00, 0x7C00, 0xFC00, 1)]


@pytest.mark.parametrize("values", [FLOATS64, FLOATS32, FLOATS16], ids=["f8", "f4", "f2"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 64])
def test_floats_are_told_apart_by_bits(values, order, n):
    dtype = np.asarray(values[0]).dtype.newbyteorder(order)
    bits = np.array([np.asarray(v).tobytes() for v in values])
    assert len(set(bits.tolist())) == len(values)
    raw = np.array(values)
    batch = np.repeat(raw[:, None], n, axis=1).astype(dtype)
    for i, fill in enumerate(values):
        assert FillPattern(fill, dtype).empty(batch).tolist() == [
            i == j for j in range(len(values))
        ]


@pytest.mark.parametrize("shape", [(1,), (7,), (4, 4), (2, 3, 5), (64,), ()], ids=str)
@pytest.mark.parametrize(
    "dtype",
    ["u1", "i2", "f4", "f8", "c8", "c16", "M8[ns]", "S3", "S5", "S12", "U1", "U3", "V7", "?"],
)
def test_one_changed_byte_anywhere_is_seen(dtype, shape):
    dtype = np.dtype(dtype)
    fill = np.zeros((), dtype)[()]
    n_elements = int(np.prod(shape, dtype=int))
    n_bytes = n_elements * dtype.itemsize
    raw = np.zeros((n_bytes + 1, n_bytes), np.uint8)
    step = 1 if n_bytes < 400 else 7
    for at in range(0, n_bytes, step):
        raw[at, at] = 1
    batch = raw.view(dtype).reshape(n_bytes + 1, *shape)
    expected = [at % step != 0 or at == n_bytes for at in range(n_bytes + 1)]
    assert FillPattern(fill, dtype).empty(batch).tolist() == expected
    assert byte_oracle(raw.view(f"V{dtype.itemsize}"), bytes(dtype.itemsize)) == expected


STRUCTURES = [
    np.dtype([("a", "<i4"), ("b", "<f8")]),
    np.dtype([("a", "u1"), ("b", "<u2")]),
    np.dtype([("a", "<f4"), ("b", "S3"), ("c", "?")]),
    np.dtype([("a", "<i8"), ("b", "<i8")]),
    np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")]),
]


@pytest.mark.parametrize("dtype", STRUCTURES, ids=str)
@pytest.mark.parametrize("n", [1, 3, 8])
def test_structures_are_compared_whole(dtype, n):
    item = bytes(range(1, dtype.itemsize + 1))
    if dtype.names == ("a", "b", "c"):
        item = item[:-1] + b"\x01"
    fill = np.frombuffer(item, dtype)[0]
    rows = [item * n]
    for at in range(dtype.itemsize):
        other = bytearray(item * n)
        other[-dtype.itemsize + at] ^= 1
        rows.append(bytes(other))
    rows.append((item[1:] + item[:1]) * n)
    batch = np.frombuffer(b"".join(rows), dtype).reshape(len(rows), n)
    assert (
        FillPattern(fill, dtype).empty(batch).tolist()
        == byte_oracle(batch, item)
        == [True] + [False] * (len(rows) - 1)
    )


def test_structure_with_a_nan_field():
    dtype = np.dtype([("a", "<f8"), ("b", "<f8")])
    fill = np.array((from_bits(PAYLOAD, "f8"), -0.0), dtype)[()]
    batch = np.zeros((3, 2), dtype)
    batch[0] = fill
    batch[1] = (from_bits(QUIET, "f8"), -0.0)
    batch[2] = (from_bits(PAYLOAD, "f8"), 0.0)
    assert FillPattern(fill, dtype).empty(batch).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "value",
    [complex(np.nan, 0.0), complex(0.0, -0.0), complex(-0.0, 0.0), complex(np.inf, np.nan), 0j],
)
def test_complex(value):
    others = [
        complex(np.nan, 0.0),
        complex(0.0, -0.0),
        complex(-0.0, 0.0),
        complex(np.inf, np.nan),
        0j,
    ]
    batch = np.array([[v] * 3 for v in others], "c16")
    expected = [np.complex128(v).tobytes() == np.complex128(value).tobytes() for v in others]
    assert sum(expected) == 1
    assert FillPattern(value, batch.dtype).empty(batch).tolist() == expected


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[s]"])
def test_times(kind):
    values = [
        np.array(0, "i8").view(kind)[()],
        np.array("NaT", kind)[()],
        np.array(5, "i8").view(kind)[()],
    ]
    batch = np.array([[v] * 4 for v in values], kind)
    for i, fill in enumerate(values):
        assert FillPattern(fill, batch.dtype).empty(batch).tolist() == [i == j for j in range(3)]


TEXTS = ["", "a", "aa", "ä", "a\0b"]


@pytest.mark.parametrize("fill", TEXTS)
def test_text_of_variable_length(fill):
    objects = np.array([[t] * 3 for t in TEXTS] + [[fill, fill, "z"]], dtype=object)
    expected = [t == fill for t in TEXTS] + [False]
    assert FillPattern(fill, objects.dtype).empty(objects).tolist() == expected
    strings = objects.astype(np.dtypes.StringDType())
    assert FillPattern(fill, strings.dtype).empty(strings).tolist() == expected


def test_bytes_of_variable_length():
    batch = np.empty((3, 2), object)
    batch[0], batch[1], batch[2] = [b"", b""], [b"", b"x"], [b"x", b"x"]
    assert FillPattern(b"", batch.dtype).empty(batch).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", ["S0", "U0", "V0"])
def test_items_of_no_bytes_are_all_alike(dtype):
    batch = np.zeros((3, 4), np.dtype(dtype))
    fill = batch[0, 0]
    assert FillPattern(fill, batch.dtype).empty(batch).tolist() == [True] * 3


def test_no_chunks():
    assert FillPattern(0, np.dtype("u1")).empty(np.zeros((0, 4), "u1")).tolist() == []


SIMPLE = [
    np.dtype(t)
    for t in (
        "?",
        "u1",
        "<i2",
        ">i2",
        ">f4",
        "<f8",
        "<c8",
        "S2",
        "S3",
        "<U2",
        "<M8[s]",
        "V5",
        "V12",
        "V16",
    )
]


@pytest.mark.long
@settings(max_examples=300)
@given(st.data())
def test_random_batches_equal_the_oracle(data):
    dtype = data.draw(st.sampled_from(SIMPLE))
    n, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    elements = st.integers(0, 1 if dtype.kind == "b" else 255)
    pool = data.draw(hnp.arrays(np.uint8, (2, dtype.itemsize), elements=elements))
    if dtype.kind == "U":
        pool &= 0x3F
        pool[:, 1::4] = pool[:, 2::4] = pool[:, 3::4] = 0
    choice = data.draw(
        hnp.arrays(np.uint8, (n, width), elements=st.integers(0, 1), fill=st.just(0))
    )
    batch = np.ascontiguousarray(pool[choice]).view(dtype).reshape(n, width)
    fill = pool[:1].copy().view(dtype)[0, 0]
    assert FillPattern(fill, dtype).empty(batch).tolist() == byte_oracle(batch, pool[0].tobytes())


@settings(max_examples=150)
@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=5),
        elements=st.sampled_from(FLOATS64),
    ),
    st.sampled_from(FLOATS64),
)
def test_random_floats_equal_the_oracle(batch, fill):
    assert FillPattern(fill, batch.dtype).empty(batch).tolist() == oracle(batch, fill)
