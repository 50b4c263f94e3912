"""Submissions, their directories and their jobs, with programs that stand for SLURM's: what is
refused, noted and told."""

from __future__ import annotations

import errno
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import dask.array
import numpy as np
import pytest
import seams
from helpers import printed

import shardwrite
from shardwrite import StoreError
from shardwrite.cli.jobs import absolute
from shardwrite.slurm import jobs
from shardwrite.slurm.notes import record_jobs
from shardwrite.slurm.status import status
from shardwrite.sources import as_dask, open_source

SBATCH = """
n=$(($(cat {base}/last 2>/dev/null || echo 40) + 1))
echo $n > {base}/last
echo "$PWD $*" >> {base}/submitted
echo "PENDING" > {base}/queue/$n
echo $n
"""
SQUEUE = """
case "$*" in
*states=all*) [ ! -e {base}/endings ] || cat {base}/endings ;;
*)
    cd {base}/queue
    for job in $(grep -o "jobs=[^ ]*" <<<"$*" | tr ",=" "\\n" | sort -n); do
        [ ! -e "$job" ] || echo "$job|$(cat "$job")|None|n1|1:00"
    done ;;
esac
"""
SCANCEL = 'cd {base}/queue; for job; do rm -f "$job"; done'
LAYOUT = ["--shards", "16", "--chunks", "8", "--memory-limit", "50kB"]
SIZES = [*LAYOUT, "--parts", "4"]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster whose jobs wait for ever; its directory."""
    base = tmp_path / "cluster"
    (base / "queue").mkdir(parents=True)
    (base / "bin").mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "squeue": SQUEUE,
        "scancel": SCANCEL,
        "sacct": "cat {base}/accounts",
    }.items():
        (base / "bin" / name).write_text(f"#!/bin/bash\n{text.format(base=base)}\n")
        (base / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{base / 'bin'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones((64, 64), "u4"))
    return base


def submit(*words, code=0):
    return printed("write", "x.npy", *words, "--submit", *SIZES, code=code)


def of(directory):
    """The array that the scripts in a directory write, as bash reads them."""
    text = (directory / "finalize.sbatch").read_text().replace("exec shardwrite", "printf '%s\\n'")
    environ = {
        "PATH": "/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(directory),
        "SLURM_CPUS_PER_TASK": "1",
    }
    done = subprocess.run(
        ["bash"], input=text, env=environ, cwd=directory, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(["x/scan.zarr"], ["y/scan.zarr"], marks=pytest.mark.long),
        (["z", "--name", "img/0"], ["z", "--name", "lab/0"]),
    ],
)
def test_arrays_of_one_name_have_directories_of_their_own(cluster, one, other):
    """Each finalize prints the line that submits its own scripts."""
    Path("z").mkdir()
    Path("z/zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    before = set(Path().iterdir())
    for words in (one, other):
        submit(*words)
    made = {p for p in set(Path().iterdir()) - before if (p / "array.sbatch").exists()}
    assert len(made) == 2
    for words in (one, other):
        target = seams.target_of(words[0], words[2] if len(words) > 1 else None)
        (mine,) = (
            p
            for p in made
            if str(target.directory.root) in of(p)
            and (not target.place.name or target.place.name in of(p))
        )
        said = printed("finalize", *words, "--parts", 4, "--resubmit", mine.absolute(), code=85)
        line = next(
            line for line in said.splitlines() if line.startswith("shardwrite slurm resubmit")
        )
        (theirs,) = made - {mine}
        refused = printed(
            "finalize", *words, "--parts", 4, "--resubmit", theirs.absolute(), code=85
        )
        assert "slurm resubmit" not in refused
        assert "scripts that write" in refused
        printed("slurm", "cancel", *words)
        printed(*shlex.split(line)[1:])
        assert (
            (cluster / "submitted")
            .read_text()
            .splitlines()[-2]
            .startswith(f"{mine.absolute()} --parsable --array=0-3 ")
        )
        printed("slurm", "cancel", *words)


def test_a_directory_with_other_scripts_is_refused(cluster):
    submit("x/scan.zarr", "--directory", "here")
    mine = (Path("here") / "array.sbatch").read_text()
    said = submit("y/scan.zarr", "--directory", "here", code=2)
    assert "x/scan.zarr" in said
    assert (Path("here") / "array.sbatch").read_text() == mine
    assert not Path("y").exists(), "nothing was begun"
    Path("own").mkdir()
    (Path("own") / "array.sbatch").write_text("#!/bin/bash\necho mine\n")
    assert "scripts of your own" in submit("y/scan.zarr", "--directory", "own", code=2)


@pytest.mark.compat
def test_a_second_submission_is_refused_until_the_first_has_ended(cluster):
    """With the jobs' numbers, and the remedy, which is carried out."""
    submit("x.zarr", "--at-once", 2)
    submitted = (cluster / "submitted").read_text()
    for words in (["x.zarr"], ["x.zarr", "--restart"]):
        said = submit(*words, code=1)
        assert "job 41 PENDING" in said
        assert "job 42 PENDING" in said
    assert (cluster / "submitted").read_text() == submitted
    assert seams.has_run("x.zarr")
    remedy = said.splitlines()[-1].partition("first: ")[2]
    directory = next(p for p in Path().iterdir() if (p / "array.sbatch").exists())
    again = ["slurm", "resubmit", "x.zarr", "--array", "1", "--directory", directory]
    assert "job 41" in printed(*again, code=1)
    assert "cancelled 41, 42" in printed(*shlex.split(remedy)[1:])
    printed(*again)
    assert "--array=1%2 array.sbatch" in (cluster / "submitted").read_text(), (
        "the limit of tasks at a time is kept"
    )
    found = seams.status_of("x.zarr")
    assert {job["id"] for job in found.jobs} == {"43", "44"}
    assert found.n_parts == 4


