"""Conversions that consume a hierarchy: every array, and then the groups."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import obstore.store
import pytest
import zarr
from click.testing import CliRunner
from tiers import some

import shardwrite
from shardwrite import JournalError, SpecError, StoreError
from shardwrite.cli import main

sys.path.insert(0, str(Path(__file__).parent))
import seams
import test_consume
from helpers import Stop, contents
from test_convert import payloads, same

VALUES = np.random.default_rng(0).integers(1, 9, (40, 30)).astype("i4")
NAMES = ("a", "b/c", "b/d/e")
SMALL = "consumed into"  # once a key in the record of such a conversion


def tree(path, zarr_format=3, *, is_consolidated=True):
    """Groups with attributes, three arrays of 4 x 3 chunks, and two that are small."""
    group = zarr.create_group(path, zarr_format=zarr_format, attributes={"unit": "K"})
    for n, name in enumerate(NAMES):
        array = group.create_array(name, shape=VALUES.shape, chunks=(10, 10), dtype="i4")
        array[...] = VALUES + n
        array.attrs["n"] = n
    group["b"].attrs["of"] = "b"
    group.create_array(SMALL, shape=(3,), chunks=(3,), dtype="i4")[...] = 7
    group.create_array("zero", shape=(0,), chunks=(3,), dtype="i4")
    if is_consolidated:
        with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path)
    return path


def check(path, *, is_consolidated=True):
    group = zarr.open_group(path, mode="r", use_consolidated=is_consolidated)
    assert (dict(group.attrs), dict(group["b"].attrs)) == ({"unit": "K"}, {"of": "b"})
    for n, name in enumerate(NAMES):
        same(group[name][...], VALUES + n)
        assert dict(group[name].attrs) == {"n": n}
    same(group[SMALL][...], np.full(3, 7, "i4"))
    assert group["zero"].shape == (0,)


def again(src, dst, **how):
    return test_consume.again(src, dst, **{"shards": 2, **how})


def interrupted(src, dst, after=1, **how):
    test_consume.interrupted(src, dst, after, **{"shards": 2, **how})


@pytest.mark.parametrize("is_consolidated", [True, False])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_everything_is_in_the_new_hierarchy(tmp_path, zarr_format, is_consolidated):
    src, dst = tree(tmp_path / "a", zarr_format, is_consolidated=is_consolidated), tmp_path / "b"
    before = {name: payloads(src / name) for name in NAMES}
    done = again(src, dst)
    assert {name: payloads(dst / name) for name in NAMES} == before
    assert (done.n_chunks_copied, done.n_chunks_encoded, done.n_removed) == (37, 0, 37)
    check(dst, is_consolidated=is_consolidated)
    assert os.listdir(tmp_path) == ["b"]
    assert not list(dst.rglob("*.shardwrite"))
    repeated = again(src, dst)
    assert repeated.is_skipped
    assert {array.name for array in repeated.arrays} == {*NAMES, SMALL, "zero"}


@pytest.mark.parametrize("after", [1, 5])
def test_nothing_reads_a_part_of_it(tmp_path, after):
    """Neither the tree, nor a group or an array in it, nor the group that it lies in."""
    zarr.create_group(tmp_path / "g").create_array("z", shape=(3,), chunks=(3,), dtype="i4")
    src, dst = tree(tmp_path / "g/a"), tmp_path / "b"
    interrupted(src, dst, after)
    new, before = tmp_path / "new", contents(tmp_path)
    for part in (src, src / "b", src / "b/d/e", tmp_path / "g"):
        for call in (
            lambda part=part: shardwrite.plan_reshard(part, 2),
            lambda part=part: shardwrite.unshard(part),
            lambda part=part: shardwrite.shard(part, new, 2),
            lambda part=part: shardwrite.shard(part, new, 2, while_growing=0),
            lambda part=part: shardwrite.prepare_conversion(part, new, 2),
            lambda part=part: shardwrite.upload(part, obstore.store.MemoryStore()),
            lambda part=part: shardwrite.plan_transfer(part, new),
            lambda part=part: shardwrite.download(part, new),
        ):
            with pytest.raises(JournalError, match=rf"{src} is being consumed into .*/b, so"):
                call()
    assert contents(tmp_path) == before
    shardwrite.shard(tmp_path / "g", new, 2, exclude="a")
    shardwrite.shard(src, dst, 2, consume=True)
    check(dst)


@pytest.mark.parametrize("after", some([1, 4, 8, 12], 4, 12))
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_amid(tmp_path, zarr_format, after):
    """Readers get errors and no fill values; nobody else can write; the same call finishes."""
    src, dst = tree(tmp_path / "a", zarr_format), tmp_path / "b"
    interrupted(src, dst, after)
    with pytest.raises(FileNotFoundError):
        zarr.open_group(src, mode="r")
    for name in NAMES:
        try:
            found = zarr.open_array(src / name, mode="r")[...]
        except FileNotFoundError:
            continue
        same(found, VALUES + NAMES.index(name))
    with pytest.raises(JournalError, match="consume=True"):
        shardwrite.shard(src, shards=2)
    with pytest.raises(JournalError, match="something else of"):
        again(src, tmp_path / "c")
    with pytest.raises(JournalError, match="cannot be given up"):
        shardwrite.abandon(src)
    again(src, dst)
    check(dst)
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_given_up_before_anything_is_removed(tmp_path, monkeypatch, zarr_format):
    src, dst = tree(tmp_path / "a", zarr_format), tmp_path / "b"
    before = contents(src)
    with monkeypatch.context() as patched:
        seams.kill_before(patched, "compare with the source", Stop)
        with pytest.raises(Stop):
            again(src, dst)
    assert contents(src) != before
    shardwrite.abandon(src)
    assert contents(src) == before
    again(src, dst, restart=True)
    check(dst)


def test_an_error_before_anything_is_removed_gives_the_source_back(tmp_path, monkeypatch):
    src, dst = tree(tmp_path / "a", 2), tmp_path / "b"
    before = contents(src)

    full = StoreError("no space", key="x", errno=28)
    with monkeypatch.context() as patched:
        seams.kill_before(patched, "consume an array", full)
        with pytest.raises(StoreError, match="no space"):
            again(src, dst)
    assert contents(src) == before
    assert "a.conversion.shardwrite" not in os.listdir(tmp_path)
    again(src, dst)
    check(dst)


def test_what_is_refused_before_anything_happens(tmp_path):
    src, dst = tree(tmp_path / "g/a", is_consolidated=False), tmp_path / "b"
    above = zarr.create_group(tmp_path / "g")
    before = contents(tmp_path)
    for keywords, why in (
        ({"durability": "none"}, "not be durable"),
        ({"mode": "w"}, "could be replaced"),
        ({"compressors": "gzip"}, "'a' must be decoded"),
        ({"include": "a"}, "as a whole"),
    ):
        with pytest.raises(SpecError, match=why):
            shardwrite.reshard(src, dst, **{"shards": 2, "consume": True, **keywords})
        assert not dst.exists()
    assert contents(tmp_path) == before
    os.symlink(src / "a", src / "link")
    with pytest.raises(SpecError, match="would be left"):
        again(src, dst)
    (src / "link").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(above.store)
    with pytest.raises(SpecError, match="consolidated metadata"):
        again(src, dst)


@pytest.mark.long
def test_one_conversion_at_a_time(tmp_path):
    """Neither of an array in a hierarchy that is consumed, nor the other way round."""
    src, dst = tree(tmp_path / "a", is_consolidated=False), tmp_path / "b"
    interrupted(src, dst)
    before = contents(src)
    for call in (
        lambda: shardwrite.shard(src / "b/d/e", 2),
        lambda: again(src / "b/d/e", tmp_path / "c"),
        lambda: again(src / "b/d", tmp_path / "c"),
    ):
        with pytest.raises((JournalError, SpecError)):
            call()
        assert contents(src) == before
    again(src, dst)
    check(dst, is_consolidated=False)

    src, dst = tree(tmp_path / "a", is_consolidated=False), tmp_path / "d"
    interrupted(src / "b/c", tmp_path / "e", shards=(1, 3))
    before = contents(src)
    with pytest.raises(JournalError, match="has not ended"):
        again(src, dst)
    assert contents(src) == before
    again(src / "b/c", tmp_path / "e", shards=(1, 3))
    again(src, dst)
    assert not src.exists()


def test_a_hierarchy_that_was_consumed_since_it_was_planned(tmp_path):
    """Another process has consumed it in the meantime; the same call then tells that."""
    src, dst = tree(tmp_path / "a"), tmp_path / "b"
    with (
        seams.once_before("begin in place", lambda: again(src, dst)),
        pytest.raises(StoreError, match="another program has removed"),
    ):
        again(src, dst)
    assert os.listdir(tmp_path) == ["b"]
    assert again(src, dst).is_skipped
    check(dst)


def test_files_that_are_not_its_own_are_left(tmp_path):
    src, dst = tree(tmp_path / "a"), tmp_path / "b"
    (src / "README").write_text("by hand")
    (src / "b/d/e/notes").write_text("by hand")
    done = again(src, dst)
    check(dst)
    assert contents(src) == {"README": b"by hand", "b/d/e/notes": b"by hand"}
    assert [array.name for array in done.arrays if "left there" in str(array.why)] == ["b/d/e"]
    assert again(src, dst).is_skipped


def test_the_command(tmp_path):
    src, dst = tree(tmp_path / "a"), tmp_path / "b"
    command = ["shard", str(src), str(dst), "--shards", "2", "--consume"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 0, ended.output
    assert "37 files of the source are removed" in ended.output
    check(dst)
