"""The decorators of functions that users call."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.checks import flag, one_value
from shardwrite.config.table import SETTINGS, value_of
from shardwrite.host.dask_config import check_configuration
from shardwrite.options import Keywords, help_of, option_in

# ---- Words that users try as keywords


_MEANT = {
    "chunk": "chunks",
    "chunk_shape": "chunks",
    "chunk_size": "chunks",
    "chunksize": "chunks",
    "inner_chunk": "chunks",
    "inner_chunks": "chunks",
    "codec": "compressors",
    "codecs": "compressors",
    "compression": "compressors",
    "compressor": "compressors",
    "shard": "shards",
    "shard_shape": "shards",
    "shard_size": "shards",
    "outer_chunks": "shards",
    "filter": "filters",
    "fill": "fill_value",
    "missing_value": "fill_value",
    "nodata": "fill_value",
    "dim_names": "dimension_names",
    "dimensions": "dimension_names",
    "dims": "dimension_names",
    "attrs": "attributes",
    "dataset": "name",
    "group": "name",
    "array_path": "name",
    "file": "store",
    "filename": "store",
    "path": "store",
    "target": "store",
    "url": "store",
    "array": "x",
    "data": "x",
    "source": "x",
    "slices": "region",
    "mem_limit": "memory_limit",
    "memory": "memory_limit",
    "max_mem": "memory_limit",
    "max_memory": "memory_limit",
    "dimension_separator": "chunk_key_encoding",
    "fsync": "durability",
    "sync": "durability",
    "force": "restart",
    "index_at": "index_location",
    "offset": "region",
}

SENTENCES = {
    "align_chunks": "leave it out: chunks of the source need not fit those that are written",
    "append_dim": "make each array longer by a call of its own, of to_sharded_zarr",
    "chunk_store": "leave it out: chunks and documents lie in one store",
    "chunkmanager_store_kwargs": "leave it out, and set a scheduler with dask.config.set",
    "client": "leave it out: the client that dask uses is used here, too",
    "delayed": "give compute=False",
    "dry_run": "call the function that makes a plan, such as shardwrite.plan",
    "dtype": "leave it out, and convert the source with astype",
    "lock": "leave it out: no two tasks write the same shard",
    "n_threads": "set them with dask.config.set(num_workers=...)",
    "n_workers": "start a cluster with distributed.Client(n_workers=...)",
    "num_workers": "set them with dask.config.set(num_workers=...)",
    "overwrite": "leave it out: shards that the region touches are written again",
    "region": "change a part of each array with to_sharded_zarr(..., region=...)",
    "resume": "leave it out: the same call goes on where it was interrupted",
    "retries": "make the source with dask.annotate(retries=...)",
    "safe_chunks": "leave it out: chunks of the source need not fit those that are written",
    "scheduler": "set it with dask.config.set(scheduler=...)",
    "synchronizer": "leave it out: no two tasks write the same shard",
    "threads": "set them with dask.config.set(num_workers=...)",
    "workers": "start a cluster with distributed.Client(n_workers=...)",
    "write_inherited_coords": "leave it out: readers of a tree inherit coordinates",
    "zarr_format": "leave it out: it is Zarr v3 that is written",
    "zarr_version": "leave it out: it is Zarr v3 that is written",
}
"""What to do instead of giving a keyword that a function does not have."""


def refuse_unknown(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that a function does not have, and name the ones that are meant.

    Examples
    --------
    >>> refuse_unknown("plan", ["shard"], ["shards", "chunks"])
    Traceback (most recent call last):
    TypeError: plan() got an unexpected keyword argument 'shard'; give shards
    """
    unknown = [word for word in given if word not in known]
    if unknown:
        remedies = dict.fromkeys(filter(None, (_remedy(word, known) for word in unknown)))
        names = ", ".join(map(repr, unknown))
        message = f"{function}() got an unexpected keyword argument {names}"
        raise TypeError("; ".join([message, *(remedies or [f"it has {', '.join(known)}"])]))


def _remedy(word: str, known: Collection[str]) -> str:
    if word == "overwrite" and "mode" in known:
        return 'give mode="w" to replace what exists'
    if word in SENTENCES:
        return SENTENCES[word]
    meant = _MEANT.get(word.lower())
    if meant not in known:
        meant = next(iter(get_close_matches(word.lower(), list(known), 1, 0.7)), None)
    return f"give {meant}" if meant else ""


# ---- Decorators


_P = ParamSpec("_P")

_A = TypeVar("_A")

_R = TypeVar("_R")

_S = TypeVar("_S")

_ONE = r"(str|int|float|bool|None|Progress|Callable\[\[\w+\], None\])"

_TAKES_ONE = re.compile(rf"{_ONE}( \| {_ONE})*")  # in annotations, which are texts

_SECTION = re.compile(r"^\w[\w ]*\n-{3,}$", re.MULTILINE)