@pytest.mark.parametrize("harm", ["no note", "one is refused"])
def test_jobs_of_a_submission_that_fails_are_named(cluster, harm):
    def refuse(*_):
        raise StoreError("the disk is full", key="x", errno=errno.ENOSPC)

    sbatch = cluster / "bin" / "sbatch"
    good = sbatch.read_text()
    with pytest.MonkeyPatch.context() as patch:
        if harm == "no note":
            patch.setattr("shardwrite.slurm.notes.write_note", refuse)
            ids, told, code = ["41"], "the disk is full", 75
        else:
            sbatch.write_text(good.replace("\n", f"\n[ ! -e {cluster}/last ] || exit 7\n", 1))
            ids, told, code = ["41"], "exit code 7", 1
        said = submit("x.zarr", "--json", code=code)
    assert told in said
    assert f"These jobs are in the queue: {', '.join(ids)}." in said
    sbatch.write_text(good)
    remedy = said.splitlines()[-1].partition("end them: ")[2]
    assert remedy == f"scancel {' '.join(ids)}"
    subprocess.run(shlex.split(remedy), check=True)
    assert not [*(cluster / "queue").iterdir()]
    assert f"job array {int(ids[-1]) + 1} of 4 tasks" in submit("x.zarr")


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_a_submission_that_a_signal_ends_is_known(cluster, name):
    """The first job is noted before the second is submitted, which is interrupted here."""
    sbatch, again = cluster / "bin" / "sbatch", f"[ ! -e {cluster}/last ] || "
    sbatch.write_text(
        f"#!/bin/bash\n{again}{{ kill -{name} $PPID; sleep 9; }}\n" + SBATCH.format(base=cluster)
    )
    words = ["write", "x.npy", "x.zarr", "--submit", *SIZES]
    # Whoever has started the tests may have had this signal ignored, as `nohup` does.
    default = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    program = f"{default}; from shardwrite.cli.main import main; main({words})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == (1 if name == "INT" else -signal.SIGHUP), done.stderr
    if name == "INT":
        assert "the job of finalize.sbatch may be in the queue" in done.stderr
        assert "scancel 41" in done.stderr
    assert "job 41 PENDING" in submit("x.zarr", code=1)
    assert "cancelled 41\n" in printed("slurm", "cancel", "x.zarr")


def test_what_a_site_prints_beside_is_no_answer(cluster):
    """Notices before and after an id, and between the lines of the queue; and no id at all."""
    for name, last in (("sbatch", "echo 99 jobs are yours"), ("squeue", "echo 'down | at 9'")):
        program = cluster / "bin" / name
        program.write_text(
            program.read_text().replace("\n", "\necho Welcome to 7 nodes\n", 1) + last
        )
    submit("x.zarr")
    assert "afterany:41 " in (cluster / "submitted").read_text()
    assert {job["id"] for job in seams.status_of("x.zarr").jobs} == {"41", "42"}
    assert "cancelled 41, 42\n" in printed("slurm", "cancel", "x.zarr")
    (cluster / "bin" / "sbatch").write_text("#!/bin/bash\necho closed until 9\n")
    assert "no id of a job" in (said := submit("x.zarr", code=1))
    assert "closed until 9" in said


