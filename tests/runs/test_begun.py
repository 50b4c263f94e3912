"""A plan that is read back from its run directory is the plan that was written there."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.errors import JournalError, SpecError
from shardwrite.format import strategies
from shardwrite.format.strategies import as_strategy
from shardwrite.plan.estimate import Resources
from shardwrite.seams import open_ref
from shardwrite.sources import open_source

STRATEGIES = [
    shardwrite.FixedOrder("F"),
    shardwrite.FixedOrder("morton", max_unused=0.0),
    shardwrite.FixedOrder("C", in_place=True, max_unused=0.75),
    shardwrite.AppendOnly(),
    shardwrite.AppendOnly(in_place=True),
]
RESOURCES = Resources(2, 10**9)


def begun(path, strategy):
    """Begin a run; its plan."""
    x = da.zeros((64, 64), chunks=16, dtype="u2") + 1
    plan = shardwrite.plan(x, shards=16, chunks=4, strategy=strategy, source_id="x")
    shardwrite.prepare(x, path, plan)
    return plan


def edited(path, change):
    """Change the plan on disk."""
    seams.change_plan(seams.plan_file(path), change)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_strategy_is_restored_whole(tmp_path, strategy):
    plan = begun(tmp_path / "x", strategy)
    again = seams.restored_plan(tmp_path / "x", RESOURCES)
    assert again.strategy == strategy
    assert again.digest == plan.digest
    for name in ("in_place", "replaces", "depends_on_cut"):
        assert getattr(again.strategy, name) == getattr(strategy, name)
    assert again.strategy.streams(8) == strategy.streams(8)


def test_a_plan_names_its_strategy_its_shard_format_and_its_source(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(64).reshape(8, 8))
    source = open_source(tmp_path / "x.npy")
    shardwrite.prepare(source, tmp_path / "x", shardwrite.plan(source, shards=4, chunks=2))
    record = seams.record_of(tmp_path / "x")
    refs = {name: getattr(record, name) for name in ("strategy", "shard_format", "source")}
    assert {name: ref.name for name, ref in refs.items()} == {
        "strategy": "fixed-order",
        "shard_format": "sharding_indexed",
        "source": "npy",
    }
    opened = {name: open_ref(ref) for name, ref in refs.items()}
    assert opened["strategy"] == shardwrite.FixedOrder()
    assert opened["shard_format"].location == "end"
    assert opened["source"] == source


def test_a_shard_format_that_is_not_there_is_no_reason_to_start_over(tmp_path):
    begun(tmp_path / "x", "F")

    def rename(facts):
        facts["shard_format"]["name"] = "elsewhere"

    edited(tmp_path / "x", rename)
    with pytest.raises(JournalError, match=r"shard format 'elsewhere'.*import the module") as told:
        seams.restored_plan(tmp_path / "x", RESOURCES)
    assert "restart" not in str(told.value)


def test_what_nobody_has_registered_is_told_with_the_remedy(tmp_path, monkeypatch):
    known = dict(strategies._REGISTERED)
    monkeypatch.setattr(strategies, "_REGISTERED", known)

    @shardwrite.register_strategy
    class Passing(shardwrite.FixedOrder):
        name = label = "passing"

    begun(tmp_path / "x", "passing")
    assert type(seams.restored_plan(tmp_path / "x", RESOURCES).strategy) is Passing
    del known["passing"]
    with pytest.raises(JournalError, match=r"'passing'.*import the module that registers it") as e:
        seams.restored_plan(tmp_path / "x", RESOURCES)
    assert "shardwrite.strategies" in str(e.value)
    assert "restart" not in str(e.value), "nothing is wrong with what was written"


CHANGES = {
    "another format": {
        "shard_format": {
            "name": "sharding_indexed",
            "configuration": {"index_codecs": [], "index_location": "start"},
        }
    },
    "another label": {"identity": {"strategy": "fixed-order (C)"}},
    "unknown parameter": {"strategy": {"name": "fixed-order", "configuration": {"size": 1}}},
    "bad parameter": {
        "strategy": {"name": "fixed-order", "configuration": {"order": "F", "max_unused": 2}}
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_that_does_not_describe_its_strategy_is_refused(tmp_path, change):
    begun(tmp_path / "x", "F")

    def merge(facts):
        for name, value in CHANGES[change].items():
            facts[name] = {**facts[name], **value} if name == "identity" else value

    edited(tmp_path / "x", merge)
    with pytest.raises(JournalError, match="does not hold a plan that can be written in parts"):
        seams.restored_plan(tmp_path / "x", RESOURCES)


@pytest.mark.parametrize("place", ["no_such_module:Elsewhere", "json:Elsewhere"])
def test_a_strategy_that_cannot_be_loaded_is_no_reason_to_start_over(tmp_path, monkeypatch, place):
    def merge(facts):
        facts["strategy"] = {"name": "elsewhere", "configuration": {}}

    begun(tmp_path / "x", "F")
    edited(tmp_path / "x", merge)

    monkeypatch.setattr(
        "shardwrite.seams._entry_points", lambda: {("strategy", "elsewhere"): place}
    )
    with pytest.raises(JournalError, match=r"'elsewhere'.*cannot be loaded.*mend the inst") as told:
        seams.restored_plan(tmp_path / "x", RESOURCES)
    assert "restart" not in str(told.value)
    with pytest.raises(SpecError, match="cannot be loaded") as told:
        as_strategy("elsewhere")
    assert told.value.fields["field"] == "strategy"