def public(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function that users call.

    Settings of the configuration are checked, and are the defaults of keywords; see
    `Setting.fills`. A keyword that the function does not have is a TypeError that names the keyword
    that is meant. An array is refused where one text, number or boolean is wanted, and
    where a boolean is wanted, all else: the text ``"no"`` would count as True.
    """
    checks = _Checks.of(function, signature(function))

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*args, **kwargs, **checks.configured(args, kwargs))

    return called


def taking(
    arguments: Callable[_P, _A],
) -> Callable[[Callable[[_A], _R]], Callable[_P, _R]]:
    """Mark a function that users call with the fields of a dataclass as its arguments.

    The function gets them as one value. Its signature, and the parameters in its docstring, are
    made from the fields; see `shardwrite.options`. All else is as with `public`.
    """
    return lambda function: _taking(function, arguments)


def method_taking(
    arguments: Callable[_P, _A],
) -> Callable[[Callable[[_S, _A], _R]], Callable[Concatenate[_S, _P], _R]]:
    """Mark a method of that kind; see `taking`."""
    return lambda method: _taking(method, arguments)


def made_with(arguments: Any) -> Callable[[type[_R]], type[_R]]:
    """Describe, in the docstring of a class, the arguments that its ``__init__`` takes."""

    def decorate(cls: type[_R]) -> type[_R]:
        cls.__doc__ = with_parameters(cls.__doc__, arguments)
        return cls

    return decorate


def _taking(function: Callable[..., Any], arguments: Callable[..., Any]) -> Any:
    """The function or method that users call."""
    expected, own = signature(arguments), signature(function)
    before = list(own.parameters.values())[:-1]  # a method has itself, too
    checks = _Checks.of(function, expected)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        first, rest = args[: len(before)], args[len(before) :]
        filled = checks.configured(rest, kwargs)
        try:
            expected.bind(*rest, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}() {error}") from None
        return function(*first, arguments(*rest, **kwargs, **filled))

    called.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*before, *expected.parameters.values()]
    )
    called.__doc__ = with_parameters(function.__doc__, arguments)
    return called


@dataclass(frozen=True, slots=True)
class _Checks:
    """What is checked in each call of a function, and filled in."""

    function: str
    in_order: tuple[str, ...]  # names of its parameters
    single: Collection[str]  # parameters that take one value, and no array
    flags: Mapping[str, Collection[object]]  # what each parameter takes that is a boolean
    defaults: Mapping[str, Any]  # of keywords
    takes_all: bool  # whether it takes any keyword

    @classmethod
    def of(cls, function: Callable[..., Any], of: Signature) -> _Checks:
        parameters = of.parameters.values()
        annotations = {one.name: str(one.annotation) for one in parameters}
        return cls(
            function.__qualname__.removesuffix(".__init__"),
            tuple(annotations),
            {name for name, text in annotations.items() if _TAKES_ONE.fullmatch(text)},
            {
                name: (False, True, None) if "None" in text else (False, True)
                for name, text in annotations.items()
                if text in ("bool", "bool | None")
            },
            {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY},
            any(one.kind is Parameter.VAR_KEYWORD for one in parameters),
        )

    def configured(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Check a call, and return the keywords that settings fill."""
        if not self.takes_all:
            known = [name for name in self.in_order if name != "self"]
            refuse_unknown(self.function, kwargs, known)
        check_configuration()
        values = {**dict(zip(self.in_order, args, strict=False)), **kwargs}
        for name in values.keys() & self.single:
            one_value(name, values[name])
        refuse_no_flags(self.flags, values)
        return configured(self.defaults, kwargs)


def with_parameters(text: str | None, arguments: Any) -> str | None:
    """A docstring with a section about the fields of a dataclass, before its other sections."""
    if text is None:  # as Python has been told to drop them
        return None
    text = inspect.cleandoc(text)
    found = _SECTION.search(text)
    before, after = (text[: found.start()], text[found.start() :]) if found else (f"{text}\n\n", "")
    parameters = "\n".join(_parameters(arguments))
    return f"{before}Parameters\n----------\n{parameters}\n\n{after}"


def _parameters(arguments: type[Keywords]) -> Iterator[str]:
    """Entries of numpydoc's Parameters, one for each field of a dataclass."""
    fields = {declared.name: declared for declared in dataclasses.fields(arguments)}
    for parameter in signature(arguments).parameters.values():
        declared = fields[parameter.name]
        described = option_in(declared)
        choices = ", ".join(f'"{choice}"' for choice in described.choices)
        annotation = str(parameter.annotation).removesuffix(" | None").replace(" | ", " or ")
        kind = described.kind or (f"{{{choices}}}" if choices else annotation)
        optional = ", optional" if parameter.default is None else ""
        lines = "\n    ".join(line.strip() for line in help_of(arguments, declared).splitlines())
        yield f"{parameter.name} : {kind}{optional}\n    {lines}"


def refuse_no_flags(flags: Mapping[str, Collection[object]], given: Mapping[str, Any]) -> None:
    """Refuse all but booleans for parameters that are booleans.

    - `flags`: what each of these parameters takes: False and True, and perhaps None.
    """
    for name, value in given.items():
        if name in flags and not (value is None and None in flags[name]):
            flag(name, value)


def configured(defaults: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Values that settings give keywords with the same default, which the user has not given."""
    return {
        setting.keyword: value_of(setting)
        for setting in SETTINGS
        if setting.fills
        and setting.keyword is not None
        and setting.keyword not in given
        and setting.keyword in defaults
        and defaults[setting.keyword] == setting.default
    }
