"""A new operation joins all faults by one entry of a table, and a new fault strikes all operations by
one function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from forks import python

sys.path.insert(0, str(Path(__file__).parent))
import bucket_freezes
import failing_updates
import full_disk
import interruptions
import lossy_disk
import preloaded
import self_reading
from all_faults import FAULTS
from all_operations import NOT_IN_BUCKETS, OPERATIONS, SMALL, TABLES

OPERATION = """
    def put(path):
        shardwrite.write_region(source(NEW), path, (slice(0, 20), slice(0, 20)), source_id="new")

    def litter(path):
        if isinstance(path, Url):
            http = {"allow_http": True}
            obstore.put(from_url(path.parent, client_options=http), "litter", b"litter")
        else:
            (path.parent / "litter").touch()
        put(path)

    OPERATIONS["toy"] = Operation(make, put, NEW)
    OPERATIONS["careless toy"] = Operation(make, litter, NEW)
"""
FAULT = """
    @all_faults.fault("unplugged")
    def unplug(bench, case, path):
        def fail(name):
            raise OSError(19, "No such device")

        bench.act(case, path, fail)
        yield
"""


def run(tmp_path, addition, *arguments, shim=None, harness="all_faults"):
    """Cases of a harness with an addition; see its head."""
    head = """
        import obstore
        import shardwrite
        import all_faults
        from in_buckets import Url
        from obstore.store import from_url
        from all_operations import NEW, OPERATIONS, make, source
        from driver import Operation
    """
    start = f"import {harness}\n{harness}.main()"
    program = "\n".join(textwrap.dedent(text) for text in (head, addition, start))
    script, out = tmp_path / "addition.py", tmp_path / "out.json"
    script.write_text(program)
    environment = preloaded.environment(shim)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, Path(__file__).parents[:3:2]))
    interpreter = [sys.executable] if shim else python()  # what is forked has no shim
    done = subprocess.run(
        [*interpreter, script, *arguments, "--json", out],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    cases = found["freezes"] if harness == "freeze" else found["cases"]
    return [case for case in cases if case.get("effect", True)]


@pytest.fixture
def shim(tmp_path, fault):
    """The shim, if a fault needs one; where the fault cannot be had, the test is skipped."""
    if why := FAULTS[fault].missing():
        pytest.skip(why)
    return preloaded.build(tmp_path) if fault == "failing call" else None


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_an_entry_joins_all_faults(tmp_path, fault, shim):
    """One that leaves something behind is found by each of them."""
    few = ["--operations", "toy", "careless toy", "--cases", "4"]
    cases = run(tmp_path, OPERATION, "--faults", fault, *few, shim=shim)
    assert {case["operation"] for case in cases} == {"toy", "careless toy"}
    for case in cases:
        left = ["litter"] if case["operation"] == "careless toy" else []
        assert (case["left"], case["trouble"]) == (left, ""), case


@pytest.mark.long
@pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())
@pytest.mark.parametrize(
    ("harness", "few"),
    [
        ("freeze", ["--freezes", "4"]),
        ("explorer", ["--depth", "2", "--ways", "slow", "--cases", "4"]),
        ("failing_updates", ["--calls", "rename", "--errors", "EIO", "--every", "9"]),
    ],
)
def test_an_entry_joins_the_harnesses_beside_the_faults(tmp_path, harness, few):
    words = ["--operations", "toy", "careless toy", *few]
    shim = preloaded.build(tmp_path)
    cases = run(tmp_path, OPERATION, *words, shim=shim, harness=harness)
    assert {case["operation"] for case in cases} == {"toy", "careless toy"}
    for case in cases:
        is_told = any(name.endswith("litter") for name in case["left"])
        assert is_told == (case["operation"] == "careless toy"), case
        assert len(case["left"]) == is_told
        assert not case["trouble"], case


@pytest.mark.long
def test_a_function_strikes_any_operation(tmp_path):
    names = ("update", "stream", "shard in place", "chunks by id")
    arguments = ["--faults", "unplugged", "--operations", *names, "--cases", "4"]
    cases = run(tmp_path, FAULT, *arguments)
    assert {case["operation"] for case in cases} == set(names)
    assert not [case for case in cases if case["trouble"] or case["left"]]
    assert {case["effect"] for case in cases}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_strikes_some_of_all_operations(tmp_path, fault, shim):
    """A sample: the campaign takes more of them."""
    names = [name for name in SMALL if name not in FAULTS[fault].excluded]
    step = 40 if fault == "interleaved" else 20  # each of its cases starts another process
    names = names[sorted(FAULTS).index(fault) :: step]
    cases = run(tmp_path, "", "--faults", fault, "--operations", *names, "--amid", shim=shim)
    assert len({case["operation"] for case in cases}) >= len(names) // 2 or shim
    troubles = [case for case in cases if case["trouble"] or case["left"]]
    assert not troubles, troubles[:3]


def test_a_reason_is_told_for_each_operation_that_a_fault_does_not_strike():
    for fault in FAULTS.values():
        assert set(fault.excluded) <= set(OPERATIONS)
        assert all(fault.excluded.values())
        assert not fault.excluded or fault.excluded is NOT_IN_BUCKETS


def test_no_family_has_lost_an_operation():
    """New ones may raise these numbers."""
    found = {name: len(table) for name, table in TABLES.items()}
    least = {"arrays": 57, "listed": 15, "ids": 4, "formats": 10, "volumes": 14, "datasets": 7}
    least |= {"hierarchies": 3, "told": 8, "large": 5}
    least |= {"conversions": 24, "conversions of HDF5": 12, "conversions in place": 24}
    assert {name: n for name, n in found.items() if n < least[name]} == {}
    assert set(found) == set(least)
    assert len(NOT_IN_BUCKETS) <= 55
    beside = {
        "interruptions": (len(interruptions.KINDS), 30),
        "failing write-back": (len([*lossy_disk.KINDS, *lossy_disk.CONSUMED]), 25),
        "full disk": (len(full_disk.KINDS), 25),
        "failing calls": (len({*failing_updates.OTHERS, *failing_updates.UPDATES}), 109),
        "freezes of puts": (len(bucket_freezes.OPERATIONS), 3),
        "calls that read what they change": (len(self_reading.CALLS), 12),
    }
    assert {name: pair for name, pair in beside.items() if pair[0] < pair[1]} == {}


def test_each_operation_is_in_one_table():
    assert sum(map(len, TABLES.values())) == len(OPERATIONS)
