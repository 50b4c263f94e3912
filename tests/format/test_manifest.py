"""The manifest in a document: keys that are added and removed, and its compact form."""

from __future__ import annotations

import base64
import json
import zlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shardwrite.errors import SpecError
from shardwrite.format import manifest
from shardwrite.format.manifest import (
    chunks_in,
    listed_chunks,
    rendered,
    with_added,
    with_manifest,
    with_present,
)
from shardwrite.format.node import LIST, RUNS, emptied, has_manifest, without_keys
from shardwrite.grid import Box

COUNTS = (6, 12)


def document(keys, **attributes):
    return {"shape": [60, 120], "attributes": {LIST: list(keys), **attributes}}


def keys_in(found):
    return found["attributes"][LIST]


chunks = st.sets(st.tuples(*(st.integers(0, n - 1) for n in COUNTS)))


@st.composite
def boxes(draw):
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in COUNTS]
    return Box(*map(tuple, zip(*ends, strict=True)))


@settings(deadline=None)
@given(chunks, chunks, boxes(), st.sampled_from([(0, 0), (-3, 5)]), st.sampled_from([1, 10, 1000]))
def test_as_sets(before, now, box, origin, least):
    """In each order of keys, with and without a compact form."""

    def named(some):
        return sorted(f"{i + origin[0]}.{j + origin[1]}" for i, j in some)

    def inside(chunk):
        return all(a <= i < b for i, a, b in zip(chunk, box.start, box.stop, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "COMPACT_FROM", least)
        start = document(named(before), chunk_grid_origin=list(origin), other=1)
        added = with_added(start, box)
        whole = {(i, j) for i, j in np.ndindex(COUNTS) if inside((i, j))}
        assert keys_in(added) == named(before | whole)
        present = {chunk for chunk in now if inside(chunk)}
        coords = np.array(sorted(present), dtype=np.int64).reshape(-1, 2)
        after = with_present(added, box, coords)
        wanted = {chunk for chunk in before if not inside(chunk)} | present
        assert keys_in(after) == named(wanted)
        assert listed_chunks(after).tolist() == [list(chunk) for chunk in sorted(wanted)]
        assert (RUNS in after["attributes"]) == (len(wanted) >= least)
        assert after["attributes"]["other"] == 1
        assert with_present(after, box, coords) is after
        assert without_keys(after) == document([], chunk_grid_origin=list(origin), other=1)


def test_the_compact_form_is_what_the_docs_say(monkeypatch):
    monkeypatch.setattr(manifest, "COMPACT_FROM", 5)
    made = with_added(document(["5.1"]), Box((0, 2), (2, 6)))["attributes"]
    runs = made[RUNS]
    columns = np.frombuffer(zlib.decompress(base64.b64decode(runs["data"])), "<i8")
    assert columns.reshape(3, -1).T.tolist() == [[0, 2, 4], [1, 2, 4], [5, 1, 1]]
    assert (runs["n_chunks"], runs["n_runs"]) == (9, 3)
    assert runs["crc32_of_keys"] == zlib.crc32("\n".join(made[LIST]).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"encoding": "another"},
        {"n_runs": 4},
        {"n_runs": 2},
        {"n_runs": "3"},
        {"n_runs": 0},
        {"n_chunks": 8},
        {"crc32_of_keys": 0},
        {"data": "!"},
        {"data": base64.b64encode(b"no zlib").decode()},
        {"data": base64.b64encode(zlib.compress(bytes(10**6))).decode()},
        {"data": base64.b64encode(zlib.compress(np.full(9, -1, "<i8").tobytes())).decode()},
        {"data": 5},
    ],
    ids=str,
)
def test_a_compact_form_that_is_not_of_the_list_is_written_anew(monkeypatch, change):
    """The list says what holds data."""
    monkeypatch.setattr(manifest, "COMPACT_FROM", 5)
    made = with_added(document(["5.1"]), Box((0, 2), (2, 6)))
    bad = {**made, "attributes": {**made["attributes"]}}
    bad["attributes"][RUNS] = {**made["attributes"][RUNS], **change}
    assert listed_chunks(bad).tolist() == listed_chunks(made).tolist()
    assert with_added(bad, Box((0, 0), (0, 0))) == made


