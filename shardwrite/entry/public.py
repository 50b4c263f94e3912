"""The decorator of functions that users call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from shardwrite.config.table import SETTINGS
from shardwrite.config.values import value_of
from shardwrite.entry.words import refuse_unknown
from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.host.dask_config import check_configuration

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DEFAULTS = {setting.keyword: setting.default for setting in SETTINGS if setting.fills}
_ONE = r"(str|int|float|bool|None|Progress|Callable\[\[\w+\], None\])"
_TAKES_ONE = re.compile(rf"{_ONE}( \| {_ONE})*")  # in annotations, which are texts
_HERE = re.escape(str(Path(__file__).parent.parent)) + r"[\\/]"
_OWN = _HERE + r"|<string>$"  # where dataclasses make their functions
# Between a call and a failing block of the source, these only hand tasks on.
_CARRIERS = _HERE + r"(engines[\\/]|runs[\\/](execute|compute)\.py)"


def public(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function that users call.

    Settings of the configuration are checked, and are the defaults of keywords; see
    `Setting.fills`. A keyword that the function does not have is a TypeError that names the keyword
    that is meant. An array is refused where one text, number or boolean is wanted, and
    where a boolean is wanted, all else: the text ``"no"`` would count as True. The traceback of
    an error shows the user's lines, and the line that raised the error. Frames in between are left
    out, unless ``admin.traceback.shorten`` is empty in dask's configuration.
    """
    parameters = signature(function).parameters.values()
    single = {one.name for one in parameters if _TAKES_ONE.fullmatch(str(one.annotation))}
    flags = {
        one.name: (False, True, None) if "None" in str(one.annotation) else (False, True)
        for one in parameters
        if str(one.annotation) in ("bool", "bool | None")
    }
    in_order = [one.name for one in parameters]
    fillers = {
        one.name
        for one in parameters
        if one.kind is Parameter.KEYWORD_ONLY
        and one.name in _DEFAULTS
        and one.default == _DEFAULTS[one.name]
    }
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    known = [one.name for one in parameters if one.name != "self"]
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not takes_all:
            refuse_unknown(name, kwargs, known)
        try:
            check_configuration()
            given = {**dict(zip(in_order, args, strict=False)), **kwargs}
            _refuse_arrays(single, given)
            refuse_no_flags(flags, given)
            return function(*args, **kwargs, **configured(fillers, kwargs))
        except Exception as error:
            shorten(error)
            raise

    return called


def _refuse_arrays(single: Collection[str], given: Mapping[str, Any]) -> None:
    """Refuse arrays for parameters that take one value: they are neither true nor false."""
    for name, value in given.items():
        if name in single and getattr(value, "ndim", None):
            raise SpecError(
                "an array, and not one value",
                field=name,
                value=type(value).__name__,
                remedy="give one value",
            )


def refuse_no_flags(flags: Mapping[str, Collection[object]], given: Mapping[str, Any]) -> None:
    """Refuse all but booleans for parameters that are booleans.

    - `flags`: what each of these parameters takes: False and True, and perhaps None.
    """
    for name, value in given.items():
        if name in flags and value not in flags[name]:
            raise SpecError("not a bool", field=name, value=value, remedy="give True or False")


def configured(keywords: Collection[str], given: Collection[str]) -> dict[str, Any]:
    """Keywords that the user has not given, and the values that the configuration gives them."""
    return {
        setting.keyword: value_of(setting)
        for setting in SETTINGS
        if setting.fills
        and setting.keyword is not None
        and setting.keyword in keywords
        and setting.keyword not in given
    }


def shorten(error: BaseException) -> None:
    """Leave out the frames of a traceback that say nothing to a user.

    The first frame and the last one stay. An error of this package loses the package's own frames
    between them; any other error keeps the second frame, and loses only those that hand tasks on.
    Frames that dask leaves out of its own tracebacks are left out as well.

    - `error`: an error that is being handled. Its traceback is changed.
    """
    from dask import config

    hidden = config.get("admin.traceback.shorten", None)
    if not hidden:
        return
    is_own = isinstance(error, ShardwriteError)
    pattern = re.compile(f"{_OWN if is_own else _CARRIERS}|.*(?:{'|'.join(hidden)})")
    kept = error.__traceback__ if is_own else _second(error.__traceback__)
    frame = kept and kept.tb_next
    while kept is not None and frame is not None:
        if frame.tb_next is None or not pattern.match(frame.tb_frame.f_code.co_filename):
            kept.tb_next = frame
            kept = frame
        frame = frame.tb_next


def _second(traceback: TracebackType | None) -> TracebackType | None:
    """The second frame of a traceback, or the only one."""
    return traceback and (traceback.tb_next or traceback)
