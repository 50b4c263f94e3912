"""Strategies by name: what is registered, what is refused, and when packages are asked."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import shardwrite
from shardwrite import seams
from shardwrite.errors import SpecError
from shardwrite.format import strategies
from shardwrite.format.strategies import (
    AppendOnly,
    FixedOrder,
    as_strategy,
    register_strategy,
    registered,
)

ALL = [
    *(FixedOrder(o, in_place=p, max_unused=u) for o in "CF" for p in (False, True) for u in (0, 1)),
    FixedOrder("morton", max_unused=0.125),
    AppendOnly(),
    AppendOnly(in_place=True),
]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(strategies, "_REGISTERED", dict(strategies._REGISTERED))
    seams._entry_points.cache_clear()
    yield
    seams._entry_points.cache_clear()


class Plain:
    """Everything that a strategy has, and nothing behind it."""

    name = label = "another"
    streaming_order = "C"
    in_place = depends_on_cut = False
    replaces = True
    sequence = lay_out = streams = revise = lambda self, *given: None

    def to_dict(self):
        return {}

    @classmethod
    def from_dict(cls, parameters):
        return cls(**parameters)


def another(**members):
    """A new class of a strategy that differs in some members."""
    return type("Another", (Plain,), members)


@pytest.mark.parametrize("strategy", ALL, ids=repr)
def test_a_strategy_is_restored_whole(strategy):
    parameters = json.loads(json.dumps(strategy.to_dict()))
    again = registered(strategy.name).from_dict(parameters)
    assert type(again) is type(strategy)
    assert again == strategy
    for name in ("in_place", "replaces", "depends_on_cut", "label"):
        assert getattr(again, name) == getattr(strategy, name)
    for size in (None, 8):
        assert again.streams(size) == strategy.streams(size)


@pytest.mark.compat
def test_a_name_or_an_instance_is_taken():
    made = register_strategy(another())
    assert type(as_strategy("another")) is made
    one = made()
    assert as_strategy(one) is one
    stranger = another(name="stranger")()
    assert as_strategy(stranger) is stranger, "an instance need not be registered"


def test_what_is_registered_again_is_the_class_anew():
    first, second = another(), another()
    register_strategy(first)
    assert register_strategy(first) is first
    assert register_strategy(second) is second
    assert registered("another") is second
    other = type("Other", (FixedOrder,), {"name": "another"})  # a class of another name
    with pytest.raises(SpecError, match="not a free name"):
        register_strategy(other)


@pytest.mark.parametrize("name", ["fixed-order", "append-only", "C", "morton", "", 3, None])
def test_names_that_are_not_free(name):
    with pytest.raises(SpecError) as caught:
        register_strategy(another(name=name))
    assert caught.value.field == "name"


@pytest.mark.parametrize("value", [object, FixedOrder(), "fixed-order", None])
def test_only_classes_of_strategies_are_registered(value):
    with pytest.raises(SpecError, match=r"no write strategy|no class"):
        register_strategy(value)


def test_a_field_without_default_is_no_missing_member():
    @register_strategy
    @dataclass(frozen=True)
    class Needs:
        name: ClassVar[str] = "needs"
        in_place: bool
        label = streaming_order = "C"
        sequence = lay_out = streams = revise = to_dict = from_dict = lambda self: None

    assert registered("needs") is Needs


FAULTS = {
    "label": ("", "label"),
    "streaming_order": ("lexicographic", "streaming_order"),
    "in_place": (1, "in_place"),
    "replaces": (None, "replaces"),
    "depends_on_cut": ("no", "depends_on_cut"),
    "to_dict": (lambda self: {"order": object()}, "cannot be stored"),
    "from_dict": (classmethod(lambda cls, given: FixedOrder()), "does not give back"),
}


@pytest.mark.parametrize("member", FAULTS)
def test_what_an_instance_must_be(member):
    value, why = FAULTS[member]
    with pytest.raises(SpecError, match=why) as caught:
        as_strategy(another(**{member: value})())
    assert caught.value.field == "strategy"


def test_an_instance_that_lacks_members_is_told_which():
    class Half:
        name = "half"

        def lay_out(self):
            pass

    with pytest.raises(SpecError, match=r"lacks \['depends_on_cut', .*'sequence'"):
        as_strategy(Half())


def test_in_place_and_replaced_is_a_contradiction():
    with pytest.raises(SpecError, match="also replaces"):
        as_strategy(another(in_place=True, replaces=True)())


def test_a_subclass_needs_a_name_of_its_own():
    """Else the plan on disk would name the class above it."""
    with pytest.raises(SpecError, match="'fixed-order' belongs to another class"):
        as_strategy(type("Mine", (FixedOrder,), {})())


@pytest.mark.parametrize("in_place", [1, "yes", None])
def test_flags_are_flags(in_place):
    for cls in (FixedOrder, AppendOnly):
        with pytest.raises(SpecError) as caught:
            cls(in_place=in_place)
        assert caught.value.field == "in_place"


@pytest.mark.parametrize("max_unused", ["0.5", None, float("nan"), -0.1, 1.1, True, [0.5]])
def test_shares_are_shares(max_unused):
    with pytest.raises(SpecError) as caught:
        FixedOrder(max_unused=max_unused)
    assert caught.value.field == "max_unused"


def test_packages_are_asked_only_for_names_that_are_not_known(monkeypatch):
    asked = []

    def entry_points(*, group):
        asked.append(group)
        entry = importlib.metadata.EntryPoint("another", f"{__name__}:Plain", group)
        return [entry] if group == "shardwrite.strategies" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    for known in ("fixed-order", "append-only", "morton", FixedOrder("F")):
        as_strategy(known)
    assert not asked
    assert as_strategy("another").label == "another"
    as_strategy("another")
    assert sorted(asked) == ["shardwrite.strategies", "shardwrite.wings"]
    with pytest.raises(SpecError, match="import the module that registers"):
        as_strategy("a third")


def test_the_function_is_public():
    assert shardwrite.register_strategy is register_strategy


def test_numbers_of_numpy_are_numbers():
    made = FixedOrder("F", in_place=np.bool_(True), max_unused=np.float32(0.5))
    assert made == FixedOrder("F", in_place=True, max_unused=0.5)
    assert type(made.in_place) is bool
    assert FixedOrder(max_unused=np.int64(1)) == FixedOrder(max_unused=1)
    assert AppendOnly(in_place=np.bool_(False)).in_place is False


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("name", ["another"]),
        ("name", ""),
        ("streaming_order", ["C"]),
        ("to_dict", lambda self: 5),
    ],
)
def test_a_strategy_with_a_member_of_the_wrong_kind_is_refused(member, value):
    strategy = type("Wrong", (Plain,), {member: value})()
    with pytest.raises(SpecError, match="no valid write strategy"):
        as_strategy(strategy)
