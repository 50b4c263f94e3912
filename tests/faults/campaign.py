"""The campaign whose table stands in docs/reliability-measured.md: hours of faults, in any number of
sittings, as root.

``python tests/faults/campaign.py run --minutes 60`` runs the harnesses beside this file in batches,
each as its own command. It adds the result of each batch, with the commit that it was measured on,
to ``campaign.jsonl``, and ends when every row has what it wants. ``python tests/faults/campaign.py
table --write docs/reliability-measured.md`` makes the table of what is stored. ``run --anew`` first removes
results that are too old for a release, of a row when it comes to it. ``python
tests/faults/campaign.py check``, before a release, refuses rows that are missing, bad, or older than
so many changes of the package.

A batch in which anything was lost or went wrong is stored as well, and shows in the table.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import commits
import id_shards
import preloaded
from all_operations import TABLES
from explorer import PAIRS
from failing_updates import OTHERS, STREAMS, UPDATES
from two_writers import OWN_OPERATIONS

HERE = Path(__file__).parent
RESULTS = HERE / "campaign.jsonl"
FIRST_SEED = 100
"""Seeds below it belong to the tests."""
CRASH = HERE.parent / "crash"
SUMS = ("operations", "faults", "troubles")
TROUBLES = ("lost", "wrong", "torn", "read", "left over")
"""Findings of the crash test that are told even if there are none."""
BEGIN, END = "<!-- campaign -->", "<!-- end of campaign -->"
HEAD = (
    "fault",
    "runs",
    "acknowledged",
    "lost",
    "torn",
    "left over",
    "other troubles",
    "vacuous runs",
    "upper bound on the share of runs with a loss (95 %)",
    "commit",
    "changes since",
)
NOT_MEASURED = "not measured"
MOST_CHANGES = 100
"""Changes of the package after which a row is too old for a release."""


@dataclass(kw_only=True)
class Numbers:
    """What a batch found.

    Attributes
    ----------
    runs, vacuous : int
        Faults, and those under which nothing was interrupted.
    acked : int or None
        Units acknowledged before the faults.
    lost, torn : int
        Units that were acknowledged and are not there, and that are in a state that they never had.
    left : int or None
        Names that were left over in the end, by a list of what was there before and after; None if
        the harness did not count them.
    troubles : list of str
        What else went wrong.
    redone : list of [int, int]
        For each kill of a job: shards written again, and those that its last second and its tasks
        in flight had written.
    """

    runs: int
    vacuous: int = 0
    acked: int | None = None
    lost: int = 0
    torn: int = 0
    left: int | None = None
    troubles: list[str] = field(default_factory=list)
    redone: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes
    ----------
    name : str
        Of the fault.
    wanted, batch : int
        How many runs there shall be, and how many one command makes.
    command : str
        The harness and its arguments; ``{n}`` stands for the number of runs, ``{seed}`` for the
        seed.
    read : callable
        Gives the numbers of what the harness wrote.
    needs_shim : bool
        Whether the harness is started with the shim that makes calls fail.
    is_one_job : bool
        Whether all runs of a batch strike one job, so that only batches are independent.
    counts_left : bool
        Whether the harness counts what is left over. A file that is damaged and then refused stays.
    names : tuple of str
        Operations, each of which is a batch of its own with every case; ``{name}`` stands for one.
    """

    name: str
    wanted: int
    batch: int
    command: str
    read: Callable[[Any], Numbers]
    needs_shim: bool = False
    is_one_job: bool = False
    counts_left: bool = True
    names: tuple[str, ...] = ()

    @property
    def has_every_case(self) -> bool:
        """Whether nothing is sampled."""
        return self.wanted == 1 or bool(self.names)

    def is_whole(self, results: list[dict[str, Any]]) -> bool:
        """Whether so much is stored as is wanted."""
        if self.names:
            return {result.get("name") for result in results} >= set(self.names)
        return sum(result["numbers"]["runs"] for result in results) >= self.wanted

    def run(self, n_runs: int, seed: int, name: str = "") -> Numbers:
        """One batch."""
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "out.json"
            command_line = self.command.format(n=n_runs, seed=seed, name=shlex.quote(name))
            script, *arguments = shlex.split(command_line)
            environment = preloaded.environment(
                preloaded.build(Path(scratch)) if self.needs_shim else None
            )
            command = [sys.executable, HERE / script, *arguments, "--json", out]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            assert out.exists(), (
                f"{script} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
            )
            return self.read(json.loads(out.read_text()))


