"""Records as JSON, and what of a file is refused; and the checks of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pytest

from shardwrite import SpecError
from shardwrite.checks import choice, flag, is_number, is_whole, share, whole
from shardwrite.codecs.documents import JSON
from shardwrite.records import (
    POSITIVE,
    LaterFormatError,
    Record,
    RecordError,
    always,
    lenient,
    one_of,
    read,
    rest,
)


class Corner(NamedTuple):
    x: int
    y: Annotated[int, range(8)]


@dataclass(frozen=True, slots=True)
class Inner(Record):
    name: str
    at: Corner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(Record):
    _format = 2

    numbers: tuple[int, ...]
    inner: Inner | None = None
    many: tuple[Inner, ...] = always(())
    others: Mapping[str, JSON] = rest()
    share: Annotated[float, POSITIVE] | None = lenient()
    kind: Annotated[str, one_of("a", "b")] = "a"
    sizes: Mapping[str, int] | None = None
    free: JSON = None


@dataclass(frozen=True, slots=True)
class Loose(Record):
    _lenient = True

    word: str = always("")
    count: int | None = None


WHOLE = Outer(
    numbers=(1, 2),
    inner=Inner("i", Corner(3, 4)),
    many=(Inner("m"),),
    others={"more": [None]},
    share=0.5,
    kind="b",
    sizes={"x": 1},
    free={"any": [1.5]},
)


def test_what_is_written_is_read_again():
    found = json.loads(WHOLE.to_json())
    assert Outer.from_dict(found) == WHOLE
    assert list(found) == [
        *("format", "numbers", "inner", "many", "more", "share", "kind", "sizes", "free")
    ]
    assert found["inner"] == {"name": "i", "at": [3, 4]}
    assert Outer(numbers=()).to_dict() == {"format": 2, "numbers": [], "many": []}
    assert Outer.from_dict({"format": 1, "numbers": []}) == Outer(numbers=())


@pytest.mark.parametrize(
    ("harm", "field", "expected"),
    [
        ({"numbers": [1, -1]}, "numbers[1]", "a whole number from 0 on"),
        ({"numbers": [True]}, "numbers[0]", "a whole number from 0 on"),
        ({"numbers": [1.0]}, "numbers[0]", "a whole number from 0 on"),
        ({"numbers": [2**63]}, "numbers[0]", "a whole number from 0 on"),
        ({"numbers": "12"}, "numbers", "a list"),
        ({"inner": []}, "inner", "an object"),
        ({"inner": {}}, "inner.name", "there"),
        ({"inner": {"name": "a", "beta": 1}}, "inner.beta", "absent, as nothing here knows it"),
        ({"many": [{"name": "a"}, {"name": 1}]}, "many[1].name", "a text"),
        ({"inner": {"name": "a", "at": [1, 8]}}, "inner.at[1]", "a whole number from 0 to 7"),
        ({"inner": {"name": "a", "at": [1]}}, "inner.at", "a list of 2"),
        ({"kind": "c"}, "kind", "one of 'a', 'b'"),
        ({"sizes": {"x": "1"}}, "sizes.x", "a whole number from 0 on"),
        ({"format": 0}, "format", "a number from 1 on"),
        ({"format": True}, "format", "a number from 1 on"),
    ],
    ids=str,
)
def test_what_is_refused_names_field_and_record(harm, field, expected):
    with pytest.raises(RecordError) as error:
        Outer.from_dict({**json.loads(WHOLE.to_json()), **harm})
    assert (error.value.field, error.value.expected) == (field, expected)
    assert str(error.value) == f"its field {field!r} must be {expected}"
    assert error.value.record == "Outer"


@pytest.mark.parametrize("found", [None, [], "text", 3])
def test_what_is_no_object(found):
    with pytest.raises(RecordError, match="it must be an object"):
        Outer.from_dict(found)
    assert Loose.from_dict(found) == Loose()


def test_a_missing_field_and_a_later_format():
    with pytest.raises(RecordError, match="'numbers' must be there"):
        Outer.from_dict({"format": 2})
    with pytest.raises(LaterFormatError, match="format 3"):
        Outer.from_dict({"format": 3, "whatever": 1})


@pytest.mark.parametrize("share", [-1, 0, "x", True, float("nan"), float("inf"), 10**400])
def test_a_wrong_value_of_a_lenient_field_is_not_known(share):
    assert Outer.from_dict({"format": 2, "numbers": [], "share": share}).share is None


def test_a_lenient_record():
    assert Loose.from_dict({"word": 3, "count": False, "more": 1}) == Loose()
    assert Loose.from_dict({"word": "a", "count": 2}).to_dict() == {"word": "a", "count": 2}
    assert Loose().to_dict() == {"word": ""}


def test_a_plain_dataclass():
    @dataclass(frozen=True)
    class Plain:
        one: int
        two: str = "b"

    with pytest.raises(RecordError, match="'one' must be there"):
        read(Plain, {})
    assert read(Plain, {"one": 1}) == Plain(1)


# ---- Checks of arguments


@pytest.mark.parametrize("value", [3, np.int8(3)])
def test_a_whole_number(value):
    made = whole("n", value, "a number of things", most=3)
    assert type(made) is int
    assert is_whole(value)
    assert is_number(value)


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None, 0, 4])
def test_what_is_no_whole_number(value):
    with pytest.raises(SpecError, match="not a number of things; give a whole number from 1 to 3"):
        whole("n", value, "a number of things", most=3)


def test_flags_shares_and_choices():
    assert flag("f", np.True_) is True
    for value in (1, "yes", None):
        with pytest.raises(SpecError, match="give True or False"):
            flag("f", value)
    assert share("s", 0.5) == 0.5
    for value in (-0.1, 2, True, "x", float("nan")):
        with pytest.raises(SpecError, match="give a number from 0 to 1"):
            share("s", value)
    choice("c", None, ("a", None))
    with pytest.raises(SpecError, match=r"no such choice; use one of \['a'\]"):
        choice("c", "b", ("a", "r+", None), untold=["r+"])
