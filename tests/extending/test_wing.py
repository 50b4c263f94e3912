"""A package that is only installed adds a command, formats and an operation: each is found by its
name in a fresh process, in parts and in worker processes, and nothing is imported before."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import negatives
import reading

COMMAND = "import sys; from shardwrite.cli import main; main(sys.argv[1:], 'shardwrite')"
PREPARE = """
import sys, dask, shardwrite
from shardwrite.sources import as_dask, open_source
from shardwrite.seams import resolve
x = as_dask(open_source(sys.argv[1]), (16, 64))
how = dict(source_id="it", memory_limit="1GB")
"""


@pytest.fixture
def site(tmp_path):
    """A folder of Python in which the wing is installed."""
    facts = tmp_path / "site" / "negatives-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: negatives\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(negatives.WING)
    return facts.parent


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (64, 64), dtype="u1")


@pytest.fixture
def picture(tmp_path, pixels):
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P5\n64\n64\n255\n" + pixels.tobytes())
    return path


@pytest.mark.long
def test_its_command_is_found_and_does_its_operation(tmp_path, site, picture, pixels):
    path = tmp_path / "x.zarr"
    assert reading.run(COMMAND, "negative", picture, path, site=site) == "16"
    program = "import shardwrite, sys; print(shardwrite.open_sharded(sys.argv[1])[...].sum())"
    assert int(reading.run(program, path, site=site)) == (255 - pixels).sum()
    text = reading.run(COMMAND, "negative", "--help", site=site)
    assert "with black and white exchanged" in text
    assert "No such command" in reading.run(COMMAND, "negative", picture, path, code=2)


@pytest.mark.long
def test_its_source_is_known_by_the_name_of_a_file(tmp_path, site, picture, pixels):
    path = tmp_path / "x.zarr"
    words = (picture, path, "--shards", "16", "--chunks", "4")
    reading.run(COMMAND, "write", *words, site=site)
    reading.run(COMMAND, "verify", path, "--against", picture, site=site)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], pixels)
    named = ("write", picture, tmp_path / "y.zarr", "--format", "pgm", "--shards", "16")
    reading.run(COMMAND, *named, site=site)
    assert "cannot be told" in reading.run(COMMAND, "plan", picture, code=2)


@pytest.mark.parametrize("scheduler", ["processes", pytest.param("sync", marks=pytest.mark.long)])
def test_its_format_is_found_in_parts_and_by_workers(tmp_path, site, picture, pixels, scheduler):
    path = tmp_path / "x.zarr"
    prepare = f"""{PREPARE}
codecs = [{{"name": "bytes", "configuration": {{"endian": "little"}}}}]
form = resolve("shard-format", "index-first")(codecs, "start")
shardwrite.prepare(x, sys.argv[2], shardwrite.plan(x, shards=16, chunks=4, shard_format=form, **how))
"""
    part = f"""{PREPARE}
assert "negatives" in sys.modules  # for the source, and not yet for the format
if __name__ == "__main__":
    with dask.config.set(scheduler={scheduler!r}, num_workers=2):
        for k in range(3):
            shardwrite.write_part(x, sys.argv[2], k, 3, **how)
    shardwrite.finalize(sys.argv[2])
"""
    reading.run(prepare, picture, path, site=site)
    reading.run(part, picture, path, site=site)
    verified = "import shardwrite, sys; print(shardwrite.verify(sys.argv[1], deep=True).is_good)"
    assert reading.run(verified, path, site=site) == "True"
    whole = "import shardwrite, sys; print(shardwrite.open_sharded(sys.argv[1])[...].sum())"
    assert int(reading.run(whole, path, site=site)) == pixels.sum()
    told = reading.run(whole, path, code=1)
    assert "index-first" in told


def test_it_is_killed_and_resumed(tmp_path, site, picture, pixels):
    path = tmp_path / "x.zarr"
    begin = f"""{reading.dying_after(6)}{PREPARE}
negative = resolve("operation", "negative")
how = dict(how, shards=16, chunks=4, memory_limit="30kB")
dask.config.set(scheduler="sync")
"""
    killed = f"{begin}negative(sys.argv[1], sys.argv[2], progress=die, **how)"
    reading.run(killed, picture, path, code=-signal.SIGKILL, site=site)
    assert not (path / "zarr.json").exists()
    resumed = f"{begin}print(negative(sys.argv[1], sys.argv[2], **how).n_resumed_shards)"
    assert 0 < int(reading.run(resumed, picture, path, site=site)) < 16


def test_entry_points_are_not_looked_at_for_what_is_known(tmp_path, site):
    da.arange(64, chunks=16).to_sharded_zarr(tmp_path / "x.zarr", shards=16, chunks=4)
    program = """
import sys
from shardwrite.seams import _entry_points
from shardwrite.cli import main
try:
    main(["info", sys.argv[1]], "shardwrite")
except SystemExit as ended:
    assert not ended.code
assert not _entry_points.cache_info().currsize
assert "negatives" not in sys.modules
"""
    reading.run(program, tmp_path / "x.zarr", site=site)


def test_a_wing_that_cannot_be_imported_is_named(tmp_path, site, picture):
    facts = site / "negatives-1.0.dist-info" / "entry_points.txt"
    facts.write_text(negatives.WING.replace("negatives:", "gone:"))
    assert "gone cannot be imported" in reading.run(COMMAND, "plan", picture, code=2, site=site)