def test_a_list_that_another_program_has_changed(monkeypatch):
    monkeypatch.setattr(manifest, "COMPACT_FROM", 5)
    made = with_added(document([]), Box((0, 0), (2, 4)))
    made["attributes"][LIST].append("3.3")
    after = with_added(made, Box((0, 0), (0, 0)))
    assert keys_in(after)[-1] == "3.3"
    assert len(listed_chunks(after)) == 9
    assert after["attributes"][RUNS]["n_chunks"] == 9
    fewer = with_present(after, Box((0, 0), (2, 4)), np.empty((0, 2), dtype=np.int64))
    assert fewer["attributes"] == {LIST: ["3.3"]}


def test_keys_of_another_form_stay():
    start = document(["c/0/1", "1.1", "x", "1.1.1"])
    after = with_added(start, Box((0, 0), (1, 1)))
    assert keys_in(after) == ["0.0", "1.1", "1.1.1", "c/0/1", "x"]
    nothing = np.empty((0, 2), dtype=np.int64)
    assert keys_in(with_present(after, Box((0, 0), COUNTS), nothing)) == ["1.1.1", "c/0/1", "x"]


def test_a_scalar():
    start = {"shape": [], "attributes": {LIST: []}}
    after = with_added(start, Box((), ()))
    assert keys_in(after) == [""]
    assert keys_in(with_present(after, Box((), ()), np.empty((0, 0), dtype=np.int64))) == []


@pytest.mark.parametrize("found", [None, "0.0", [1], [["0.0"]], {"a": 1}])
def test_what_is_no_manifest(found):
    one = {"shape": [60, 120], "attributes": {LIST: found}}
    assert not has_manifest(one)
    assert with_added(one, Box((0, 0), (1, 1))) is one
    assert with_present(one, Box((0, 0), (1, 1)), np.zeros((1, 2), dtype=np.int64)) is one
    assert without_keys(one) is one
    for function in (with_manifest, listed_chunks):
        with pytest.raises(SpecError) as caught:
            function(one)
        assert caught.value.field == LIST


def test_documents_without_one():
    for one in ({"shape": [1]}, {"shape": [1], "attributes": {}}, {"shape": [1], "attributes": 3}):
        assert not has_manifest(one)
        text = json.dumps(one)
        assert emptied(text) is text
        assert with_manifest(one)["attributes"] == {LIST: []}
    text = json.dumps(document([]))
    assert emptied(text) is text
    assert json.loads(emptied(json.dumps(document(["0.0"])))) == document([])


@settings(deadline=None)
@given(boxes())
def test_chunks_that_a_region_touches(box):
    """Inside the array, with the chunk at its edge that an append completes."""
    shape, sizes = (5, 11), (2, 3)
    found = chunks_in(box, shape, sizes)
    touched = {
        tuple(i // c for i, c in zip(index, sizes, strict=True))
        for index in np.ndindex(COUNTS)
        if all(a <= i < b for i, a, b in zip(index, box.start, box.stop, strict=True))
        and all(i // c < -(-n // c) for i, c, n in zip(index, sizes, shape, strict=True))
    }
    listed = set(np.ndindex(found.shape))
    assert touched <= {
        tuple(i + a for i, a in zip(index, found.start, strict=True)) for index in listed
    }
    assert all(b <= -(-n // c) for b, n, c in zip(found.stop, shape, sizes, strict=True))


def test_a_long_list_is_one_line_of_the_text(monkeypatch):
    monkeypatch.setattr(manifest, "_LONG", 3)
    one, two = document(["0.0", "0.1", "é\0"]), document(["1.1"])
    text = rendered(one)
    assert json.loads(text) == one
    assert '["0.0", "0.1", "\\u00e9\\u0000"]' in text
    assert rendered(two) == json.dumps(two, indent=2)
    members = {"a": one, "b": two, "c": {**one, "shape": [1]}, "d": 5}
    group = {"attributes": {}, "consolidated_metadata": {"metadata": members}}
    assert json.loads(rendered(group)) == group
    assert rendered(group).count('["0.0", "0.1"') == 2
    odd = document(["0.0", "0.1", "0.2"], other="\0nonempty_chunks 0\0")
    assert json.loads(rendered(odd)) == odd


def test_grids_of_more_chunks_than_ranks_can_tell():
    start = {"shape": [2**50, 2**50], "attributes": {LIST: ["0.0", "5.6", f"{2**40}.{2**41}"]}}
    far = Box((0, 0), (2**50, 2**50))
    coords = np.array([[5, 6], [2**49, 7]], dtype=np.int64)
    after = with_present(start, far, coords)
    assert keys_in(after) == ["5.6", f"{2**49}.7"]
    assert with_present(after, far, coords) is after
