"""Documents of arrays and groups: their kinds, their shapes, and consolidated metadata."""

from __future__ import annotations

import pytest

from shardwrite.format.node import (
    add_member,
    group_document,
    is_consolidated,
    kind_of_document,
    remove_member,
    shape_in,
    with_shape,
)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"zarr_format": 3, "node_type": "array"}, "array"),
        (group_document(), "group"),
        ({"zarr_format": 2, "node_type": "array"}, "torn"),
        ({"zarr_format": 3, "node_type": "table"}, "torn"),
        ({"zarr_format": 3}, "torn"),
        ([], "torn"),
        (None, "torn"),
    ],
)
def test_the_kind_of_a_document(found, kind):
    assert kind_of_document(found) == kind


@pytest.mark.parametrize("shape", [None, 3, [1.0], [True], [-1], "12"])
def test_a_shape_that_is_not_valid(shape):
    assert shape_in({"shape": shape}) is None


def test_a_shape():
    document = {"shape": [2, 3], "other": 1}
    assert shape_in(document) == [2, 3]
    assert with_shape(document, [4, 3]) == {"shape": [4, 3], "other": 1}
    assert document["shape"] == [2, 3]


def test_a_member_is_listed_with_the_groups_between():
    group = {**group_document(), "consolidated_metadata": {"metadata": {"a": "kept"}}}
    assert is_consolidated(group)
    add_member(group, "a/b/x", {"shape": [1]}, lambda name: f"read {name}")
    assert group["consolidated_metadata"]["metadata"] == {
        "a": "kept",
        "a/b": "read a/b",
        "a/b/x": {"shape": [1]},
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["a", "a/b", "x"], ["a", "a/b", "m", "m/n", "x"]),  # as text
        (["A", "b", "a/b"], ["A", "b", "m", "a/b", "m/n"]),  # as zarr-python sorts
        (["x", "a/b", "a"], ["x", "a/b", "a", "m", "m/n"]),  # in no order
    ],
)
def test_a_member_comes_where_it_belongs(before, after):
    group = {"consolidated_metadata": {"metadata": {name: {} for name in before}}}
    add_member(group, "m/n", {}, lambda _: {})
    assert list(group["consolidated_metadata"]["metadata"]) == after


def test_a_member_leaves_with_all_inside_it():
    names = ["m", "m/n", "m/n/o", "mm", "n/m"]
    group = {"consolidated_metadata": {"metadata": {name: {} for name in names}}}
    assert remove_member(group, "m")
    assert list(group["consolidated_metadata"]["metadata"]) == ["mm", "n/m"]
    assert not remove_member(group, "m")


@pytest.mark.parametrize("consolidated", [[1], {"metadata": None}, {"other": {}}])
def test_consolidated_metadata_that_are_not_valid(consolidated):
    with pytest.raises(ValueError, match="does not hold consolidated metadata"):
        is_consolidated({"consolidated_metadata": consolidated})


@pytest.mark.parametrize("group", [{}, {"consolidated_metadata": None}])
def test_a_group_without_consolidated_metadata(group):
    assert not is_consolidated(group)
