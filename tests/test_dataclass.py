"""Dataclasses whose methods are made late are the standard ones in all that a caller can see."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
from dataclasses import KW_ONLY, FrozenInstanceError, field
from pathlib import Path
from typing import ClassVar, get_type_hints

import pytest

import shardwrite
from shardwrite._dataclass import dataclass
from shardwrite.results import Axis


def classes(dataclass):
    """The same classes by one decorator, in order."""

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    @dataclass(frozen=True, slots=True)
    class One:
        """One value."""

        a: object

    @dataclass(frozen=True, slots=True)
    class Many:
        """All kinds of fields."""

        kind: ClassVar[str] = "many"
        a: int
        b: list[int] = field(default_factory=list)
        c: str = field(default="c", repr=False, compare=False)
        d: int = field(init=False, default=4)
        e: dict[str, int] = field(init=False, default_factory=dict, hash=False)
        _: KW_ONLY
        f: float
        g: float = 2.5

    @dataclass(frozen=True, kw_only=True)
    class Named(One):
        """Comes from another one, and has room for more."""

        b: int = 2

    @dataclass(frozen=True, slots=True)
    class Checked(Many):
        """Looks at what it gets, and has methods of its own."""

        z: int = field(default=0, kw_only=True)

        def __post_init__(self):
            if self.z < 0:
                raise ValueError("negative")
            object.__setattr__(self, "c", self.c * 2)

        def __repr__(self):
            return f"<{self.z}>"

        def __eq__(self, other):
            return isinstance(other, Checked) and self.z == other.z

    @dataclass(frozen=True, eq=False, repr=False)
    class Itself:
        """Is equal to itself only."""

        a: int = 1

    @dataclass(slots=True)
    class Changing:
        """Not frozen."""

        a: int = 1

    return {cls.__name__: cls for cls in (Empty, One, Many, Named, Checked, Itself, Changing)}


PACKAGE = Path(shardwrite.__file__).parent
OURS, THEIRS = classes(dataclass), classes(dataclasses.dataclass)
CALLS = [
    ("Empty", (), {}),
    ("Empty", (1,), {}),
    ("One", (1,), {}),
    ("One", (), {"a": [1]}),
    ("One", (), {}),
    ("One", (1, 2), {}),
    ("One", (1,), {"a": 1}),
    ("One", (), {"b": 1}),
    ("Many", (1,), {"f": 1}),
    ("Many", (1, [2], "3"), {"f": 1, "g": 5}),
    ("Many", (1, [2], "3", 4), {"f": 1}),
    ("Many", (1,), {}),
    ("Many", (1,), {"f": 1, "d": 3}),
    ("Named", (), {"a": 1}),
    ("Named", (), {"a": 1, "b": 3}),
    ("Named", (1,), {}),
    ("Checked", (1,), {"f": 1, "z": 3}),
    ("Checked", (1,), {"f": 1, "z": -3}),
    ("Itself", (), {}),
    ("Itself", (2,), {}),
    ("Changing", (2,), {}),
]


def outcome(act):
    """What a call returns or raises, as text."""
    try:
        return re.sub(" at 0x[0-9a-f]+", "", str(act()))
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("classes.<locals>.", "")


def put(one, name):
    setattr(one, name, 1)
    return "was set"


def drop(one, name):
    delattr(one, name)
    return "was deleted"


@pytest.mark.parametrize(("name", "args", "values"), CALLS)
def test_all_that_a_caller_sees_is_the_same(name, args, values):
    def seen(classes):
        cls = classes[name]
        try:
            one = cls(*args, **values)
        except Exception:
            return [outcome(lambda: cls(*args, **values))]
        other, names = cls(*args, **values), [f.name for f in dataclasses.fields(cls)]
        return [
            outcome(lambda: repr(one)),
            outcome(lambda: [getattr(one, name) for name in names]),
            one == other,
            one == copy.copy(one),
            one != other,
            one == 1,
            outcome(lambda: isinstance(hash(one), int)),
            outcome(lambda: hash(one) == hash(copy.copy(one))),
            outcome(lambda: dataclasses.replace(one, **dict.fromkeys(names[:1], 7))),
            outcome(lambda: dataclasses.asdict(one)),
            [outcome(lambda n=n: put(copy.copy(one), n)) for n in names],
            [outcome(lambda n=n: drop(copy.copy(one), n)) for n in names],
            hasattr(one, "__dict__"),
            dataclasses.is_dataclass(one),
            cls.__match_args__,
            cls.__init__.__qualname__,
            {
                name: str(hint)
                for name, hint in cls.__init__.__annotations__.items()
                if name != "return"
            },
        ]

    assert seen(OURS) == seen(THEIRS)


@pytest.mark.parametrize("name", OURS)
def test_signatures_are_known_before_the_first_instance(name):
    ours, theirs = (
        inspect.signature(classes(how)[name]) for how in (dataclass, dataclasses.dataclass)
    )
    assert [*ours.parameters] == [*theirs.parameters]
    for one, other in zip(ours.parameters.values(), theirs.parameters.values(), strict=True):
        assert (one.kind, str(one.annotation)) == (other.kind, str(other.annotation))
        assert (one.default is one.empty) == (other.default is other.empty)


def test_a_class_that_comes_from_one_may_be_a_standard_one_or_none():
    cls = classes(dataclass)["One"]

    @dataclasses.dataclass(frozen=True)
    class Standard(cls):
        b: int = 2

    class Plain(cls):
        def __init__(self, x, y):
            super().__init__(x + y)

    assert (Standard(1).a, Standard(1).b, Plain(1, 2).a) == (1, 2, 3)
    plain = Plain(1, 2)
    plain.note = "its own"
    assert plain.note == "its own"
    del plain.note
    with pytest.raises(FrozenInstanceError):
        plain.a = 3
    assert [*inspect.signature(Plain).parameters] == ["x", "y"]
    with pytest.raises(FrozenInstanceError):
        Standard(1).a = 3
    with pytest.raises(TypeError, match="non-frozen"):
        dataclass(type("Changing", (cls,), {"__annotations__": {"b": int}}))


def test_one_goes_to_another_process():
    axis = Axis("x", 64, 32, 16, 2)
    assert pickle.loads(pickle.dumps(axis)) == axis == copy.deepcopy(axis)


def test_the_first_instance_is_made_in_many_threads_at_once():
    program = """
