"""Records: dataclasses that files hold as JSON, written and read by the types of their fields.

What is read is checked. A field that is missing, unknown or of a wrong type is refused by one
error, which names it. Numbers are whole ones from 0 to 2**63 - 1 unless their type says otherwise,
and true and false are none. These are the hooks for odd fields:

- ``Annotated[int, range(2**32)]`` gives the numbers that a field takes, and
  ``Annotated[str, Check(...)]`` tests its value. Any other function there reads the value. What has
  `to_dict` is written by it.
- A field with a default is left out of the file where it has that value. One that is made by
  `always` is never left out, and may be missing.
- A wrong value of a field that is made by `lenient` counts as its default. So does each of a class
  that is `Record._lenient`.
- A field that is made by `rest` holds all fields that the class does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON

_LARGEST = 2.0**63
_T = TypeVar("_T")


class RecordError(ValueError):
    """What a file holds is not what a record has there.

    - `expected`: what it must be, such as ``a text``.
    - `field`: name of the field, such as ``identity.region[0]``; empty for the whole record.
    - `record`: name of the class of the record.
    """

    def __init__(self, expected: str, field: str = "", record: str = "") -> None:
        super().__init__(expected, field, record)
        self.expected, self.field, self.record = expected, field, record

    def __str__(self) -> str:
        what = f"its field {self.field!r}" if self.field else "it"
        return f"{what} must be {self.expected}"

    def inside(self, field: str, record: str = "") -> RecordError:
        """The same error, of a field that holds this one."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return RecordError(self.expected, f"{field}{dot}{self.field}", record)


class OtherVersionError(ValueError):
    """Only another version of this package goes on with what a record is about."""

    version = "another"


class LaterFormatError(OtherVersionError):
    """A record has a format that only later versions of this package know."""

    version = "a later"

    def __init__(self, number: int, known: int) -> None:
        super().__init__(f"it has format {number}, and this version knows format {known}")


class Check(NamedTuple):
    """Test of the value of a field, after its type was checked."""

    passes: Callable[[Any], bool]
    expected: str  # what a value is that passes, such as ``a name of letters and digits``


POSITIVE = Check(lambda value: value > 0, "above 0")


def one_of(*values: str) -> Check:
    """Make the check of a field that has one of some values."""
    return Check(lambda value: value in values, f"one of {', '.join(map(repr, values))}")


def always(default: Any) -> Any:
    """A field that may be missing in a file, and is written whatever its value."""
    return dataclasses.field(default=default, metadata={"always": True})


def lenient(default: Any = None) -> Any:
    """A field of which a wrong value counts as its default."""
    return dataclasses.field(default=default, metadata={"lenient": True})


def rest() -> Any:
    """The field that holds all fields which the class does not know, in their place in the file."""
    return dataclasses.field(default_factory=dict, metadata={"rest": True})


class Record:
    """Base of frozen dataclasses that files hold as JSON; the module says how."""

    __slots__ = ()

    _format: ClassVar[int] = 0  # of the file, in which it comes first; 0 if it does not say any
    # Whether a wrong value of a field counts as its default. `read` then also passes over unknown
    # fields, and takes a value that is no object for a record of defaults.
    _lenient: ClassVar[bool] = False
    _grows: ClassVar[bool] = False  # whether unknown fields are passed over

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields as values that JSON can hold, in the order of the file."""
        made: dict[str, JSON] = {"format": self._format} if self._format else {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if "rest" in field.metadata:
                made |= value
            elif "always" in field.metadata or value != field.default:
                made[field.name] = _plain(value)
        return made

    def to_json(self) -> bytes:
        """Return the content of a file."""
        return json.dumps(self.to_dict()).encode()

    @classmethod
    def from_dict(cls, found: JSON) -> Self:
        """Parse and check what `to_dict` returns.

        - Raises RecordError if it is no such record, and LaterFormatError if its format is later.
        """
        return read(cls, found)


def read(kind: type[_T], found: Any) -> _T:
    """Parse and check a dataclass, of which JSON has all fields but those with a default."""
    is_lenient = getattr(kind, "_lenient", False)
    if not isinstance(found, Mapping):
        if is_lenient:
            return kind()
        raise RecordError("an object", record=kind.__name__)
    number = getattr(kind, "_format", 0)
    if number:
        check_format(found.get("format"), number, kind.__name__)
    known, rest_name = _fields_of(kind)  # type: ignore[arg-type]
    values: dict[str, object] = {}
    for name, field in known.items():
        try:
            if name in found:
                values[name] = field.read(found[name])
            elif field.is_needed:
                raise RecordError("there")  # noqa: TRY301 (told like all other faults)
        except RecordError as error:
            if not field.is_lenient:
                raise error.inside(name, kind.__name__) from None
    others = [name for name in found if name not in known and not (number and name == "format")]
    if rest_name:
        values[rest_name] = {name: found[name] for name in others}
    elif others and not is_lenient and not getattr(kind, "_grows", False):
        raise RecordError("absent, as nothing here knows it", others[0], kind.__name__)
    return kind(**values)


def check_format(number: object, known: int, record: str) -> None:
    """Refuse a number that is no format, or one that only later versions know."""
    if type(number) is not int or number < 1:
        raise RecordError("a number from 1 on", "format", record)
    if number > known:
        raise LaterFormatError(number, known)


def _plain(value: Any) -> Any:
    """The value of a field as JSON holds it: tuples are of one type; mappings hold plain values."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, tuple):
        is_flat = not value or isinstance(value[0], int | str)
        return list(value) if is_flat else [_plain(item) for item in value]
    return value


