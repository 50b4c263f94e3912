"""A source whose name or time has changed stops a run, unless the user says that it is the same."""

from __future__ import annotations

import os
import re

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import JournalError, ShardwriteError, SpecError
from shardwrite.cli import main

VALUES = np.random.default_rng(5).integers(1, 2**32, (24, 24), dtype="u4")
ACCEPTED = {"shardwrite.source.accept": True}


pytestmark = pytest.mark.usefixtures("one_thread")


def touch(path):
    """Change the time of a file, and nothing else."""
    os.utime(path, ns=(1, 10**9 * 1_000_000_000))


def command(*words):
    """Exit code and output of a command."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.exit_code, re.sub(r"\s+", " ", done.output)


def stored(path):
    da.from_array(VALUES, chunks=8).to_sharded_zarr(path, shards=8, chunks=4)
    return path / "c" / "2" / "2"


def broken(path):
    """An array of which one shard is damaged, and a function that mends it."""
    shard = stored(path)
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def mend():
        shard.write_bytes(data)
        for document in path.parent.rglob("zarr.json"):
            touch(document)

    return mend


PYTHON = {
    "shard": lambda a, b: shardwrite.shard(a, b, 3, check=True),
    "encoded again": lambda a, b: shardwrite.reshard(a, b, 2, chunks=6),
    "unshard": lambda a, b: shardwrite.unshard(a, b, check=True),
    "download": lambda a, b: shardwrite.download(a, b),
}


@pytest.mark.parametrize("name", PYTHON)
def test_an_interrupted_conversion_goes_on_if_the_user_says_so(name, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    mend = broken(a)
    with pytest.raises(ShardwriteError):
        PYTHON[name](a, b)
    mend()
    with pytest.raises(JournalError, match=r"shardwrite\.source\.accept") as caught:
        PYTHON[name](a, b)
    assert "source" in str(caught.value)
    with dask.config.set(ACCEPTED):
        done = PYTHON[name](a, b)
    assert done.arrays[0].result.n_resumed_shards > 0
    np.testing.assert_array_equal(zarr.open_array(b)[...], VALUES)


COMMANDS = {
    "shard": ("shard", "--shards", "3", "--check"),
    "reshard": ("reshard", "--shards", "2", "--chunks", "6"),
    "unshard": ("unshard", "--check-twice"),
    "download": ("download",),
    "shard --consume": ("shard", "--shards", "3", "--check", "--consume"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_say_so(name, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    verb, *options = COMMANDS[name]
    mend = broken(a)
    assert command(verb, a, b, *options)[0] == 1
    mend()
    code, text = command(verb, a, b, *options)
    if "consume" not in name:  # which knows the array by its record
        assert code == 1
        assert "--accept-source" in text
        assert "shardwrite.source.accept" not in text, "a command names its option"
        assert "give the former --source-id" in " ".join(text.split())
        assert "(--" not in text
    code, text = command(verb, a, b, *options, "--accept-source")
    assert code == 0, text
    np.testing.assert_array_equal(zarr.open_array(b)[...], VALUES)


def test_a_name_for_the_source_goes_on_whatever_its_time_is(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    mend = broken(a)
    words = ("shard", a, b, "--shards", "3", "--check", "--source-id", "monday")
    assert command(*words)[0] == 1
    mend()
    assert command(*words[:-1], "tuesday")[0] == 1
    assert command(*words, "--dry-run")[0] == 0
    code, text = command(*words)
    assert code == 0, text
    np.testing.assert_array_equal(zarr.open_array(b)[...], VALUES)


def test_another_layout_is_refused_all_the_same(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    mend = broken(a)
    with pytest.raises(ShardwriteError):
        shardwrite.shard(a, b, 3, check=True)
    mend()
    with dask.config.set(ACCEPTED), pytest.raises(JournalError) as caught:
        shardwrite.shard(a, b, 2, check=True)
    assert "shardwrite.source.accept" not in str(caught.value), "it would not help"


def test_a_finished_array_stays_if_its_source_was_touched(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    words = ("write", tmp_path / "x.npy", tmp_path / "b", "--shards", "8", "--chunks", "4")
    assert command(*words)[0] == 0
    touch(tmp_path / "x.npy")
    code, text = command(*words)
    assert code == 2
    assert "--accept-source" in text
    code, text = command(*words, "--accept-source")
    assert code == 0, text
    assert "nothing was left to do" in text


def test_parts_of_a_write(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    src, dst = tmp_path / "x.npy", tmp_path / "b"
    assert command("init", src, dst, "--shards", "8", "--chunks", "4")[0] == 0
    assert command("write-part", src, dst, "0/2")[0] == 0
    touch(src)
    code, text = command("write-part", src, dst, "1/2")
    assert code == 1
    assert "--accept-source" in text
    code, text = command("write-part", src, dst, "1/2", "--accept-source")
    assert code == 0, text
    assert command("finalize", dst)[0] == 0
    np.testing.assert_array_equal(zarr.open_array(dst)[...], VALUES)


def test_parts_of_a_conversion(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    stored(a)
    words = ("shard", a, b, "--shards", "1")
    assert command(*words, "--init")[0] == 0
    assert command(*words, "--part", "0/2")[0] == 0
    touch(a / "zarr.json")
    code, text = command(*words, "--part", "1/2")
    assert code == 1
    assert "--accept-source" in text
    for step in (("--part", "1/2"), ("--finalize",)):
        code, text = command(*words, *step, "--accept-source")
        assert code == 0, text
    np.testing.assert_array_equal(zarr.open_array(b)[...], VALUES)


def test_an_interrupted_update_goes_on(tmp_path):
    stored(tmp_path / "a")
    fails = [True]

    def half(block, block_id=None):
        if block_id == (1, 1) and fails:
            raise OSError("not now")
        return block + 1

    x = da.from_array(VALUES[:16, :16], chunks=8).map_blocks(half, dtype="u4")
    region = np.s_[:16, :16]
    with pytest.raises(OSError, match="not now"):
        x.to_sharded_zarr(tmp_path / "a", region=region, source_id="one")
    fails.clear()
    with pytest.raises(JournalError):
        x.to_sharded_zarr(tmp_path / "a", region=region, source_id="two")
    with dask.config.set(ACCEPTED):
        done = x.to_sharded_zarr(tmp_path / "a", region=region, source_id="two")
    assert done.n_shards == 4
    want = VALUES.copy()
    want[:16, :16] += 1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], want)
    assert not list(tmp_path.glob("a.shardwrite/*/plan.json"))


def test_scripts_of_jobs_repeat_both_options(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    given = ("--source-id", "monday", "--accept-source")
    places = ("--directory", tmp_path / "scripts", "--parts", "2", "--dry-run")
    stored(tmp_path / "a")
    for words in (
        ("submit", tmp_path / "x.npy", tmp_path / "b"),
        ("shard", tmp_path / "a", tmp_path / "c"),
    ):
        code, text = command("slurm", *words, *given, *places)
        assert code == 0, text
        (line,) = [line for line in text.split("srun") if "--source-id" in line][:1]
        assert "--accept-source" in line


def test_the_setting_is_a_choice(tmp_path):
    with (
        dask.config.set({"shardwrite.source.accept": "maybe"}),
        pytest.raises(SpecError, match=r"source\.accept"),
    ):
        stored(tmp_path / "a")