import threading
from shardwrite._dataclass import dataclass
@dataclass(frozen=True, slots=True)
class Pair:
    "Two."
    a: int
    b: int = 2
made, start = [], threading.Barrier(8)
def make():
    start.wait()
    made.append(Pair(1))
threads = [threading.Thread(target=make) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert {(one.a, one.b) for one in made} == {(1, 2)} and len(made) == 8
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_all_dataclasses_of_the_package_are_of_this_kind():
    files = [path for path in PACKAGE.rglob("*.py") if path.name != "_dataclass.py"]
    assert len(files) > 100
    imported = re.compile(
        r"^from dataclasses import .*\bdataclass\b|dataclasses\.dataclass\b", re.M
    )
    assert not [path for path in files if imported.search(path.read_text())]


def test_what_wraps_the_first_call_stays():
    cls, calls = classes(dataclass)["One"], []
    first = cls.__init__

    def wrapped(self, *args):
        calls.append(args)
        first(self, *args)

    cls.__init__ = wrapped
    assert [cls(1).a, cls(2).a] == [1, 2]
    assert calls == [(1,), (2,)]


def test_an_instance_that_is_called_has_a_signature_of_its_own():
    @dataclass(frozen=True, slots=True)
    class Called:
        """Is called with something else than it is made of."""

        a: int

        def __call__(self, x, y):
            return self.a + x + y

    assert [*inspect.signature(Called(1)).parameters] == ["x", "y"]


def test_types_of_arguments_can_be_looked_up():
    Axis("x", 64, 32, 16, 2)
    assert get_type_hints(Axis.__init__)["extent"] is int