def of_states(found) -> Numbers:
    """Of `power_cut.py`."""
    total = found["summary"]
    names = ("states", "vacuous", "acked", "lost", "torn", "left")
    runs, vacuous, acked, lost, torn, left = (total[name] for name in names)
    open_files = ["a descriptor stayed open"] * total["leaked"]
    return Numbers(
        runs=runs,
        vacuous=vacuous,
        acked=acked,
        lost=lost,
        torn=torn,
        left=left,
        troubles=list(total["troubles"]) + open_files,
    )


def of_cases(found) -> Numbers:
    """Of `interruptions.py`, `lossy_disk.py` and `full_disk.py`."""
    total = found["summary"]
    names = ("cases", "vacuous", "acked", "lost", "torn", "left")
    runs, vacuous, acked, lost, torn, left = (total[name] for name in names)
    unseen = ["verify did not say what the readers found"] * total["false"]
    troubles = list(total["troubles"]) + unseen
    return Numbers(
        runs=runs, vacuous=vacuous, acked=acked, lost=lost, torn=torn, left=left, troubles=troubles
    )


def of_kills(found) -> Numbers:
    """Of `kills.py`."""
    total, kills = found["summary"], found["kills"]
    redone = [[kill["redone"], kill["in_flight"]] for kill in kills if not kill["finished"]]
    found = {name: total[name] for name in ("vacuous", "acked", "lost", "left", "troubles")}
    return Numbers(runs=total["kills"], redone=redone, **found)


def of_freezes_of_puts(found) -> Numbers:
    """Of `self_reading.py` and `bucket_freezes.py`."""
    total = found["summary"]
    names = ("vacuous", "acked", "lost", "torn", "left", "troubles")
    return Numbers(runs=total["cases"], **{name: total[name] for name in names})


def of_id_shards(found) -> Numbers:
    """Of `all_faults.py --table ids`: acknowledged is what was there before."""
    struck = [case for case in found["cases"] if case["effect"]]
    had_chunks = [case for case in struck if not case["operation"].startswith("first")]
    lost = re.findall(r"lost: (\d+) chunks", "".join(case["trouble"] for case in struck))
    numbers = {name: found["summary"][name] for name in ("vacuous", "left", "troubles")}
    acked = len(had_chunks) * id_shards.N_BEFORE
    return Numbers(runs=len(found["cases"]), acked=acked, lost=sum(map(int, lost)), **numbers)


def of_struck(found) -> Numbers:
    """Of `all_faults.py` with operations that tell what is acknowledged."""
    names = ("vacuous", "acked", "lost", "torn", "left")
    total = {name: found["summary"][name] for name in names}
    left = [
        f"{case['operation']}: left {case['left'][:3]}" for case in found["cases"] if case["left"]
    ]
    runs = sum(bool(case["effect"]) for case in found["cases"])
    total["vacuous"] -= len(found["cases"]) - runs  # those that ended before
    return Numbers(runs=runs, **total, troubles=[*found["summary"]["troubles"], *left])


def of_ends(found) -> Numbers:
    """Of `all_faults.py`, where operations that had ended before the fault do not count."""
    struck = [case for case in found["cases"] if case["effect"]]
    troubles = [
        f"{case['operation']}, {case['fault']} at {case['at']}: {case['trouble'][-300:]}"
        for case in struck
        if case["trouble"]
    ]
    left = sum(len(case["left"]) for case in struck)
    return Numbers(runs=len(struck), left=left, troubles=troubles)


