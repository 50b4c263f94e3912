"""Scripts as text, the size of arrays, and what is refused: nothing here needs SLURM."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import seams
from click.testing import CliRunner
from helpers import printed

from shardwrite.cli import main
from shardwrite.errors import SpecError, SubmitError
from shardwrite.host.resources import job_id
from shardwrite.slurm.client import requeue, resubmission
from shardwrite.slurm.script import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    Settings,
    allocation_script,
    array_script,
    elastic_script,
    finalize_script,
    parts_for,
)

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent / "golden"
PLACEHOLDERS = ["/path/to/source.h5::/raw", "/path/to/array.zarr"]
JOB = ArrayJob(
    src="it's $HOME `date`; rm -rf x/a b.h5::/raw",
    dst="/data/x.zarr",
    n_parts=7,
    at_once=3,
    source_options=("--source-chunks", "1,64,64"),
    name="images/raw",
)
SETTINGS = Settings(
    job_name="my job",
    cores=16,
    memory="32G",
    time="1-00:00:00",
    lead_seconds=600,
    n_requeues=3,
    directives=("--partition=main", "--comment=for the paper", "--exclusive"),
    setup=("module load python/3.12", "source ~/env/bin/activate"),
)


ELASTIC = ElasticJob(
    src=JOB.src,
    dst=JOB.dst,
    n_jobs=12,
    options=("--name", "images/raw", *JOB.source_options),
    driver_time="3-00:00:00",
)
SCRIPTS = {
    "array": array_script(JOB, SETTINGS),
    "finalize": finalize_script(JOB, SETTINGS),
    "allocation": allocation_script(
        AllocationJob(
            n_nodes=3, n_workers=2, program="it's mine.py", arguments=("--fast", "a,b", "$HOME")
        ),
        SETTINGS,
    ),
    "elastic": elastic_script(ELASTIC, SETTINGS),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_golden(kind):
    assert SCRIPTS[kind] == (GOLDEN / f"{kind}.sbatch").read_text()


@pytest.mark.compat
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("array", "--parts"),
        ("finalize", "--parts"),
        ("allocation", "--nodes"),
        ("elastic", "--jobs"),
    ],
)
def test_the_scripts_to_copy_are_what_the_command_prints(kind, size):
    if kind != "allocation":
        other = {"--parts": "--jobs", "--jobs": "--parts"}[size]
        for wrong in ([], [other, "20"], [size, "20", other, "20"]):
            assert (
                CliRunner().invoke(main, ["slurm", "script", kind, *PLACEHOLDERS, *wrong]).exit_code
                == 2
            )
    n = "4" if kind == "allocation" else "20"
    done = CliRunner().invoke(main, ["slurm", "script", kind, *PLACEHOLDERS, size, n])
    assert done.exit_code == 0, done.output
    assert done.output == (ROOT / "slurm" / f"{kind}.sbatch").read_text()


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        (
            "array",
            "--parts 3 --shards 512",
            "--shards is for init, allocation and elastic, and not for array",
        ),
        ("array", "--parts 3 --nodes 9", "--nodes is for allocation, and not for array"),
        ("finalize", "--parts 3 --at-once 2", "--at-once is for array, and not for finalize"),
        ("finalize", "--parts 3 --fill-value 7", "--fill-value is for init"),
        ("elastic", "--jobs 3 --program p.py", "--program is for allocation"),
        ("allocation", "--driver-time 1:00:00", "--driver-time is for elastic"),
        ("allocation", "--program p.py --shards 64", "--shards is for SRC and DST"),
        ("allocation", "--program p.py --decode-cf", "--decode-cf is for SRC and DST"),
    ],
)
def test_what_a_kind_of_script_does_not_take_is_refused(kind, words, said):
    command = ["slurm", "script", kind, *PLACEHOLDERS, *words.split()]
    assert said in " ".join(printed(*command, code=2).split())


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "slurm").glob("*"), *GOLDEN.glob("*"), *Path(__file__).parent.glob("*.sh")]),
    ids=str,
)
def test_shellcheck(path):
    if path.suffix in (".sbatch", ".sh"):
        ignored = (
            [] if path.parent != GOLDEN else ["--exclude=SC1090,SC1091,SC2016"]
        )  # an environment of the user's, and names that are meant so
        done = subprocess.run(["shellcheck", *ignored, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_paths_that_look_like_options():
    done = printed("slurm", "script", "array", "--parts", 3, "--", "-a.npy", "-x.zarr")
    assert "SRC=./-a.npy\nDST=./-x.zarr\n" in done


def test_what_a_user_gives_reaches_the_program_as_it_is(tmp_path):
    """The script run by bash, with a program of the same name that writes down its arguments."""
    program = tmp_path / "shardwrite"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(array_script(JOB, Settings()))
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": "/",
        "SLURM_ARRAY_TASK_ID": "6",
        "SLURM_CPUS_PER_TASK": "4",
    }
    done = subprocess.run(
        ["bash", tmp_path / "script"], env=environ, capture_output=True, text=True, check=True
    )
    expected = [
        "write-part",
        JOB.src,
        JOB.dst,
        "6/7",
        "--name",
        "images/raw",
        *JOB.source_options,
        "--requeue",
        "10",
    ]
    assert done.stdout.splitlines() == expected


def test_what_a_user_gives_reaches_the_workers_as_it_is(tmp_path):
    """The elastic script's driver, in which the same holds for the options of the workers."""
    program = tmp_path / "shardwrite"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    settings = Settings(
        cores=8, memory="32G", directives=SETTINGS.directives, setup=('export A="b c"',)
    )
    (tmp_path / "script").write_text(elastic_script(ELASTIC, settings))
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/", "SLURM_CPUS_PER_TASK": "1"}
    done = subprocess.run(
        ["bash", tmp_path / "script"], env=environ, capture_output=True, text=True, check=True
    )
    workers = ["--jobs", "12", "--cores", "8", "--memory", "32G", "--time", "01:00:00"]
    workers += [
        *(f"--sbatch={option}" for option in settings.directives),
        "--setup",
        'export A="b c"',
    ]
    expected = [
        "write",
        ELASTIC.src,
        ELASTIC.dst,
        "--cluster",
        "slurm",
        *workers,
        *ELASTIC.options,
        "--requeue",
        "10",
    ]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    "directive",
    [
        "--partition=a\n#SBATCH --wrap=x",
        "--partition=a\n",
        '--comment=a"b',
        "--comment=a\\",
        "main",
        "--x y=1",
        "--mem=",
    ],
)
def test_directives_that_are_no_line_are_refused(directive):
    with pytest.raises(SpecError, match="directive"):
        array_script(JOB, Settings(directives=(directive,)))