def test_variables_of_the_user_hide_no_job_and_change_no_script(cluster, monkeypatch):
    """Those that a script says nothing of are kept."""
    for name in ("sbatch", "squeue", "scancel"):
        program = cluster / "bin" / name
        text = program.read_text().replace("\n", f"\nenv >> {cluster}/{name}-environ\n", 1)
        program.write_text(text)
    ends = ["ARRAY_INX", "TIMELIMIT", "MEM_PER_CPU", "MEM_PER_NODE", "SIGNAL", "WAIT", "JOB_NAME"]
    names = [*(f"SBATCH_{end}" for end in ends), "SBATCH_PARTITION", "SBATCH_ACCOUNT"]
    for name in [*names, "SQUEUE_STATES", "SQUEUE_USERS", "SACCT_FORMAT", "SCANCEL_STATE"]:
        monkeypatch.setenv(name, "1")
    submit("x.zarr", "--sbatch=--partition=main")
    printed("slurm", "cancel", "x.zarr")
    seen = [(cluster / f"{name}-environ").read_text() for name in ("sbatch", "squeue", "scancel")]
    left = {name: seen[0].splitlines().count(f"{name}=1") for name in names}
    assert {name: n for name, n in left.items() if n} == {"SBATCH_SIGNAL": 1, "SBATCH_ACCOUNT": 2}
    assert not any(name in text for text in seen for name in ("SQUEUE_", "SACCT_", "SCANCEL_"))


def test_workers_are_submitted_likewise(cluster, monkeypatch):
    """What the site prints is not their id, and the user's variables are not above their script."""
    text = SBATCH.format(base=cluster).replace("echo $n\n", "echo Submitted batch job $n\n")
    notice = f"#!/bin/bash\necho 87 % are yours\nenv > {cluster}/environ"
    (cluster / "bin" / "sbatch").write_text(notice + text)
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    with (
        pytest.raises(shardwrite.ClusterError) as caught,
        shardwrite.slurm.cluster(jobs=1, patience_seconds=3.0, encrypted=False),
    ):
        pass
    assert [job["id"] for job in caught.value.jobs] == ["41"]
    assert "SBATCH_" not in (cluster / "environ").read_text()
    assert not [*(cluster / "queue").iterdir()]


def test_more_parts_than_groups(cluster):
    """It is told, before anything is submitted, how many have work."""
    words = ["write", "x.npy", "x.zarr", "--submit", "--dry-run", "--shards", 64, "--chunks", 8]
    assert "only 1 of 50 parts has work" in (said := printed(*words, "--parts", 50))
    assert "the plan has 1 group; give --parts 1, or smaller source chunks" in said
    assert "has work" not in printed(*words, "--parts", 1)


@pytest.mark.parametrize(
    ("words", "gib"),
    [
        ("", 4),
        ("--memory 32G", 28.8),
        ("--memory 3G", 2.7),
        ("--memory 0 --cores 2", 2),
        ("--cores 64", 7.2),
    ],
)
def test_tasks_are_planned_with_the_memory_of_their_jobs(cluster, words, gib, monkeypatch):
    limits = []

    def plan(*_, memory_limit, **__):
        limits.append(memory_limit)
        raise shardwrite.SubmitError("seen", command="")

    monkeypatch.setattr(shardwrite, "plan", plan)
    said = printed("write", "x.npy", "x.zarr", "--submit", *words.split(), code=1)
    assert limits == [int(gib * 2**30)], said


def test_jobs_with_too_little_memory_are_refused(cluster, hierarchy):
    for words in (["write", "x.npy"], ["shard", "h"]):
        said = printed(*words, "n", "--submit", "--memory", 8, "--memory-limit", "4GB", code=2)
        assert "too little for a task; give 256M or more" in said


def test_resubmit_refuses(cluster):
    assert "no scripts are there" in printed("slurm", "resubmit", "x.zarr", "--array", "1", code=2)
    submit("x.zarr", "--directory", "here")
    wrong = ["slurm", "resubmit", "x.zarr", "--directory", "here", "--array"]
    for tasks in ("1 --uid=0", "3-1", "1,,2", "1-", ""):
        assert "no list of parts" in printed(*wrong, tasks, code=2)
    assert "there are 4 parts; give some of 0-3" in printed(*wrong, "1,3-4", code=2)
    assert "scripts that write" in printed(
        "slurm", "resubmit", "y.zarr", "--directory", "here", "--array", "1", code=2
    )


def in_job(monkeypatch, *words, **environ):
    """A command in the environment of a job."""
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        printed(*words)


