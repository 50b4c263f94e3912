"""The comparison of checkouts: what counts as slower."""

from __future__ import annotations

import pytest

from benchmarks.trees import Runs


def runs(**seconds):
    made = Runs(list(seconds))
    for name, given in seconds.items():
        for value in given:
            made.add(name, value)
    return made


def test_the_ratio_is_that_of_the_medians():
    found = runs(old=[1.0, 9.0, 2.0], again=[2.0, 2.0, 2.0], new=[3.0, 1.0, 3.0])
    assert found.ratio("new") == pytest.approx(1.5)
    assert found.ratio("old") == found.ratio("again") == 1.0


@pytest.mark.parametrize(
    ("again", "new", "is_slower"),
    [
        (1.0, 1.02, False),
        (1.0, 1.04, True),
        (1.06, 1.04, False),
        (0.94, 1.04, False),
        (1.0, 0.5, False),
    ],
)
def test_slower_is_what_exceeds_three_percent_and_the_spread_of_equal_code(again, new, is_slower):
    found = runs(old=[1.0], again=[again], new=[new])
    assert found.is_slower("new") is is_slower