# ---- Readers, of which each type of a field has one


_Reader = Callable[[Any], Any]


class _Field(NamedTuple):
    read: _Reader
    is_needed: bool
    is_lenient: bool


@cache
def _fields_of(kind: type) -> tuple[Mapping[str, _Field], str]:
    """How the fields of a class are read, and the name of the field for all others, if any."""
    types, known, rest_name = _types_in(kind), {}, ""
    for field in dataclasses.fields(kind):
        if "rest" in field.metadata:
            rest_name = field.name
            continue
        is_lenient = getattr(kind, "_lenient", False) or "lenient" in field.metadata
        is_needed = field.default is field.default_factory is dataclasses.MISSING
        known[field.name] = _Field(_reader(types[field.name]), is_needed, is_lenient)
    return known, rest_name


def _types_in(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, localns={"JSON": Any, "Document": dict}, include_extras=True)


def _reader(kind: Any) -> _Reader:
    """What checks and returns a value of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner, hook = args
        if isinstance(hook, range):
            return _WholeNumber(hook)
        return _checked_reader(_reader(inner), hook) if isinstance(hook, Check) else hook
    if NoneType in args:
        inner = _reader(next(one for one in args if one is not NoneType))
        return lambda value: None if value is None else inner(value)
    if origin is tuple and args[1:] == (Ellipsis,):
        return _list_reader(_reader(args[0]))
    if origin is tuple:
        return _tuple_reader([_reader(one) for one in args])
    if origin in (dict, Mapping):
        return _mapping_reader(_reader(args[1]))
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_dict
    if isinstance(kind, type) and issubclass(kind, tuple):  # with names for its items
        read_items = _tuple_reader([_reader(one) for one in _types_in(kind).values()])
        return lambda value: kind(*read_items(value))
    return _READERS.get(kind) or partial(read, kind)


@dataclass(frozen=True, slots=True)
class _WholeNumber:
    """Reader of whole numbers."""

    within: range = range(2**63)

    def __call__(self, value: Any) -> int:
        if type(value) is not int or value not in self.within:
            limit = "on" if self.within.stop == 2**63 else f"to {self.within.stop - 1}"
            raise RecordError(f"a whole number from {self.within.start} {limit}")
        return value

    def accepts_all(self, values: Sequence[Any]) -> bool:
        """Whether all values are such numbers; a list may have millions."""
        is_whole = {*map(type, values)} <= {int}
        return is_whole and (
            not values or (min(values) in self.within and max(values) in self.within)
        )


def _instance_reader(kind: type, expected: str) -> _Reader:
    """Reader of values of a type."""

    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise RecordError(expected)
        return value

    return read


def _read_number(value: Any) -> float:
    if type(value) not in (int, float) or not -_LARGEST < value < _LARGEST:
        raise RecordError("a number")
    return value  # type: ignore[no-any-return]


def _checked_reader(read_type: _Reader, check: Check) -> _Reader:
    """Reader of values of a type that pass a check."""

    def read(value: Any) -> Any:
        typed = read_type(value)
        if not check.passes(typed):
            raise RecordError(check.expected)
        return typed

    return read


def _list_reader(item: _Reader) -> _Reader:
    """Reader of a list of any length, as a tuple."""

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise RecordError("a list")
        if isinstance(item, _WholeNumber) and item.accepts_all(value):
            return tuple(value)
        return tuple(_read_within(item, f"[{number}]", each) for number, each in enumerate(value))

    return read


def _tuple_reader(items: Sequence[_Reader]) -> _Reader:
    """Reader of a list of as many values, as a tuple."""

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise RecordError(f"a list of {len(items)}")
        numbered = enumerate(zip(items, value, strict=True))
        return tuple(_read_within(item, f"[{number}]", each) for number, (item, each) in numbered)

    return read


def _mapping_reader(item: _Reader) -> _Reader:
    """Reader of an object with any names."""

    def read(value: Any) -> Any:
        return {name: _read_within(item, name, each) for name, each in _read_object(value).items()}

    return read


def _read_within(read: _Reader, name: str, value: Any) -> Any:
    """Read a value of a list or an object; an error says where it stands there."""
    try:
        return read(value)
    except RecordError as error:
        raise error.inside(name) from None


_read_object = _instance_reader(dict, "an object")

_READERS: dict[Any, _Reader] = {
    Any: lambda value: value,
    bool: _instance_reader(bool, "true or false"),
    dict: _read_object,
    float: _read_number,
    int: _WholeNumber(),
    str: _instance_reader(str, "a text"),
}
