"""Every mistake is timed, and one that is not refused is an error of the benchmark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import refusals


@pytest.mark.long
def test_every_mistake_is_timed(tmp_path):
    before = Path.cwd()
    found = refusals.refusals(tmp_path.resolve(), 1)
    assert Path.cwd() == before
    mistakes = sys.modules["test_mistakes"]
    assert {one.mistake for one in found} == {*mistakes.IN_PYTHON, *mistakes.ON_THE_COMMAND_LINE}
    assert all(0 < one.fastest <= one.first for one in found)
    assert found == sorted(found, key=lambda one: -one.fastest)


def test_a_slow_mistake_is_printed_and_fails(monkeypatch, capsys):
    def made(*_):
        return [
            refusals.Refusal("slow | one", "shell", 0.5, 0.2, 0.15),
            refusals.Refusal("quick one", "Python", 0.1, 0.001, 0.001),
        ]

    monkeypatch.setattr(refusals, "refusals", made)
    monkeypatch.setattr(sys, "argv", ["refusals", "--rows", "1", "--check"])
    with pytest.raises(SystemExit) as ended:
        refusals.main()
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert "2 mistakes; 1 take longer than 0.1 s" in shown
    assert "| slow \\| one | shell | 200.0 | 150.0 | 500.0 |" in shown
    assert "quick one" not in shown
