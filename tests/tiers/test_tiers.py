"""What the long tier leaves out is like what it runs."""

from __future__ import annotations

import itertools

import tiers

FILE = next(iter(tiers.SAMPLED_AGAIN))
CASES = {
    f"{test}[{a}-{b}]": (is_long, frozenset({test, ("a", a), ("b", b)}))
    for is_long, test in ((True, "test_one"), (True, "test_two"), (False, "test_quick"))
    for a, b in itertools.product(range(6), range(5))
}


def facts_of(names):
    return {fact for name in names for fact in CASES[name][1]}


def test_each_test_and_each_value_is_met():
    left = tiers.left_to_the_campaign(FILE, CASES)
    stay = CASES.keys() - left
    assert 20 < len(left) < len(CASES) - 20
    assert facts_of(stay) == facts_of(CASES)
    assert not [name for name in left if not CASES[name][0]], "quick cases stay"
    assert left == tiers.left_to_the_campaign(FILE, dict(reversed(CASES.items())))


def test_the_only_case_of_a_test_or_of_a_value_stays():
    alone = {name: CASES[name] for name in ("test_one[0-0]", "test_one[1-0]", "test_two[0-0]")}
    assert not tiers.left_to_the_campaign(FILE, {name: CASES[name] for name in list(CASES)[:1]})
    left = tiers.left_to_the_campaign(FILE, alone)
    assert facts_of(alone.keys() - left) == facts_of(alone)


def test_other_files_are_run_whole():
    assert tiers.left_to_the_campaign("no such file", CASES) == set()