def of_freezes(found) -> Numbers:
    """Of `freeze.py`: acknowledged is what each of the two processes has returned from."""
    total = found["summary"]
    lost, torn = total["lost"], total["unreadable"]
    others = [
        f"{case['operation']}, {case['takeover']}, {case['k']}: {case['trouble'][:300]}"
        for case in total["troubles"]
    ]
    others = [] if len(others) == lost + torn else others
    acked = (
        total["outcomes"].get("done", 0)
        + total["freezes"]
        + total["vacuous"]
        - len(total["troubles"])
    )
    runs = total["freezes"] + total["vacuous"]
    return Numbers(
        runs=runs,
        vacuous=total["vacuous"],
        acked=acked,
        lost=lost,
        torn=torn,
        left=total["left"],
        troubles=others,
    )


def of_schedules(found) -> Numbers:
    """Of `explorer.py`: acknowledged is what each of the two processes has returned from."""
    total, cases = found["summary"], found["cases"]
    lost, torn = total["lost"], total["unreadable"]
    others = [json.dumps(case)[:400] for case in total["troubles"]]
    acked = sum(case["outcomes"].count("done") for case in cases)
    troubles = [] if len(others) == lost + torn else others
    return Numbers(
        runs=total["cases"],
        acked=acked,
        lost=lost,
        torn=torn,
        left=total["left"],
        troubles=troubles,
    )


def of_calls(found) -> Numbers:
    """Of `failing_calls.py` and `failing_updates.py`."""
    total = found["summary"]
    lost = total.get("lost", 0)
    return Numbers(
        runs=total["cases"],
        vacuous=total["vacuous"],
        acked=total.get("acked"),
        lost=lost,
        left=total["left"],
        troubles=list(total["troubles"]),
    )


def of_left_out(found) -> Numbers:
    """Of `left_out.py`, whose tests judge by themselves."""
    return Numbers(
        runs=found["cases"], vacuous=found["vacuous"], left=0, troubles=found["troubles"]
    )


def of_appends(found) -> Numbers:
    """Of operations on datasets, which tell of nothing before they end."""
    return replace(of_struck(found), acked=None)


def of_kills_again(found) -> Numbers:
    """Of operations that are killed again and again."""
    return replace(of_struck(found), runs=found["summary"]["kills"])


def of_many_kills(found) -> Numbers:
    """The same of those that tell of nothing before they end."""
    return replace(of_kills_again(found), acked=None)


def of_mutants(found) -> Numbers:
    """Of `fuzz.py`."""
    return Numbers(
        runs=found["mutants"], troubles=[json.dumps(case)[:400] for case in found["troubles"]]
    )


def _struck(fault: str, operations: Iterable[str]) -> str:
    """Command that has a fault strike operations of the table."""
    return f"all_faults.py --faults {shlex.quote(fault)} --operations {shlex.join(operations)}"


def _of_every_effect(what: str, operations: Iterable[str]) -> Iterator[Row]:
    """Rows of all kills and effects that fail, and of power cuts, under some operations."""
    for fault, struck in {
        "kill": "SIGKILL before every effect",
        "failing effect": "every effect fails once",
    }.items():
        yield Row(f"{struck} while {what}", 1, 1, _struck(fault, operations), of_struck)
    command = _struck("power cut", operations) + " --cases {n} --seed {seed}"
    yield Row(f"power cut while {what}, ext4", 100, 50, command, of_struck)