@pytest.mark.compat
def test_jobs_that_nobody_has_submitted_here_are_known(cluster, monkeypatch):
    """Allocations, and arrays by scripts of the user's, once they have worked; but no interactive
    job, which is its user's."""
    printed("init", "x.npy", "x.zarr", *LAYOUT)
    part = ["write-part", "x.npy", "x.zarr", "0/4"]
    batch = {"SLURM_JOB_ID": "7", "ENVIRONMENT": "BATCH"}
    in_job(monkeypatch, *part, **batch)
    in_job(monkeypatch, *part, **{**batch, "SLURM_JOB_ID": "8", "SHARDWRITE_JOB": "6"})
    in_job(monkeypatch, *part, SLURM_JOB_ID="9")
    for job in ("6", "7", "9"):
        (cluster / "queue" / job).write_text("PENDING")
    assert "job 6 PENDING, job 7 PENDING" in submit("x.zarr", code=1)
    assert json.loads(printed("slurm", "cancel", "x.zarr", "--json"))["jobs"] == ["6", "7"]
    assert [job.name for job in (cluster / "queue").iterdir()] == ["9"]


def killed(monkeypatch, job):
    """A part that ends in the middle of a commit, as one does that is killed: without a word in its
    journal."""

    def end(*_):
        raise KeyboardInterrupt

    source = open_source("x.npy")
    with monkeypatch.context() as patch:
        patch.setattr("shardwrite.write.commit._try_shards", end)
        patch.setenv("SLURM_JOB_ID", job)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.write_part(as_dask(source, None), "x.zarr", 0, 4, source_id=source.identity)


def test_how_jobs_ended(cluster, monkeypatch):
    """As SLURM tells it, by squeue for some minutes and by sacct for longer; else what is known of
    any."""
    printed("init", "x.npy", "x.zarr", *LAYOUT)
    states = {
        "11": "OUT_OF_MEMORY",
        "12": "CANCELLED",
        "13": "NODE_FAIL",
        "14": "PENDING",
        "15": "FAILED",
    }
    for job in (*states, "16", "17"):
        killed(monkeypatch, job)
    target = seams.target_of("x.zarr")
    (cluster / "endings").write_text(
        "".join(f"{job}|{job}|{state}\n" for job, state in states.items())
    )
    (cluster / "accounts").write_text("16|16|CANCELLED by 0\n")
    found = status(target).failures
    words = {cause.split()[0]: n for cause, n in found.items() if not cause.startswith("ended")}
    assert words == {"CANCELLED:": 2, "OUT_OF_MEMORY:": 1, "NODE_FAIL:": 1}
    ended = {cause.rpartition(" ")[2]: n for cause, n in found.items() if cause.startswith("ended")}
    assert ended == {"lost": 2, "queue": 1}, found
    (cluster / "endings").unlink()
    (cluster / "accounts").unlink()
    (unknown,) = status(target).failures.items()
    assert unknown[1] == 7
    assert "cancelled" in unknown[0]
    assert "node was lost" in unknown[0]


def test_tasks_that_ended_before_they_began_to_write_are_told_too(cluster):
    printed("init", "x.npy", "x.zarr", *LAYOUT)
    record_jobs(seams.target_of("x.zarr"), "20", "21", 4)
    (cluster / "endings").write_text("31|20_1|OUT_OF_MEMORY\n32|20_2|COMPLETED\n20|20_3|RUNNING\n")
    assert list(seams.status_of("x.zarr").failures.values()) == [1]


def test_what_is_no_number_of_a_job_does_not_reach_slurm(cluster, monkeypatch):
    """Others may write beside an array in a shared directory."""
    monkeypatch.setattr(jobs, "_GONE_SECONDS", 0.2)
    printed("init", "x.npy", "x.zarr", *LAYOUT)
    run_path = seams.run_directory("x.zarr")
    (run_path / "jobs-a.json").write_text(
        json.dumps({"array": "--user=root", "finalize": "8", "n_parts": "x"})
    )
    (run_path / "jobs-b.json").write_text(json.dumps({"driver": "-u", "workers": ["9", "--me"]}))
    (run_path / "jobs-c.json").write_text("{")
    assert json.loads(printed("slurm", "cancel", "x.zarr", "--json"))["n_known"] == 2


def test_only_what_is_missing_is_written_by_a_rank_that_starts(cluster):
    """A part of the same run again, and of another number of parts: the journal says what is done."""
    printed("init", "x.npy", "x.zarr", *LAYOUT)
    printed("write-part", "x.npy", "x.zarr", "1/4")
    there = {p: p.stat().st_mtime_ns for p in Path("x.zarr").glob("c/*/*")}
    assert 0 < len(there) < 16
    for part in ("1/4", "0/1"):
        printed("write-part", "x.npy", "x.zarr", part)
    now = {p: p.stat().st_mtime_ns for p in Path("x.zarr").glob("c/*/*")}
    assert len(now) == 16
    assert {p: now[p] for p in there} == there
    assert shardwrite.finalize("x.zarr").n_shards == 16


