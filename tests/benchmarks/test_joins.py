"""The count of what a process does that joins a run beside others."""

from __future__ import annotations

import json

import pytest

from benchmarks import joins


@pytest.mark.parametrize(("limit", "code"), [(joins.LIMIT, 0), (0.01, 1)])
def test_rows_that_differ_end_with_an_error(limit, code, monkeypatch, capfd):
    monkeypatch.setattr(joins, "LIMIT", limit)
    monkeypatch.setattr(joins, "measure", lambda n, _: {"to_join": {2: 11, 4: 10.5}[n]})
    assert joins.main(["--processes", "2,4"]) == code
    *_, told = map(json.loads, capfd.readouterr().out.splitlines())
    assert told == {"spread": pytest.approx(0.5 / 11), "is_constant": code == 0}


@pytest.mark.long
def test_a_row_counts_what_processes_do():
    row = joins.measure(3, at_once=2)
    assert row["n_processes"] == 3
    # A few more where another process began or ended at the same moment.
    assert 10 <= row["least_to_join"] <= row["to_join"] <= row["most_to_join"] <= 15
    assert row["in_all"] > row["to_join"]
    assert row["finalize_per_process"] > 1