def rows() -> Iterator[Row]:
    """Every line of the table, in its order."""
    for disk in ("ext4", "xfs"):
        for level, wanted in {"full": 250, "batch": 125, "none": 40}.items():
            name = f"power cut while an array is made, {disk}, level {level}"
            command = f"power_cut.py --filesystem {disk} --durability {level} --states {{n}} --seed {{seed}}"
            yield Row(name, wanted, 125, command, of_states)
    for disk in ("ext4", "xfs"):
        command = f"interruptions.py --fault cut --filesystem {disk} --cases {{n}} --seed {{seed}}"
        yield Row(
            f"power cut before an effect of any operation, {disk}", 800, 100, command, of_cases
        )
    for disk, wanted in {"ext4": 500, "xfs": 300}.items():
        name = f"write-back fails once, twice or until the disk is well, any operation, {disk}"
        yield Row(
            name,
            wanted,
            100,
            f"lossy_disk.py --filesystem {disk} --cases {{n}} --seed {{seed}}",
            of_cases,
        )
    name, command = (
        "SIGKILL before an effect of any operation",
        "interruptions.py --fault kill --cases {n} --seed {seed}",
    )
    yield Row(name, 1000, 100, command, of_cases)
    name = "SIGKILL at a random moment while an array is made"
    yield Row(name, 200, 200, "kills.py --kills {n} --seed {seed}", of_kills)
    for fault, what in {
        "kill in a bucket": "moto",
        "kill in a bucket of SeaweedFS": "SeaweedFS",
    }.items():
        name = f"SIGKILL at a random moment of a change in a bucket of {what}"
        command = f'all_faults.py --faults "{fault}" --table told --kills {{n}} --seed {{seed}}'
        yield Row(name, 100, 50, command, of_kills_again)
    for where, what in {
        "threads": "before an effect of an update that reads what it changes",
        "workers": "at a random moment of such an update on two workers",
        "moto": "at a random moment of such an update in a bucket of moto",
    }.items():
        command = f"self_reading.py --where {where} --cases {{n}} --seed {{seed}}"
        wanted = 200 if where == "threads" else 100
        yield Row(f"SIGKILL {what}", wanted, 50, command, of_freezes_of_puts)
    name = "frozen before the put of a shard into a bucket of moto, taken over, thawed"
    command = "bucket_freezes.py --of-shards --server moto --freezes {n} --seed {seed}"
    yield Row(name, 60, 30, command, of_freezes_of_puts)
    for place, (table, read) in {
        "into another place": ("conversions", of_kills_again),
        "in its place": ("conversions in place", of_many_kills),
    }.items():
        command = f'all_faults.py --faults "kill at any moment" --table "{table}"'
        name = f"SIGKILL at a random moment while an array is converted {place}"
        yield Row(name, 200, 50, command + " --kills {n} --seed {seed}", read)
    name = "SIGKILL before an effect while an array is converted and consumed"
    command = "interruptions.py --fault kill --operations consume --cases {n} --seed {seed}"
    yield Row(name, 200, 50, command, of_cases)
    for fault, disks in {"kill": ("ext4",), "cut": ("ext4", "xfs")}.items():
        for disk in disks:
            what = f"power cut before an effect, {disk}," if fault == "cut" else ""
            name = f"{what or 'SIGKILL before an effect'} while one run makes three arrays"
            command = (
                f"interruptions.py --fault {fault} --filesystem {disk} --operations several "
                "--cases {n} --seed {seed}"
            )
            yield Row(name, 200 if fault == "kill" else 60, 50, command, of_cases)
    for name, what in {
        "tree of 500 arrays": "a tree of 500 arrays is converted",
        "40 arrays by one call": "one call makes 40 arrays",
        "12 scales by one call": "one call makes 12 scales of a volume",
    }.items():
        command = _struck("kill at any moment", [name]) + " --kills {n} --seed {seed}"
        yield Row(f"SIGKILL at a random moment while {what}", 50, 50, command, of_many_kills)
    for place, (operation, frozen) in {
        "into another place": ("conversion", "shard"),
        "in its place": ("in-place", "conversion"),
        "and consumed": ("consume", "consume"),
    }.items():
        command = (
            f"interruptions.py --fault cut --operations {operation} --cases {{n}} --seed {{seed}}"
        )
        name = f"power cut while an array is converted {place}, ext4"
        yield Row(name, 100, 25, command, of_cases)
        command = f"lossy_disk.py --operations {operation} --cases {{n}} --seed {{seed}}"
        name = f"write-back fails while an array is converted {place}, ext4"
        yield Row(name, 100, 25, command, of_cases)
        name = f"frozen before an effect while an array is converted {place}, taken over, thawed"
        command = f"freeze.py --operations {frozen} --freezes {{n}} --seed {{seed}}"
        yield Row(name, 60, 30, command, of_freezes)
    for disk in ("tmpfs", "ext4", "xfs"):
        name = f"the disk becomes full under any operation, {disk}, and some processes are killed"
        command = f"full_disk.py --filesystem {disk} --cases {{n}} --seed {{seed}}"
        yield Row(name, 150, 50, command, of_cases)
    for what, name in {
        "a scale is added to a volume of Neuroglancer": "scale",
        "one call writes two scales of a volume of Neuroglancer": "two scales",
        "encoded chunks of a Zarr array are copied into a volume of Neuroglancer": "copied scale",
    }.items():
        yield from _of_every_effect(what, (f"first {name}", name))
    for fault, struck in {
        "kill": "SIGKILL before an effect",
        "failing effect": "an effect fails once",
        "power cut": "power cut",
    }.items():
        where = ", ext4" if fault == "power cut" else ""
        for what, name in {
            "a scale is written by way of a spool (hash murmurhash3_x86_128)": "scattered scale",
            "a scale is written in parts by way of a spool": "scale in parts",
            "parts copy encoded chunks into a volume of Neuroglancer": "copied scale in parts",
        }.items():
            wanted = 200 if (fault, name) == ("kill", "scattered scale") else 100
            command = _struck(fault, (f"first {name}", name)) + " --cases {n} --seed {seed}"
            yield Row(f"{struck} while {what}{where}", wanted, 50, command, of_struck)
    for what, kind in {
        "whose shards are HDF5 files": "hdf5",
        "of the transformer of 2022": "transformer",
        "of shards within shards": "nested",
        "with a checksum around each shard": "around",
    }.items():
        names = (f"make {kind}", f"change {kind}")
        yield from _of_every_effect(f"an array {what} is made or changed", names)
    by_id = "chunks by id are changed"
    for fault, what in (
        ("kill", f"SIGKILL before an effect while {by_id}"),
        ("failing effect", f"an effect fails once while {by_id}"),
        ("power cut", f"power cut while {by_id}, ext4"),
    ):
        command = f'all_faults.py --faults "{fault}" --table ids --cases {{n}} --seed {{seed}}'
        yield Row(what, 100, 50, command, of_id_shards)
    name = "SIGKILL before every effect while a hierarchy is consumed, and the same call again"
    yield Row(name, 1, 1, 'all_faults.py --operations "consume a hierarchy"', of_ends)
    name = "frozen before an effect while a hierarchy is consumed, taken over, thawed"
    command = 'freeze.py --operations "consume tree" --freezes {n} --seed {seed}'
    yield Row(name, 60, 30, command, of_freezes)
    name = "SIGKILL before every third effect of every operation, and the same call again"
    command = "all_faults.py --every 3 --last 10 --operations {name}"
    yield Row(name, 1, 1, command, of_ends, names=tuple(TABLES["arrays"]))
    name = "SIGKILL before every seventh effect on an array that keeps a manifest"
    yield Row(name, 1, 1, "all_faults.py --table listed --every 7 --last 4", of_ends)
    name = "power cut before an effect on an array that keeps a manifest, ext4"
    command = 'all_faults.py --faults "power cut" --table listed --cases {n} --seed {seed}'
    yield Row(name, 200, 50, command, of_ends)
    for what, (name, options) in {
        "a dataset is appended to": ("append to a dataset", ""),
        "a dataset is appended to, each shard in its place": ("append to a dataset in place", ""),
        "an append to a dataset is made again after another kill": (
            "append to a dataset",
            " --twice 61",
        ),
    }.items():
        command = _struck("kill", [name]) + " --every 5" + options
        yield Row(f"SIGKILL before every fifth effect while {what}", 1, 1, command, of_appends)
    name = "SIGKILL before every effect while 20 steps are appended to 8 variables of a dataset"
    command = _struck("kill", ["append to many variables"]) + " --every 10 --seed {seed}"
    yield Row(name, 1600, 160, command, of_appends)  # ten batches, of all 818 effects in two ways
    for what, name in {
        "written": "500 variables",
        "appended to": "append to 500 variables",
    }.items():
        command = _struck("kill at any moment", [name]) + " --kills {n} --seed {seed}"
        name = f"SIGKILL at random while 500 variables of 20 shards are {what}"
        yield Row(name, 50, 25, command, of_many_kills)
    name = "every case that the long tier of the tests leaves out"
    yield Row(name, 1, 1, "left_out.py", of_left_out)
    for way, groups in {"--one-array": "small", "--groups": "four"}.items():
        name = f"a job of 10,000 shards in {groups} groups, killed 20 times"
        command = f"kills.py {way} --kills {{n}} --seed {{seed}}"
        yield Row(name, 20, 20, command, of_kills, is_one_job=True)
    name = "frozen before an effect of any operation, taken over, thawed"
    yield Row(name, 500, 520, "freeze.py --freezes {n} --seed {seed}", of_freezes)
    name = "frozen before every effect of every operation, taken over, thawed"
    command = "freeze.py --operations {name}"
    yield Row(name, 1, 1, command, of_freezes, names=tuple(OWN_OPERATIONS))
    name = "two processes interleaved, every schedule with two switches between them"
    command = "explorer.py --depth 2 --operations {name}"
    first = tuple(dict.fromkeys(pair[0] for pair in PAIRS))
    yield Row(name, 1, 1, command, of_schedules, names=first)
    name = "two processes interleaved, both taken for dead, and a late effect of one"
    late = "explorer.py --depth 3 --ways late --before claim-|/c/ --cases {n} --seed {seed}"
    yield Row(name, 600, 300, late, of_schedules)
    name = "two processes interleaved, three switches between them"
    yield Row(name, 600, 300, "explorer.py --depth 3 --cases {n} --seed {seed}", of_schedules)
    name = "the k-th call of one kind fails while an array is made, every k"
    yield Row(name, 1, 1, "failing_calls.py", of_calls, needs_shim=True)
    name = "the k-th call of one kind fails under an update or a stream, every k"
    command, names = "failing_updates.py --operations {name}", (*UPDATES, *STREAMS)
    yield Row(name, 1, 1, command, of_calls, needs_shim=True, names=names)
    for error, what in {"ENOSPC": "no space", "EIO": "an error of the disk"}.items():
        name = f"the k-th call of one kind fails under a conversion, every eighth k: {what}"
        names = 'shard unshard "shard in place" "unshard in place"'
        command = f"failing_updates.py --operations {names} --errors {error} --every 8"
        yield Row(name, 1, 1, command, of_calls, needs_shim=True)
    name = "the k-th call of one kind fails under any other operation, every third k"
    command = "failing_updates.py --operations {name} --errors EIO --every 3"
    yield Row(name, 1, 1, command, of_calls, needs_shim=True, names=OTHERS)
    for error, what in {"ENOSPC": "no space", "EIO": "an error of the disk"}.items():
        name = f"the k-th call of one kind fails while an array is consumed, every eighth k: {what}"
        names = '"shard and consume" "reshard and consume"'
        command = f"failing_updates.py --operations {names} --errors {error} --every 8"
        yield Row(name, 1, 1, command, of_calls, needs_shim=True)
    yield Row(
        "a file that is read is mutated",
        100_000,
        15_000,
        "fuzz.py --mutants {n} --seed {seed}",
        of_mutants,
        counts_left=False,
    )


