"""The command line: what it prints, what it writes, and what its exit code says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from forks import python
from helpers import run

import shardwrite
from shardwrite.cli import main
from shardwrite.sources import open_source

pytestmark = pytest.mark.compat


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(60 * 70, dtype="int32").reshape(60, 70) % 97)
    return path


def test_plan_prints_a_table_and_json_and_writes_nothing(source, tmp_path):
    before = sorted(tmp_path.iterdir())
    done = run("plan", source, "--shards", "32,32", "--chunks", 8)
    assert done.exit_code == 0, done.output
    assert "(32, 32)" in done.output
    assert "up to 6 files" in done.output
    facts = json.loads(run("plan", source, "--shards", "32", "--chunks", "8", "--json").output)
    assert facts["shards"] == 6
    assert len(facts["digest"]) == 64
    assert sorted(tmp_path.iterdir()) == before


def test_plan_as_html(source, tmp_path):
    page = tmp_path / "plan.html"
    assert run("plan", source, "--shards", "32", "--chunks", "8", "--html", page).exit_code == 0
    assert "<svg" in page.read_text()


def test_write_info_verify(source, tmp_path):
    out = tmp_path / "out.zarr"
    done = run(
        "write",
        source,
        out,
        "--shards",
        32,
        "--chunks",
        8,
        "--strategy",
        "morton",
        "--compressors",
        "zstd",
        "--verify",
        "--json",
    )
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[:], np.load(source))
    facts = json.loads(run("info", out, "--json").output)
    assert facts["shards"] == [32, 32]
    assert facts["codecs"] == ["bytes", "zstd", "crc32c"]
    assert facts["n_present"] == 6
    assert facts["unused_nbytes"] == 0
    assert "morton" in run("info", out).output
    assert run("verify", out, "--deep").exit_code == 0


WITHIN = """{"name": "sharding_indexed", "configuration": {"chunk_shape": [8, 8], "codecs":
    [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}], "index_codecs":
    [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}}"""


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (WITHIN, ["sharding_indexed"]),
        ('{"name": "bytes", "configuration": {"endian": "big"}}', ["bytes", "zstd", "crc32c"]),
        ("bytes", ["bytes", "zstd", "crc32c"]),
    ],
)
def test_a_serializer(source, tmp_path, given, names):
    layout = ["--shards", "32", "--chunks", "16", "--serializer", given]
    assert run("plan", source, *layout).exit_code == 0
    for command in ("write", "init"):
        done = run(command, source, tmp_path / command, *layout)
        assert done.exit_code == 0, done.output
    opened = shardwrite.open_sharded(tmp_path / "write")
    assert [codec["name"] for codec in opened.metadata.inner_codecs] == names
    np.testing.assert_array_equal(opened[...], np.load(source))
    if given != WITHIN:  # which early versions of zarr-python do not read
        found = zarr.open_array(tmp_path / "write", mode="r")[...]
        np.testing.assert_array_equal(found, np.load(source))


@pytest.mark.parametrize(
    ("given", "told"), [('{"name": 1', "is no JSON"), ("vlen-utf9", "--serializer vlen-utf9")]
)
def test_what_is_no_serializer(source, tmp_path, given, told):
    done = run("write", source, tmp_path / "o.zarr", "--serializer", given)
    assert told in done.output
    assert done.exit_code == 2


def interrupted(out):
    """An array of 16 shards of which a run has written 6."""
    n_calls = [0]

    def six(block):
        n_calls[0] += 1
        if n_calls[0] > 6:
            raise RuntimeError
        return block

    x = da.ones((64, 64), chunks=16).map_blocks(six, dtype="f8", meta=np.empty((0, 0)))
    with dask.config.set(scheduler="sync"), pytest.raises(RuntimeError):
        x.to_sharded_zarr(out, shards=16, chunks=8, memory_limit="20kB", source_id="x")


def test_info_of_an_unfinished_array_says_how_far_the_run_is(tmp_path):
    out = tmp_path / "out.zarr"
    interrupted(out)
    told = run("info", out).output
    assert "unfinished      True" in told
    assert "progress        6 of 16 shards are done (38%)" in told
    assert "stored so far\n" in told
    assert not re.search(r"\d+\.\d+x", told), "no ratio of an array that is not whole"
    facts = json.loads(run("info", out, "--json").output)
    assert facts["progress"] == "6 of 16 shards are done (38%)"
    card = shardwrite.verify(out)._repr_html_()
    assert "6 of 16 shards are done" in card
    da.ones((64, 64), chunks=16).to_sharded_zarr(
        out, shards=16, chunks=8, memory_limit="20kB", source_id="x"
    )
    told = run("info", out).output
    assert "progress" not in told
    assert re.search(r"stored \(\d+\.\d+x\)", told)
    (out / "c" / "1" / "1").unlink()
    assert not re.search(r"\d+\.\d+x", run("info", out).output), "a shard is missing"


def test_verify_tells_a_flipped_bit_by_its_exit_code(source, tmp_path):
    out = tmp_path / "out.zarr"
    assert run("write", source, out, "--shards", 32, "--chunks", 8).exit_code == 0
    shard = out / "c" / "1" / "0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 4
    shard.write_bytes(data)
    assert run("verify", out).exit_code == 0, "the index alone cannot tell"
    done = run("verify", out, "--deep")
    assert done.exit_code == 1
    assert "c/1/0" in done.output
    assert "inner chunk (0, 0)" in done.output
    data[-3] ^= 4
    shard.write_bytes(data)
    done = run("verify", out, "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["problems"][0]["key"] == "c/1/0"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--shards", "10", "--chunks", "3"], 2, ["shards", "multiple"]),
        (["--strategy", "sideways"], 2, ["strategy", "sideways", "append-only"]),
        (["--memory-limit", "1kB"], 2, ["--memory-limit"]),
        (["--index-location", "middle"], 2, ["middle"]),
        (["--nonsense"], 2, ["--nonsense"]),
    ],
)
def test_usage_errors_exit_with_2(source, tmp_path, arguments, code, words):
    done = run("write", source, tmp_path / "out.zarr", *arguments)
    assert done.exit_code == code, done.output
    for word in words:
        assert word in done.output
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("size", ["--5", "²", "9" * 5000, "8,--5"])
@pytest.mark.parametrize("option", ["--shards", "--chunks", "--shape", "--source-chunks"])
def test_what_is_no_size_is_wrong_usage(source, option, size):
    done = run("plan", source, f"{option}={size}")
    assert done.exit_code == 2, done.exception
    assert "Error" in done.output


def test_an_existing_array_is_kept_unless_told(source, tmp_path):
    out = tmp_path / "out.zarr"
    assert run("write", source, out).exit_code == 0
    done = run("write", source, out, "--shards", "24", "--chunks", "8")
    assert done.exit_code == 2
    assert "give --overwrite to replace it" in done.output
    assert (
        run("write", source, out, "--shards", "24", "--chunks", "8", "--overwrite").exit_code == 0
    )


def test_the_same_command_again_writes_nothing(source, tmp_path):
    out = tmp_path / "out.zarr"
    assert run("write", source, out).exit_code == 0
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    done = run("write", source, out)
    assert done.exit_code == 0
    assert "nothing was left to do" in done.output
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    assert run("write", source, out, "--overwrite", "--restart").exit_code == 0
    assert before != {p: p.stat().st_mtime_ns for p in out.rglob("*")}


def test_a_source_that_has_changed_is_not_taken_for_the_one_that_was_written(source, tmp_path):
    out = tmp_path / "out.zarr"
    assert run("write", source, out).exit_code == 0
    np.save(source, np.load(source) + 1)
    done = run("write", source, out)
    assert done.exit_code == 2
    assert "of another run" in done.output
    assert run("write", source, out, "--overwrite").exit_code == 0
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[...], np.load(source))


def test_a_missing_source_is_wrong_usage(tmp_path):
    done = run("write", tmp_path / "none.npy", tmp_path / "out.zarr")
    assert done.exit_code == 2
    assert "none.npy" in done.output


def test_raw_source(tmp_path):
    data = np.arange(24, dtype="<u2")
    (tmp_path / "x.raw").write_bytes(b"head" + data.tobytes())
    done = run(
        "write",
        tmp_path / "x.raw",
        tmp_path / "o.zarr",
        "--shape",
        "4,6",
        "--dtype",
        "uint16",
        "--offset",
        4,
        "--shards",
        4,
        "--chunks",
        2,
    )
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(
        zarr.open_array(tmp_path / "o.zarr", mode="r")[:], data.reshape(4, 6)
    )


@pytest.mark.long
def test_demo(tmp_path):
    program = "from shardwrite.cli import main\nif __name__ == '__main__': main()"
    command = [*python(), "-c", program, "demo", "--directory", str(tmp_path), "--json"]
    for _ in range(2):  # the second one replaces the array of the first
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        facts = json.loads(done.stdout)
        assert 0 < facts["killed_at"] < 1
        assert 0 < facts["result"]["n_resumed_shards"] < facts["result"]["n_shards"]
        assert facts["equal"] is True
        assert facts["verify"]["is_good"] is True
        assert facts["result"]["raw_nbytes"] == 128 * 96 * 24 * 2 * 2 * 6**3 > 200e6
        run = shardwrite.report(tmp_path / "scan.zarr")
        plan = shardwrite.plan(
            open_source(tmp_path / "scan.npy"), shards=(1, 72, 192, 256), chunks=(1, 24, 32, 32)
        )
        assert run.peak_nbytes < 1.25 * plan.memory.total_nbytes


def test_dask_finds_the_command():
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="dask_cli") if point.name == "shardwrite"]
    if not found:
        pytest.skip("the package is not installed, so it has no entry points")
    assert found[0].load() is main


def test_quiet_in_a_pipe(source, tmp_path):
    program = [*python(), "-c", "from shardwrite.cli import main; main()"]
    for command in (["write", source, tmp_path / "o.zarr"], ["verify", tmp_path / "o.zarr"]):
        done = subprocess.run([*program, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def test_standard_error_may_be_closed(source, tmp_path):
    """Then its descriptor is given to the next file, in which no message may land."""
    program = [sys.executable, "-c", "from shardwrite.cli import main; main()"]
    for command in (["write", source, tmp_path / "o.zarr"], ["verify", tmp_path / "o.zarr"]):
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *program, *command], stdout=subprocess.PIPE
        )
        assert (done.returncode, bool(done.stdout)) == (0, True)
    program = """if True:
        import os, signal, sys
        from shardwrite.runs.outcome import handling_signals
        descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
        while descriptor < 2:
            descriptor = os.dup(descriptor)
        assert descriptor == 2
        with handling_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
    """
    file = tmp_path / "shard"
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", program, file]
    subprocess.run(command, check=True)
    assert file.read_bytes() == b""


def test_no_file_gets_the_number_of_a_closed_descriptor(tmp_path):
    """A library of C that prints would have printed into a shard, whose file had the number 2."""
    script, told = tmp_path / "script.py", tmp_path / "told"
    script.write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "lines = [f'{os.readlink(f\"/proc/self/fd/{n}\")} {os.get_inheritable(n)}' for n in range(3)]\n"
        "Path(sys.argv[1]).write_text('\\n'.join(lines))\n"
    )
    program = [
        sys.executable,
        "-c",
        "from shardwrite.cli import main; main()",
        "exec",
        script,
        told,
    ]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *program], check=True, timeout=60)
    assert told.read_text().splitlines() == ["/dev/null True"] * 3
    with open(tmp_path / "output", "w") as output:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *program]
        subprocess.run(command, check=True, stdout=output, timeout=60)
    _, kept, last = told.read_text().splitlines()
    assert (kept.split()[0], last) == (str(tmp_path / "output"), "/dev/null True")


def test_output_to_a_full_disk(source, tmp_path):
    program = [sys.executable, "-c", "from shardwrite.cli import main; main()"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*program, "write", source, tmp_path / "o.zarr"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, "cannot print: No space left" in done.stderr) == (75, True)
    assert shardwrite.verify(tmp_path / "o.zarr").is_good


def test_output_that_nobody_reads_ends_in_silence():
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [*python(), "-c", "from shardwrite.cli import main; main()", "config"]
    try:
        done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_that_lacks_the_characters_of_a_path(tmp_path):
    """They are spelt out for people, and are in a script what they are in the file system."""
    np.save(tmp_path / "a.npy", np.ones(8))
    program = [sys.executable, "-c", "from shardwrite.cli import main; main()"]
    environ = {**os.environ, "PYTHONIOENCODING": "latin1"}
    printed = [
        subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=True).stdout
        for words in (["write"], ["slurm", "script", "array", "--parts", "1"])
        for command in [[*program, *words, "a.npy", "日.zarr"]]
    ]
    assert (tmp_path / "日.zarr" / "zarr.json").is_file()
    assert rb"\u65e5.zarr" in printed[0]
    assert "日.zarr" in printed[1].decode()


@pytest.mark.parametrize("name", ["TERM", "INT"])
@pytest.mark.parametrize(
    ("module", "function", "words"),
    [
        ("write", "open_to_write", ["write", "x", "y"]),
        ("write", "_open_volume", ["precomputed", "x", "y", "--resolution", "1,1,1"]),
        ("updates", "open_as_dask", ["update", "x", "y", "--append", "0"]),
        ("parts", "_opened_for_part", ["write-part", "x", "y", "0/1"]),
    ],
)
def test_a_signal_while_the_source_is_opened(tmp_path, module, function, words, name):
    program = f"""if True:
        import os, signal
        from shardwrite.cli import main, {module}
        {module}.{function} = lambda *_, **__: os.kill(os.getpid(), signal.SIG{name})
        main({words})
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 85, done.stderr