@pytest.mark.parametrize("field", ["job_name", "memory", "time"])
def test_line_breaks_in_settings_are_refused(field):
    with pytest.raises(SpecError, match="directive"):
        array_script(JOB, Settings(**{field: "a\n#SBATCH --uid=0"}))


def test_line_breaks_in_setup_are_refused():
    with pytest.raises(SpecError, match="setup"):
        Settings(setup=("a\nb",))


def test_sizes():
    assert parts_for(10**12, 10**6, 200e6, 1001) == 8
    assert parts_for(10**15, 10**6, 200e6, 1001) == 1001
    assert parts_for(10**12, 5, 200e6, 1001) == 5
    assert 10**12 / parts_for(10**12, 10**6, 200e6, 1001) / 200e6 >= 600
    with pytest.raises(SpecError, match="throughput"):
        parts_for(1, 1, 0, 1)


def test_the_last_task_of_an_array_names_itself_and_not_the_array():
    assert (
        job_id({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "5"})
        == "7_5"
    )
    assert job_id({"SLURM_JOB_ID": "9"}) == "9"
    assert job_id({}) is None


def test_requeue_has_an_end(monkeypatch, tmp_path):
    own = {"SLURM_JOB_ID": "7"}
    assert "not again" in requeue(2, {**own, "SLURM_RESTART_COUNT": "2"})
    assert "not in a SLURM job" in requeue(2, {})
    assert "first task" in requeue(2, {**own, "SLURM_PROCID": "1"})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SubmitError, match="scontrol is not in PATH"):
        requeue(2, own)
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    program.chmod(0o755)
    assert requeue(2, {**own, "SLURM_RESTART_COUNT": "1"}) == "job 7 is requeued"
    assert (tmp_path / "called").read_text() == "requeue 7\n"
    program.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    with pytest.raises(SubmitError, match=r"no \(exit code 1\)"):
        requeue(2, own)


def test_resubmission_quotes():
    line = resubmission([3, 4, 5, 9], "a b", seams.target_of("/x y/z.zarr", "raw"))
    assert shlex.split(line)[3:] == [
        "/x y/z.zarr",
        "--name",
        "raw",
        "--array=3-5,9",
        "--directory",
        "a b",
    ]


def test_submit_in_the_dry_asks_for_nothing_but_the_size(tmp_path, monkeypatch):
    import numpy as np

    np.save(tmp_path / "x.npy", np.zeros((64, 64), "u1"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    arguments = [
        "slurm",
        "submit",
        "x.npy",
        "x.zarr",
        "--shards",
        "32",
        "--chunks",
        "8",
        "--dry-run",
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "scontrol is not in PATH" in done.output
    done = CliRunner().invoke(main, [*arguments, "--parts", "3", "--sbatch=--partition=main"])
    assert done.exit_code == 0, done.output
    assert "--dependency=afterany:" in done.output
    assert "#SBATCH --partition=main" in done.output
    assert f"SRC={tmp_path}/x.npy" in done.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy"]


@pytest.mark.parametrize(
    "given", ["bytes", '{"name": "bytes", "configuration": {"endian": "big"}}']
)
def test_a_serializer_reaches_the_script(given):
    arguments = [
        "slurm",
        "script",
        "allocation",
        *PLACEHOLDERS,
        "--nodes",
        "2",
        "--serializer",
        given,
    ]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (options,) = re.findall(r"^OPTIONS=\((.*)\)$", done.output, re.MULTILINE)
    words = shlex.split(options)
    found = json.loads(words[words.index("--serializer") + 1])
    assert found == (given if given == "bytes" else json.loads(given))


@pytest.mark.parametrize("make", [array_script, finalize_script])
def test_the_scripts_of_a_conversion(make):
    """Whatever paths and patterns hold reaches the program unchanged."""
    options = ("--include", "a b/*", "--compressors", '[{"name": "gzip"}]', "--shards", "2,2")
    job = replace(JOB, conversion="reshard", source_options=options, name="")
    text = make(job, SETTINGS).replace("exec shardwrite", "printf '%s\\n'")
    environ = {
        "PATH": "/usr/bin:/bin",
        "SLURM_ARRAY_TASK_ID": "5",
        "SLURM_SUBMIT_DIR": "/a b",
        "SLURM_CPUS_PER_TASK": "1",
    }
    text = text.replace("module load python/3.12\nsource ~/env/bin/activate\n", "")
    done = subprocess.run(
        ["bash"], input=text, env=environ, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    assert words[:3] == ["reshard", JOB.src, JOB.dst]
    if make is array_script:
        assert words[3:] == ["--part", "5/7", *options, "--requeue", "3"]
    else:
        assert words[3:] == ["--finalize", "--parts", "7", "--resubmit", "/a b", *options]