def stored() -> dict[str, list[dict[str, Any]]]:
    """Results by row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else []:
        result = json.loads(line)
        found.setdefault(result["row"], []).append(result)
    return found


def store(row: Row, seed: int, numbers: Numbers, commit: str, name: str = "") -> None:
    """Add a result; several campaigns may run side by side."""
    when = datetime.now(UTC).date().isoformat()
    numbers = replace(
        numbers,
        troubles=[re.sub(r"/\S*/(?=x\.zarr)", "", trouble)[:300] for trouble in numbers.troubles],
    )
    result = {"row": row.name, "seed": seed, "commit": commit, "date": when}
    result |= {"name": name} if name else {}
    line = json.dumps({**result, "numbers": asdict(numbers)})
    with RESULTS.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line + "\n")


def remove_old(row: Row) -> None:
    """Remove the results of a row that `refused` would not take."""
    with RESULTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.readlines()
        kept = [line for line in lines if not is_old(row, json.loads(line))]
        file.seek(0)
        file.truncate()
        file.writelines(kept)


def is_old(row: Row, result: dict[str, Any]) -> bool:
    """Whether a result is of this row, and does not count any more."""
    age = n_changes(result["commit"])
    is_too_old = age is None or age > MOST_CHANGES
    is_partial = row.counts_left and result["numbers"]["left"] is None
    return result["row"] == row.name and (is_too_old or is_partial)


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=HERE, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_of_code() -> str:
    """The commit that is measured, which must be what lies here."""
    changed = [
        line
        for line in git("status", "--porcelain", "--", "../../shardwrite", ".").splitlines()
        if RESULTS.name not in line
    ]
    if changed:
        sys.exit("a result names a commit, so commit first: " + ", ".join(changed))
    return git("rev-parse", "--short=7", "HEAD")


def run(minutes: float, pattern: str, *, is_anew: bool) -> None:
    """Run what is missing, batch after batch."""
    commit, until = commit_of_code(), time.monotonic() + 60 * minutes
    for row in rows():
        if is_anew and pattern in row.name and time.monotonic() < until:
            remove_old(row)
        while pattern in row.name and time.monotonic() < until:
            results = stored().get(row.name, [])
            if row.is_whole(results):
                break
            n_done = sum(result["numbers"]["runs"] for result in results)
            seed = max([result["seed"] for result in results], default=FIRST_SEED - 1) + 1
            n_runs = 1 if row.has_every_case else min(row.batch, row.wanted - n_done)
            done = {result.get("name") for result in results}
            name = next((name for name in row.names if name not in done), "")
            numbers = row.run(n_runs, seed, name)
            store(row, seed, numbers, commit, name)
            print(f"{row.name}: {json.dumps(asdict(numbers))}", flush=True)


def n_changes(commit: str) -> int | None:
    """How many changes of the package came after a commit; None if the commit is not here."""
    return commits.n_changes(commit, "shardwrite")


def bound(row: Row, results: list[dict[str, Any]], of: list[Numbers]) -> str:
    """Upper bound on the share of runs that lose something, by the rule of three.

    Units of one run fail together, so runs are counted, and not units. Where every case was tried,
    nothing was sampled.
    """
    if any(n.lost for n in of):
        return "does not hold"
    if row.has_every_case:
        return "every case"
    n_runs = len(results) if row.is_one_job else sum(n.runs - n.vacuous for n in of)
    return f"{3 / n_runs:.1e}" if n_runs > 3 else "none: too few runs"


def cells(row: Row, results: list[dict[str, Any]]) -> tuple[str, ...]:
    """A line of the table."""
    of = [Numbers(**result["numbers"]) for result in results]
    runs, vacuous, lost, torn = (
        sum(getattr(n, name) for n in of) for name in ("runs", "vacuous", "lost", "torn")
    )
    acked = None if any(n.acked is None for n in of) else sum(n.acked or 0 for n in of)
    left = NOT_MEASURED if row.counts_left else ""
    if all(n.left is not None for n in of):
        left = f"{sum(n.left or 0 for n in of):,}"
    commits = list(dict.fromkeys(result["commit"] for result in results))
    changes = [n_changes(commit) for commit in commits]
    return (
        row.name,
        f"{runs:,}",
        "" if acked is None else f"{acked:,}",
        f"{lost:,}",
        f"{torn:,}",
        left,
        f"{sum(len(n.troubles) for n in of):,}",
        f"{vacuous:,}",
        bound(row, results, of),
        ", ".join(commits),
        ", ".join("unknown" if n is None else f"{n:,}" for n in changes),
    )


def refused(most_changes: int) -> list[str]:
    """Rows with which nothing is released, and why."""
    known, found = stored(), []
    for row in rows():
        results = known.get(row.name, [])
        of = [Numbers(**result["numbers"]) for result in results]
        ages = [n_changes(result["commit"]) for result in results]
        known_ages = [age for age in ages if age is not None]
        is_control = row.name.endswith("level none")  # which promises nothing, and must lose
        for is_so, why in (
            (not row.is_whole(results), "too few runs are stored"),
            (
                not is_control and any(n.lost or n.torn or n.troubles for n in of),
                "something was lost or went wrong",
            ),
            (is_control and not any(n.lost for n in of), "nothing was lost, as it must be"),
            (any(n.left for n in of), "something was left over"),
            (
                row.counts_left and any(n.left is None for n in of),
                "what is left over was not measured",
            ),
            (len(known_ages) < len(ages), "its commit is not in this clone: fetch all commits"),
            (
                any(age > most_changes for age in known_ages),
                f"it is {max(known_ages, default=0):,} changes old",
            ),
        ):
            if is_so:
                found.append(f"{row.name}: {why}")
    return found


def table() -> str:
    """The table of what is stored, and what the kills of jobs cost."""
    known = stored()
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    costs = []
    for row in rows():
        results = known.get(row.name, [])
        if results:
            lines.append("| " + " | ".join(cells(row, results)) + " |")
        if redone := [
            pair
            for result in results
            for pair in result["numbers"]["redone"]
            if "killed 20" in row.name
        ]:
            again, most = (sorted(numbers) for numbers in zip(*redone, strict=True))
            head = row.name[0].upper() + row.name[1:]
            times = f"{again[0]} to {again[-1]} shards, and half of the times at most {median_low(again)}"
            allowed = f"It may be {most[0]}" + (f" to {most[-1]}" if most[0] < most[-1] else "")
            costs += ["", f"{head}: a kill had {times} written again. {allowed}."]
    return "\n".join(lines + costs + crash_test())


def crash_test() -> list[str]:
    """What the crash test came to, and how soon it found each defect that was put in."""
    runs, bugs = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (CRASH / "runs.jsonl", CRASH / "bugs.jsonl")
    )
    paragraphs = []
    if runs:
        sums = {name: sum(map(Counter, (run[name] for run in runs)), Counter()) for name in SUMS}
        faults = ", ".join(f"{n:,} {name}" for name, n in sums["faults"].most_common())
        words = {**dict.fromkeys(TROUBLES, 0), **sums["troubles"]}
        troubles = ", ".join(f"{n:,} {word}" for word, n in words.items())
        commits = ", ".join(sorted({commit for run in runs for commit in run["commits"]}))
        hours, restarts, acked = (
            sum(run[name] for run in runs) for name in ("hours", "restarts", "acked")
        )
        paragraphs.append(
            f"The crash test below, {len(runs)} runs of {hours:.1f} hours in all, on {commits}: "
            f"{restarts:,} restarts, {sum(sums['operations'].values()):,} operations, "
            f"{acked:,} acknowledged. Faults: {faults}. Findings: {troubles}."
        )
    if bugs:
        latest = {bug["bug"]: bug for bug in bugs}
        found = {n: b["seconds"] for n, b in latest.items() if b["said"] and not b["control"]}
        missed = ", ".join(name for name in latest if name not in found) or "none"
        paragraphs.append(
            f"It found {len(found)} of {len(latest)} defects that were put into copies, after so many "
            f"seconds: {', '.join(f'{n} {found[n]:.0f}' for n in sorted(found, key=found.get))}. "
            f"Not found: {missed}."
        )
    return [line for paragraph in paragraphs for line in ("", paragraph)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    running = steps.add_parser("run", help="run what is missing")
    running.add_argument(
        "--minutes", type=float, default=1e6, help="begin no batch after so many minutes"
    )
    running.add_argument("--rows", default="", help="only rows whose name contains this")
    running.add_argument("--anew", action="store_true", help="remove results that are too old")
    tabling = steps.add_parser("table", help="show the table")
    tabling.add_argument("--write", type=Path, help="replace the table in this document")
    checking = steps.add_parser("check", help="refuse what is too old, missing or bad")
    checking.add_argument(
        "--most-changes", type=int, default=MOST_CHANGES, help="of the package since a row"
    )
    given = parser.parse_args()
    if given.step == "check":
        found = refused(given.most_changes)
        print("\n".join(found) or "every row is new and good")
        sys.exit(1 if found else 0)
    elif given.step == "run":
        run(given.minutes, given.rows, is_anew=given.anew)
    elif given.write:
        before, _, rest = given.write.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        given.write.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")
    else:
        print(table())


if __name__ == "__main__":
    main()
