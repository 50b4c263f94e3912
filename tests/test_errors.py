"""Errors keep their facts through pickle and copy, and say them."""

import copy
import pickle

import numpy as np
import pytest

import shardwrite.errors as module
from shardwrite.errors import (
    ChangedError,
    ClusterError,
    ClusterLostError,
    CodecError,
    ConflictError,
    CorruptShardError,
    IncompleteError,
    JournalError,
    PlanError,
    RunCancelledError,
    RunEndedError,
    ShardwriteError,
    SourceError,
    SpecError,
    StoreError,
    SubmitError,
    UntrustedStateError,
    WorkersLostError,
)

pytestmark = pytest.mark.compat

EXAMPLES = [
    ShardwriteError("plain"),
    ShardwriteError("with facts", a=1, b="two"),
    SpecError("not positive", field="shards", value=(0, 4), remedy="give sizes above zero"),
    SpecError("no text", field="strategy", value={"a": [1, None]}, remedy="use a name"),
    PlanError("too large", needed_nbytes=10**15, allowed_nbytes=10**9, remedy="use smaller shards"),
    CorruptShardError("torn"),
    CorruptShardError("crc32c is wrong", key="c/0/1", inner_chunk=(3, 4), offset=17, nbytes=2**40),
    StoreError("no space", key="c/0", errno=28),
    StoreError("another file in the way"),
    SourceError("gave float64", region=((0, 5), (10, 12))),
    SourceError("scalar", region=()),
    CodecError("not installed", codec="zstd"),
    JournalError("of another run", path="a/b"),
    JournalError(
        "held",
        path="a/b",
        holder={"host": "node7", "pid": 12},
        differences=["source: 1 then, 2 now"],
    ),
    RunEndedError("taken over", path="a/b/run-1"),
    UntrustedStateError("belongs to somebody else", path="a/b.shardwrite", owner="mallory"),
    ChangedError("another program", path="a/b", changed=["c/0"], missing=["c/1", "c/2"]),
    ConflictError("moved", branch="main", expected="A1", found="B2"),
    IncompleteError("2 parts are missing", missing=["c/0", "c/2"], parts=[0, 2], n_written=7),
    RunCancelledError("cancelled", missing=["c/0"]),
    SubmitError("scontrol is not in PATH", command="scontrol show config"),
    WorkersLostError("all died", n_tasks=3),
    ClusterLostError("the scheduler is gone"),
    ClusterError(
        "nobody came",
        waited_seconds=60.0,
        jobs=[{"id": "7", "state": "PENDING", "reason": "Priority"}],
    ),
]
IDS = [f"{type(e).__name__}-{i}" for i, e in enumerate(EXAMPLES)]


def by_pickle(protocol):
    return lambda error: pickle.loads(pickle.dumps(error, protocol))


WAYS = {f"pickle {p}": by_pickle(p) for p in range(pickle.HIGHEST_PROTOCOL + 1)} | {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def test_every_class_has_an_example():
    classes = {getattr(module, name) for name in module.__all__}
    assert classes == {type(e) for e in EXAMPLES}
    defined = {
        c for c in vars(module).values() if isinstance(c, type) and issubclass(c, BaseException)
    }
    assert classes == defined


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", EXAMPLES, ids=IDS)
def test_facts_survive(error, way):
    again = WAYS[way](error)
    assert again is not error
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.message == error.message
    assert again.fields == error.fields
    assert again.args == error.args
    for name, value in error.fields.items():
        assert getattr(again, name) == getattr(error, name) == value


@pytest.mark.parametrize("error", EXAMPLES, ids=IDS)
def test_message_is_said(error):
    assert error.message in str(error)
    assert isinstance(error, ShardwriteError)


def test_a_value_that_cannot_be_shown_is_named_by_its_type():
    """Python refuses to show it, and the error had no text at all."""
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    for value, shown in ((10**5000, "<int>"), ((10**5000,), "<tuple>"), (deep, "<list>")):
        error = SpecError("too large", field="shape", value=value, remedy="give a smaller one")
        assert str(error) == f"shape={shown}: too large; give a smaller one"


def test_a_long_value_does_not_hide_the_remedy():
    error = SpecError("too long", field="attributes", value="x" * 10**6, remedy="shorten them")
    assert len(str(error)) < 1100
    assert str(error).endswith("xx...: too long; shorten them")


def test_facts_survive_when_raised_and_chained():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise SpecError("bad", field="f", value=1, remedy="r") from inner
    except SpecError as error:
        again = pickle.loads(pickle.dumps(error))
    assert (again.field, again.value, again.remedy) == ("f", 1, "r")


def test_spec_error_says_field_value_and_remedy():
    text = str(
        SpecError("not positive", field="shards", value=(0, 4), remedy="give sizes above zero")
    )
    assert text == "shards=(0, 4): not positive; give sizes above zero"


def test_plan_error_says_the_remedy():
    error = PlanError("too large", needed_nbytes=5, allowed_nbytes=4, remedy="use smaller shards")
    assert str(error) == "too large; use smaller shards"
    assert (error.needed_nbytes, error.allowed_nbytes, error.remedy) == (5, 4, "use smaller shards")


def test_corrupt_shard_error_says_where():
    bare = CorruptShardError("torn")
    assert str(bare) == "shard: torn"
    assert (bare.key, bare.inner_chunk, bare.offset, bare.nbytes) == ("", None, None, None)
    located = bare.located(key="c/1", inner_chunk=(2, 0)).located(offset=7, nbytes=9)
    assert str(located) == "shard 'c/1', inner chunk (2, 0), bytes 7+9: torn"
    assert located.message == "torn"
    assert bare.fields["key"] == "", "the original is left alone"


def test_source_error_says_the_region():
    error = SourceError("wrong dtype", region=[[0, 5], [7, 9]])
    assert error.region == ((0, 5), (7, 9))
    assert str(error) == "source region [0:5, 7:9]: wrong dtype"


def test_incomplete_error_keeps_a_list():
    error = IncompleteError("missing", missing=("a", "b"))
    assert error.missing == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (SpecError, ValueError),
        (PlanError, ValueError),
        (CorruptShardError, ValueError),
        (StoreError, OSError),
    ],
)
def test_builtin_bases(error, builtin):
    assert issubclass(error, builtin)


def test_store_error_keeps_errno_in_its_attribute():
    error = StoreError("no space", key="c/0", errno=28)
    assert error.errno == 28
    assert pickle.loads(pickle.dumps(error)).errno == 28
    assert str(error) == "no space"


@pytest.mark.parametrize("missing", ["field", "value", "remedy"])
def test_spec_error_takes_no_less(missing):
    facts = {"field": "f", "value": 1, "remedy": "r"}
    del facts[missing]
    with pytest.raises(TypeError):
        SpecError("m", **facts)


def test_numpy_values_survive():
    error = SpecError("m", field="fill_value", value=np.float32(1.5), remedy="r")
    again = pickle.loads(pickle.dumps(error))
    assert again.value == np.float32(1.5)
    assert again.value.dtype == np.float32
