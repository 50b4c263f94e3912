"""Kills, failing calls and power cuts while a scale is added to a volume of Neuroglancer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from harness import summary_of


def run(tmp_path, *arguments):
    found = summary_of(tmp_path, "volumes.py", *arguments)
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    return found


def run_five(tmp_path, fault, *arguments):
    if fault == "cut" and (why := power_cut.missing("ext4")):
        pytest.skip(why)
    found = run(tmp_path, "--fault", fault, "--cases", "5", *arguments)
    assert found["vacuous"] < 5
    return found


@pytest.mark.parametrize("fault", ["kill", pytest.param("fail", marks=pytest.mark.long)])
def test_a_few_of_each(tmp_path, fault):
    found = run(tmp_path, "--fault", fault, "--cases", "5", "--seed", "4")
    assert found["vacuous"] < 5, "something must be interrupted"
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_chunks_that_wait_in_a_spool(tmp_path, fault):
    scattered = ("--hash", "murmurhash3_x86_128")
    found = run_five(tmp_path, fault, "--seed", "3", *scattered)
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_chunks_that_wait_for_all_parts(tmp_path, fault):
    found = run_five(tmp_path, fault, "--seed", "3", "--parts")
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_a_repair_by_way_of_a_spool(tmp_path, fault):
    scattered = ("--hash", "murmurhash3_x86_128", "--repair")
    run_five(tmp_path, fault, "--seed", "3", *scattered)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_two_scales_in_one_call(tmp_path, fault):
    found = run_five(tmp_path, fault, "--seed", "3", "--scales")
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_copies_of_encoded_chunks(tmp_path, fault):
    found = run_five(tmp_path, fault, "--seed", "3", "--copies")
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_copies_in_parts(tmp_path, fault):
    found = run_five(tmp_path, fault, "--seed", "3", "--copies", "--parts")
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_more_of_each(tmp_path, fault):
    """A sample: ``python tests/faults/volumes.py`` takes every effect."""
    found = run_five(tmp_path, fault, "--seed", "2")
    assert found["acked"] > 0
