"""Conversions in parts: all parts together are the conversion, whatever comes in between."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import h5py
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from helpers import without_receipts

import shardwrite
from shardwrite.cli import main
from shardwrite.convert.arrays import call_of
from shardwrite.convert.keywords import ReshardArguments
from shardwrite.convert.parts import plan_parts
from shardwrite.engines import LocalEngine
from shardwrite.errors import IncompleteError, JournalError, PlanError, SpecError

pytestmark = pytest.mark.compat
long = pytest.mark.long

VALUES = np.arange(64 * 64, dtype="u4").reshape(64, 64) + 1


@pytest.fixture
def tree(tmp_path):
    """A hierarchy of Zarr v2 with arrays of several sizes and consolidated metadata."""
    path = tmp_path / "old"
    root = zarr.create_group(path, zarr_format=2, attributes={"title": "all"})
    for name, n in (("big", 64), ("images/small", 16), ("images/none", 0), ("one", 8)):
        x = root.create_array(name, shape=(n, n), chunks=(8, 8), dtype="u4")
        x[...] = VALUES[:n, :n]
    zarr.consolidate_metadata(path)
    return path


def begin(src, dst, *arguments, **keywords):
    shardwrite.prepare_conversion(src, dst, *arguments, **{"durability": "none", **keywords})


def all_parts(src, dst, count, *arguments, order=None, **keywords):
    return [
        shardwrite.convert_part(src, dst, k, count, *arguments, **keywords)
        for k in order or range(count)
    ]


@pytest.mark.parametrize("count", [pytest.param(1, marks=long), 5])
def test_all_parts_together_are_the_conversion(tmp_path, tree, count):
    whole = shardwrite.shard(tree, tmp_path / "whole", 2)
    new = tmp_path / "new"
    begin(tree, new, 2)
    done = all_parts(tree, new, count, 2, order=reversed(range(count)))
    assert sum(part.n_shards for part in done) == whole.n_shards
    assert sum(part.n_chunks_copied for part in done) == whole.n_chunks_copied
    last = shardwrite.finalize_conversion(tree, new, 2, n_parts=count)
    assert (last.n_shards, last.n_chunks_copied) == (whole.n_shards, whole.n_chunks_copied)
    assert without_receipts(new) == without_receipts(tmp_path / "whole")
    assert not list(new.rglob("*.shardwrite"))
    assert zarr.open_group(new, mode="r", use_consolidated=True)["images/small"].shape == (16, 16)


def test_the_cut_is_over_all_shards_of_all_arrays(tmp_path, tree):
    """Each shard belongs to one part, and parts are of about one size."""
    engine = LocalEngine("threads")
    asked = ReshardArguments(tree, tmp_path / "new", 1, memory_limit="600kB")
    parts = plan_parts(tree, call_of(asked), engine)
    for count in (1, 2, 3, 7, 40):
        sizes = []
        found = {one.name: [] for one in parts.made}
        for k in range(count):
            cut = [one.planned.plan.part(k, count, among) for one, among in parts.stretches()]
            sizes.append(sum(part.raw_nbytes for part in cut))
            for (one, among), part in zip(parts.stretches(), cut, strict=True):
                found[one.name] += part.groups
                assert among.may_have(k, count) or not part.groups
        for one in parts.made:
            assert found[one.name] == list(range(one.planned.plan.partition.n_groups))
        largest = max(
            one.planned.plan.partition.group_box(rank).size * 4
            for one in parts.made
            for rank in range(one.planned.plan.partition.n_groups)
        )
        assert max(sizes) <= parts.raw_nbytes / count + largest
    assert parts.n_shards == 64 + 4 + 1


@pytest.mark.parametrize("harm", ["gone", pytest.param("never written", marks=long)])
def test_finalize_names_parts_over_all_arrays(tmp_path, tree, harm):
    new = tmp_path / "new"
    begin(tree, new, 1, memory_limit="1MB")
    for k in [k for k in range(8) if harm == "gone" or k not in (2, 7)]:
        shardwrite.convert_part(tree, new, k, 8, 1)
    if harm == "gone":
        (new / "one/c/0/0").unlink()
        (new / "big/c/0/0").unlink()
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize_conversion(tree, new, 1, n_parts=8)
    assert caught.value.parts == ([0, 7] if harm == "gone" else [2, 7])
    if harm == "gone":
        assert caught.value.missing == ["big/c/0/0", "one/c/0/0"]
    assert "of 8 must be written again" in str(caught.value)
    with pytest.raises(IncompleteError, match="give the number of parts"):
        shardwrite.finalize_conversion(tree, new, 1)
    assert not list(new.rglob("zarr.json")), "no array is published before all are whole"
    for k in caught.value.parts:
        shardwrite.convert_part(tree, new, k, 8, 1)
    shardwrite.finalize_conversion(tree, new, 1, n_parts=8)
    assert without_receipts(new) == bytes_of_whole(tmp_path, tree, 1)


@pytest.fixture
def calls_in_parts(monkeypatch):
    """Calls that open or list something in the directories of parts: what, and its path."""
    found = []

    def counting(name, real):
        def counted(path, *rest, **more):
            if "-parts/" in str(path):
                found.append((name, os.fspath(path)))
            return real(path, *rest, **more)

        return counted

    for name in ("open", "listdir"):
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return found


def test_finalize_reads_journals_once_however_many_arrays_there_are(tmp_path, calls_in_parts):
    """They have other paths when they are read after the end, as nobody can commit any more."""
    n_lists = []
    for n in (2, 12):
        old, new = tree_of(n, tmp_path / f"old{n}"), tmp_path / f"new{n}"
        begin(old, new, 1)
        all_parts(old, new, 2, 1)
        calls_in_parts.clear()
        shardwrite.finalize_conversion(old, new, 1, n_parts=2)
        opened = Counter(path for name, path in calls_in_parts if name == "open")
        assert set(opened.values()) == {1}
        n_lists.append(sum(name == "listdir" for name, _ in calls_in_parts))
    assert n_lists[0] == n_lists[1]


@pytest.mark.parametrize("trusts", [False, True])
def test_finalize_reads_no_index_again_if_it_trusts_journals(tmp_path, tree, monkeypatch, trusts):
    new, opened, real = tmp_path / "new", [], os.open
    begin(tree, new, 2)
    all_parts(tree, new, 2, 2)

    def open_(name, *rest, **more):
        opened.append(os.fspath(name))
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", open_)
    shardwrite.finalize_conversion(tree, new, 2, trust_journals=trusts)
    shards = {str(path) for path in new.glob("**/c/*/*")}
    assert len(shards) == 18
    assert len(shards & {*opened}) == (0 if trusts else 18)
    assert without_receipts(new) == bytes_of_whole(tmp_path, tree, 2)


def tree_of(n, path):
    root = zarr.create_group(path)
    for k in range(n):
        array = root.create_array(f"a{k:02}", shape=(16, 16), chunks=(8, 8), dtype="u4")
        array[...] = VALUES[:16, :16]
    return path


def test_a_part_joins_once_for_its_arrays_and_looks_at_no_others(tmp_path, calls_in_parts):
    old, new = tree_of(12, tmp_path / "old"), tmp_path / "new"
    begin(old, new, 1)
    plans = sorted(new.rglob("plan.json"))
    assert len(plans) == 12
    for plan in plans[4:8]:  # a part that looked at these would know nothing of the run
        plan.unlink()
    done = [shardwrite.convert_part(old, new, k, 3, 1) for k in (0, 2)]
    assert [[array.name for array in part.arrays] for part in done] == [
        ["a00", "a01", "a02", "a03"],
        ["a08", "a09", "a10", "a11"],
    ]
    opened = [path for name, path in calls_in_parts if name == "open"]
    assert sum("/journal-" in path for path in opened) == 2, "one for each part"
    assert sum("/draft-" in path for path in opened) == 2, "and one lease"


def bytes_of_whole(tmp_path, tree, shards):
    shardwrite.shard(tree, tmp_path / "whole", shards)
    return without_receipts(tmp_path / "whole")


@long
def test_a_number_of_parts_taken_over_by_another(tmp_path, tree):
    new = tmp_path / "new"
    begin(tree, new, 1, memory_limit="1MB")
    for k in range(0, 20, 2):
        shardwrite.convert_part(tree, new, k, 20, 1)
    done = all_parts(tree, new, 3, 1)
    results = [array.result for part in done for array in part.arrays]
    assert sum(part.n_shards for part in done) == 69
    assert 0 < sum(result.n_resumed_shards for result in results) < 69
    shardwrite.finalize_conversion(tree, new, 1)


def test_everything_again_changes_nothing(tmp_path, tree):
    new = tmp_path / "new"
    for _ in range(2):
        begin(tree, new, 4)
        done = all_parts(tree, new, 2, 4)
        last = shardwrite.finalize_conversion(tree, new, 4)
        assert last.n_shards == 4 + 1 + 0 + 1
    assert {array.why[-1] for part in done for array in part.arrays} == {"it is published already"}
    assert done[0].is_skipped
    (new / "big/c/0/0").unlink()
    with pytest.raises(shardwrite.ChangedError):
        shardwrite.finalize_conversion(tree, new, 4)


def test_values_that_are_encoded_again_and_a_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("g/x", data=VALUES, chunks=(8, 8), compression="gzip")
        file["flat"] = VALUES
    src, how = tmp_path / "a.h5", {"compressors": "auto", "chunks": 4, "min_chunks": 0}
    begin(src, tmp_path / "new", 4, memory_limit="10MB", **how)
    done = all_parts(src, tmp_path / "new", 3, 4, **how)
    assert sum(part.n_chunks_encoded for part in done) == 512
    shardwrite.finalize_conversion(src, tmp_path / "new", 4, **how)
    for name in ("g/x", "flat"):
        found = zarr.open_array(tmp_path / "new" / name, mode="r")
        np.testing.assert_array_equal(found[...], VALUES)
    begin(src, tmp_path / "b", 4, include="flat")
    with pytest.raises(PlanError, match="may use 1,000"):
        shardwrite.convert_part(src, tmp_path / "b", 0, 1, 4, include="flat", memory_limit=1000)


@pytest.mark.parametrize(
    ("keywords", "shards", "differs"),
    [({"checksum": True}, 2, "codecs"), ({}, 4, "metadata"), ({"source_id": "x"}, 2, "source")],
)
def test_a_part_of_another_conversion_is_refused(tmp_path, tree, keywords, shards, differs):
    new = tmp_path / "new"
    begin(tree, new, 2)
    for call in (
        lambda: shardwrite.convert_part(tree, new, 0, 2, shards, **keywords),
        lambda: shardwrite.finalize_conversion(tree, new, shards, **keywords),
    ):
        with pytest.raises(JournalError, match="another conversion was begun") as caught:
            call()
        assert caught.value.differences
    assert not list(new.glob("big/c/*/*"))


def test_a_source_that_has_changed_is_refused(tmp_path, tree):
    begin(tree, tmp_path / "new", 2)
    document = tree / "big/.zarray"
    os.utime(document, ns=(1, 1))
    with pytest.raises(JournalError, match="source"):
        shardwrite.convert_part(tree, tmp_path / "new", 0, 2, 2)


def test_what_cannot_be_asked_for(tmp_path, tree):
    new = tmp_path / "new"
    with pytest.raises(SpecError, match="parts need another place"):
        begin(tree, None, 2)
    with pytest.raises(IncompleteError, match="nothing was begun"):
        shardwrite.convert_part(tree, new, 0, 2, 2)
    with pytest.raises(IncompleteError, match="nothing was begun"):
        shardwrite.finalize_conversion(tree, new, 2)
    assert not new.exists()
    for index, count in itertools.product((-1, 2, 2.0, True, "0", None), (2, 1, 2**70)):
        with pytest.raises(SpecError, match="no such part"):
            shardwrite.convert_part(tree, new, -1 if index == 2 else index, count, 2)
    with pytest.raises(SpecError, match="not a number of parts"):
        shardwrite.finalize_conversion(tree, new, 2, n_parts=0)
    with pytest.raises(SpecError, match="not a number of parts"):
        shardwrite.finalize_conversion(tree, new, 2, n_parts="3")
    begin(tree, new, 2)
    assert not shardwrite.convert_part(tree, new, 0, 10**12, 2).arrays
    with pytest.raises(IncompleteError, match="of 1000000000000 must be"):
        shardwrite.finalize_conversion(tree, new, 2, n_parts=10**12)
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        shardwrite.convert_part(tree, new, 0, 1, 2, mode="w")
    with pytest.raises(TypeError, match="unexpected keyword argument 'recheck'"):
        begin(tree, new, 2, recheck=True)
    with pytest.raises(SpecError, match="outside of the source"):
        begin(tree, tree / "new", 2)


@long
def test_begin_again_replaces_only_if_asked(tmp_path, tree):
    new = tmp_path / "new"
    begin(tree, new, 2)
    shardwrite.convert_part(tree, new, 0, 2, 2)
    with pytest.raises(JournalError):
        begin(tree, new, 4)
    begin(tree, new, 4, restart=True)
    all_parts(tree, new, 2, 4)
    shardwrite.finalize_conversion(tree, new, 4)
    with pytest.raises(SpecError, match="an array exists there"):
        begin(tree, new, 2)
    begin(tree, new, 2, mode="w")
    all_parts(tree, new, 2, 2)
    shardwrite.finalize_conversion(tree, new, 2)
    assert without_receipts(new) == bytes_of_whole(tmp_path, tree, 2)


def test_into_a_store_that_is_no_directory(tmp_path, tree):
    store, how = zarr.storage.MemoryStore(), {"run_dir": tmp_path / "runs"}
    begin(tree, store, 2, **how)
    all_parts(tree, store, 2, 2, **how)
    assert shardwrite.finalize_conversion(tree, store, 2, **how).n_shards == 18
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["big"][...], VALUES)


def test_how_to_begin_is_told_rightly(tmp_path, tree):
    """It was the command that begins a write, whose run no part of a conversion can go on with."""
    target = tmp_path / "new"
    for work in (
        lambda: shardwrite.convert_part(tree, target, 0, 2, 2),
        lambda: shardwrite.finalize_conversion(tree, target, 2),
    ):
        with pytest.raises(IncompleteError, match=r"call prepare_conversion first \(--init\)"):
            work()
    command = ["shard", str(tree / "one"), str(target), "--shards", "2"]
    done = CliRunner().invoke(main, [*command, "--part", "0/1"])
    assert done.exit_code == 85
    assert "run the same command with --init first" in done.output
    for step in ("--init", "--part=0/1", "--finalize"):
        assert CliRunner().invoke(main, [*command, step]).exit_code == 0