@pytest.fixture
def hierarchy(cluster):
    for name, n in TREE.items():
        x = dask.array.arange(1, n * n + 1, dtype="u4").reshape(n, n)
        x.to_sharded_zarr("h", name=name, shards=None, chunks=8, durability="none")
    return "h"


TREE = {"a": 64, "b/c": 16}


@pytest.mark.compat
@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("shard", ["--shards", "2", "--exclude", "x*", "--no-checksum"]),
        pytest.param("unshard", ["--check"], marks=pytest.mark.long),
        pytest.param(
            "reshard",
            ["--chunks", "4", "--compressors", "none", "--shards", "1", "--min-chunks", 0],
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_conversion_is_submitted_watched_and_finished(cluster, hierarchy, command, how):
    """The scripts that were submitted are run here, as bash reads them."""
    submitted = [command, "h", "n", "--submit", *how, "--parts", 3, "--at-once", 2]
    submitted += ["--memory-limit", "50kB"]  # so that there is a group for each part
    dry = printed(*submitted, "--dry-run")
    assert "#SBATCH --array=0-2%2" in dry
    assert not Path("n").exists(), "nothing was begun"
    said = json.loads(printed(*submitted, "--json"))
    assert (said["array"], said["finalize"], said["parts"]) == ("41", "42", 3)
    where = Path(said["directory"])
    assert (where / "array.sbatch").read_text() in dry
    assert "job 41 PENDING" in printed(*submitted, code=1)
    found = json.loads(printed("slurm", "status", "n", "--json", code=85))
    assert (found["n_parts"], found["parts_left"], found["n_done_shards"]) == (3, [0, 1, 2], 0)
    assert {job["id"] for job in found["jobs"]} == {"41", "42"}
    words = words_of(where / "array.sbatch")
    for part in (0, 2):
        printed(*(word.replace("PART", str(part)) for word in words))
    found = json.loads(printed("slurm", "status", "n", "--json", code=85))
    assert (found["parts_left"], found["is_whole"]) == ([1], False)
    assert "41, 42" in printed("slurm", "cancel", "n")
    said = printed(*words_of(where / "finalize.sbatch"), code=85)
    line = next(line for line in said.splitlines() if line.startswith("shardwrite slurm resubmit"))
    printed(*shlex.split(line)[1:])
    assert " --array=1%2 " in (cluster / "submitted").read_text().splitlines()[-2]
    assert json.loads(printed("slurm", "status", "n", "--json", code=85))["parts_left"] == [1]
    printed(*(word.replace("PART", "1") for word in words))
    printed("slurm", "cancel", "n")
    printed(*words_of(where / "finalize.sbatch"))
    assert json.loads(printed("slurm", "status", "n", "--json"))["is_whole"]
    for name, n in TREE.items():
        found = shardwrite.open_sharded(f"n/{name}")[...]
        np.testing.assert_array_equal(found, np.arange(1, n * n + 1).reshape(n, n))
    assert "nothing was begun for" in printed(*shlex.split(line)[1:], code=85)


@pytest.mark.long
def test_several_arrays_are_submitted_watched_and_finished(cluster):
    """One job array over all of them, one status, one cancel, and one end."""
    arrays = {"raw": np.arange(1, 64 * 64 + 1, dtype="u4").reshape(64, 64), "img/b c": None}
    arrays["img/b c"] = arrays["raw"][:32].astype("u2")
    for n, x in enumerate(arrays.values()):
        np.save(f"x {n}.npy", x)
    submitted = ["write", "x 0.npy", "x 1.npy", "n", "--names", ",".join(arrays), "--submit"]
    submitted += [*SIZES, "--source-chunks", 16, "--at-once", 2]
    dry = printed(*submitted, "--dry-run")
    assert not Path("n").exists(), "nothing was begun"
    said = json.loads(printed(*submitted, "--json"))
    assert (said["array"], said["finalize"], said["parts"]) == ("41", "42", 4)
    where = Path(said["directory"])
    assert (where / "array.sbatch").read_text() in dry
    assert "job 41 PENDING" in printed(*submitted, code=1)
    found = json.loads(printed("slurm", "status", "n", "--json", code=85))
    assert (found["n_parts"], found["parts_left"]) == (4, [0, 1, 2, 3])
    assert (found["n_shards"], found["n_done_shards"]) == (16 + 8, 0)
    words = words_of(where / "array.sbatch")
    for part in (0, 3):
        printed(*(word.replace("PART", str(part)) for word in words))
    assert json.loads(printed("slurm", "status", "n", "--json", code=85))["parts_left"] == [1, 2]
    assert "41, 42" in printed("slurm", "cancel", "n")
    said = printed(*words_of(where / "finalize.sbatch"), code=85)
    line = next(line for line in said.splitlines() if line.startswith("shardwrite slurm resubmit"))
    printed(*shlex.split(line)[1:])
    assert " --array=1-2%2 " in (cluster / "submitted").read_text().splitlines()[-2]
    printed("slurm", "cancel", "n")
    assert json.loads(printed(*submitted, "--json"))["array"] == "45", "the same again goes on"
    printed("slurm", "cancel", "n")
    for part in range(4):
        printed(*(word.replace("PART", str(part)) for word in words))
    printed(*words_of(where / "finalize.sbatch"))
    assert json.loads(printed("slurm", "status", "n", "--json"))["is_whole"]
    for name, x in arrays.items():
        np.testing.assert_array_equal(shardwrite.open_sharded(f"n/{name}")[...], x)
    assert json.loads(printed(*words_of(where / "finalize.sbatch"), "--json"))[0]["n_shards"] == 16


def test_scripts_of_several_arrays(cluster):
    """What a program of the user's has begun is written by the same scripts."""
    plan = shardwrite.plan(np.ones((64, 64), "u4"), shards=16, chunks=8)
    sources = [open_source("x.npy")] * 2
    shardwrite.prepare(sources, "n", [plan, plan], names=["a", "b"])
    words = ["--names", "a,b", "--parts", 1, "--accept-source"]
    for kind in ("array", "finalize"):
        Path(f"{kind}.sbatch").write_text(
            printed("slurm", "script", kind, "x.npy", "x.npy", "n", *words)
        )
    said = printed(*(word.replace("PART", "0") for word in words_of(Path("array.sbatch"))))
    assert said.count("16 files") == 2
    assert printed(*words_of(Path("finalize.sbatch"))).count("16 files") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["write", "x.npy", "x.npy", "n", "--submit"], "give --names"),
        (["write", "x.npy", "n", "--names", "a,b", "--submit"], "2 names are given, and 1 sources"),
        (["write", "x.npy", "x.npy", "n", "--names", "a,b"], "--names goes with --submit"),
        (["init", "x.npy", "x.npy", "n"], "give --names"),
        (["write-part", "x.npy", "n", "0/2", "--names", "a,b"], "2 names are given"),
        (["write-part", "n", "0/2", "--names", "a,b", "--dry-run"], "a part of one array"),
        (["slurm", "script", "allocation", "x", "x", "n", "--names", "a,b"], "for array and"),
    ],
)
def test_what_of_several_arrays_is_refused(cluster, words, said):
    assert said in " ".join(printed(*words, code=2).split())
    assert not Path("n").exists()


