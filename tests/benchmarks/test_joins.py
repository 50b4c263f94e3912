"""The count of what a process does that joins a run beside others."""

from __future__ import annotations

import json

import pytest

from benchmarks import joins

FEW = ["--processes", "2,4", "--at-once", "2"]


@pytest.mark.parametrize(("limit", "code"), [(joins.LIMIT, 0), (0.01, 1)])
def test_rows_that_differ_end_with_an_error(limit, code, monkeypatch, capfd):
    monkeypatch.setattr(joins, "LIMIT", limit)
    assert joins.main(FEW) == code
    *rows, told = map(json.loads, capfd.readouterr().out.splitlines())
    assert [row["n_processes"] for row in rows] == [2, 4]
    assert all(10 <= row["to_join"] <= 12 for row in rows)
    assert told == {"spread": pytest.approx(0.5 / 11), "is_constant": code == 0}