def words_of(script):
    """Arguments of the program in a script, as bash reads them; of task PART."""
    text = script.read_text().replace("exec shardwrite", "printf '%s\\n'")
    environ = {
        "PATH": "/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(script.parent),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_ARRAY_TASK_ID": "PART",
    }
    done = subprocess.run(
        ["bash"], input=text, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_jobs_find_a_source_wherever_they_run(tmp_path, monkeypatch):
    """What is no path, as a URL, stays. Patterns and arrays of 2022 are no files."""
    monkeypatch.chdir(tmp_path)
    Path("x.h5").touch()
    assert absolute("x.h5::a/b") == f"{tmp_path}/x.h5::a/b"
    assert absolute("stack/*.tif") == f"{tmp_path}/stack/*.tif"
    assert absolute("hierarchy/x") == f"{tmp_path}/hierarchy/x"
    assert absolute("s3://bucket/x.zarr") == "s3://bucket/x.zarr"
    assert absolute("precomputed://volume::0") == f"{tmp_path}/volume::0"


OTHER_WORDS = [("write", "submit"), *((name, name) for name in ("shard", "unshard", "reshard"))]


@pytest.mark.parametrize(
    ("command", "other"), [*OTHER_WORDS, ("precomputed", "precomputed")], ids=lambda word: word
)
def test_commands_of_slurm_submit_what_others_do(cluster, hierarchy, command, other):
    """The same options, output and refusals, and the same jobs."""
    src = "h" if (command, other) in OTHER_WORDS[1:] else "x.npy"
    how = {"write": LAYOUT, "precomputed": ["--axes", "zyx", "--resolution", "4,4,40"]}
    if command == "precomputed":
        np.save("x.npy", np.ones((16, 64, 64), "u4"))
    words = [src, "new", *how.get(command, []), "--parts", 1, "--at-once", 2, "--lead", 60]
    shown = printed(command, *words, "--submit", "--dry-run")
    assert shown == printed("slurm", other, *words, "--dry-run")
    for wrong in (["--threads", 2], ["--recheck"]):
        said = [
            printed(command, *words, "--submit", *wrong, code=2).splitlines()[-1],
            printed("slurm", other, *words, *wrong, code=2).splitlines()[-1],
        ]
        assert said == [f"Error: {wrong[0]} does not go with --submit"] * 2
    for option in (["--at-once", 2], ["--cores", 2]):
        said = printed(command, src, "new", *how.get(command, []), *option, code=2)
        assert f"{option[0]} is for job" in said
        assert "give --submit" in said
    assert not Path("new").exists()
    told = json.loads(printed("slurm", other, *words, "--json"))
    assert Path(told["directory"], "array.sbatch").read_text() in shown
    assert "job 41 PENDING" in printed(command, *words, "--submit", code=1)


def test_a_conversion_by_jobs_needs_another_place(cluster, hierarchy):
    for words in (["shard", "h", "--submit"], ["slurm", "shard", "h"]):
        assert "give DST" in printed(*words, "--parts", 2, code=2)
    said = printed("shard", "h", "n", "--submit", "--cluster", "slurm", "--jobs", 2, code=2)
    assert "--cluster does not go with --submit" in said
    said = printed("shard", "h", "n", "--cluster", "slurm", "--jobs", 2, "--at-once", 2, code=2)
    assert "goes with --submit, and not with --cluster" in said


HERE = ["--parts", 2, "--directory", "here"]


@pytest.mark.compat
def test_what_of_a_conversion_is_refused(cluster, hierarchy):
    assert "shards are needed" in printed("slurm", "shard", "h", "n", "--shards", "none", code=2)
    assert "outside of the source" in printed("slurm", "shard", "h", "h/n", code=2)
    assert "there is no such" in printed("slurm", "shard", "gone", "n", code=2)
    assert "0 is not one" in printed("slurm", "reshard", "h", "n", "--chunks", "0", code=2)
    printed("slurm", "shard", "h", "n", "--parts", 2, "--directory", "here")
    printed("slurm", "cancel", "n")
    assert "scripts that write" in printed("slurm", "unshard", "h", "m", *HERE, code=2)
    assert "another plan" in printed("slurm", "unshard", "h", "n", *HERE, code=1)
    assert not Path("m").exists()


@pytest.mark.compat
@pytest.mark.parametrize("axes", [pytest.param("zyx", marks=pytest.mark.long), "xyz"])
def test_a_scale_of_a_volume(cluster, axes):
    """The tasks write its parts, and the job after them enters it into the info."""
    values = np.arange(16 * 24 * 32, dtype="u2").reshape(16, 24, 32)
    np.save("cube.npy", values)
    address = f"precomputed://{Path.cwd()}/volume"
    words = ["cube.npy", address, "--axes", axes, "--resolution", "4,4,40", "--chunks", 8]
    words += ["--shard-nbytes", "4kB", "--parts", 2, "--directory", "jobs"]
    words += ["--memory-limit", "70kB"]  # so that there is a group for each part
    shown = printed("precomputed", *words, "--submit", "--dry-run")
    assert "write-part" in shown
    assert ("--axes" in shown) == (axes == "xyz")
    assert not Path("volume").exists()
    told = json.loads(printed("slurm", "precomputed", *words, "--json"))
    assert told["parts"] == 2
    assert len((cluster / "submitted").read_text().splitlines()) == 2
    printed("slurm", "cancel", "volume/4_4_40")
    for number in range(2):
        printed(*step("array.sbatch", number))
    assert not Path("volume/info").exists()
    printed(*step("finalize.sbatch"))
    found = shardwrite.from_precomputed("volume", axes=axes)
    np.testing.assert_array_equal(found.compute(), values)
    assert shardwrite.verify("volume/4_4_40", deep=True).is_good
    printed("verify", "volume/4_4_40", "--against", "cube.npy")  # whose axes the scale knows


@pytest.mark.parametrize(
    ("axes", "options"),
    [("zyx", ""), ("zyx", "--source-chunks 10"), ("xyz", "--axes xyz")],
    ids=["copied", "in other chunks", "in another order"],
)
def test_tasks_copy_encoded_chunks(cluster, axes, options):
    """They do so where one process does, and all files are those of one process."""
    values = np.arange(20 * 30 * 40, dtype="u2").reshape(20, 30, 40)
    gzip = {"name": "gzip", "configuration": {"level": 3}}
    where = {"compressors": [gzip], "dimension_names": axes}
    shardwrite.to_sharded_zarr(values, "z.zarr", shards=16, chunks=8, **where)
    words = ["--resolution", "4,4,40", "--chunks", 8, "--shard-nbytes", "5kB"]
    words += options.split() if "source" in options else []
    printed("precomputed", "z.zarr", "one", *words)
    words += ["--memory-limit", "200kB", "--parts", 3, "--directory", "jobs"]
    shown = printed("slurm", "precomputed", "z.zarr", "volume", *words, "--dry-run")
    printed("slurm", "precomputed", "z.zarr", "volume", *words)
    printed("slurm", "cancel", "volume/4_4_40")
    text = Path("jobs", "array.sbatch").read_text()
    assert text in shown
    assert f"OPTIONS=({options})" in text
    assert 'exec shardwrite write-part "$SRC" "$DST" "$SLURM_ARRAY_TASK_ID/$PARTS"' in text
    assert seams.record_of("volume/4_4_40").copies == (not options)
    for number in range(3):
        printed(*step("array.sbatch", number))
    printed(*step("finalize.sbatch"))
    made, wanted = (
        {path.name: path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}
        for root in ("volume", "one")
    )
    assert made.pop("shardwrite-receipt.json") != wanted.pop("shardwrite-receipt.json")
    assert made == wanted


@pytest.mark.compat
@pytest.mark.long
def test_a_scale_whose_hash_scatters_the_chunks(cluster):
    """The array is submitted twice; what of it has failed is submitted again."""
    values = np.arange(16 * 24 * 32, dtype="u2").reshape(16, 24, 32)
    np.save("cube.npy", values)
    sharding = {"hash": "murmurhash3_x86_128", "preshift_bits": 0, "minishard_bits": 1}
    words = ["cube.npy", "volume", "--axes", "zyx", "--resolution", "4,4,40", "--chunks", 8]
    words += ["--shard-nbytes", "4kB", "--sharding", json.dumps({**sharding, "shard_bits": 3})]
    words += ["--parts", 2, "--directory", "jobs", "--memory-limit", "50kB"]
    words += ["--source-chunks", "8,8,32"]
    shown = printed("precomputed", *words, "--submit", "--dry-run")
    commands = [line.split()[2:] for line in shown.splitlines() if line.startswith("sbatch")]
    after = ["--dependency=afterany:<id", "of", "the", "array>"]
    last = ["array.sbatch"], [*after, "array.sbatch"], [*after, "finalize.sbatch"]
    assert commands == list(last)
    assert not Path("volume").exists()
    told = json.loads(printed("slurm", "precomputed", *words, "--json"))
    lines = (cluster / "submitted").read_text().splitlines()
    assert len(lines) == 3
    assert f"afterany:{told['array']} array.sbatch" in lines[1]
    assert f"afterany:{told['gather']} finalize.sbatch" in lines[2]
    assert "is being written already" in printed("slurm", "precomputed", *words, code=1)
    printed("slurm", "cancel", "volume/4_4_40")
    assert (
        json.loads(printed("slurm", "status", "volume/4_4_40", "--json", code=85))["n_parts"] == 2
    )
    printed(*step("array.sbatch", 1))
    found = json.loads(printed("slurm", "status", "volume/4_4_40", "--json", code=85))
    assert found["parts_left"] == [0]
    said = printed(*step("finalize.sbatch"), code=85)
    line = next(line for line in said.splitlines() if line.startswith("shardwrite slurm resubmit"))
    again = printed(*shlex.split(line)[1:], "--dry-run").splitlines()[1:]
    assert [line.split()[2:] for line in again] == [["--array=0", *last[0]], *last[1:]]
    for number in (0, 0, 1):
        printed(*step("array.sbatch", number))
    found = json.loads(printed("slurm", "status", "volume/4_4_40", "--json", code=85))
    assert found["n_done_shards"] == found["n_shards"]
    printed(*step("finalize.sbatch"))
    np.testing.assert_array_equal(shardwrite.from_precomputed("volume", axes="zyx"), values)
    assert {path.name for path in Path("volume").iterdir()} == {"info", "4_4_40"}


def step(script, number=0):
    """Words of the command that a script in `jobs` runs in the end."""
    text = Path("jobs", script).read_text().replace("exec shardwrite", "printf '%s\\n'")
    environ = {
        "PATH": "/usr/bin:/bin",
        "SLURM_SUBMIT_DIR": str(Path("jobs").absolute()),
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_ARRAY_TASK_ID": str(number),
    }
    done = subprocess.run(
        ["bash"], input=text, env=environ, cwd="jobs", capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()
