"""The decorator of functions that users call."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from shardwrite.entry.words import refuse_unknown
from shardwrite.errors import ShardwriteError

__all__ = ["public", "shorten"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_HERE = re.escape(str(Path(__file__).parent.parent)) + r"[\\/]"
# Between a call and a failing block of the source, these only hand tasks on.
_CARRIERS = _HERE + r"(engines[\\/]|runs[\\/](execute|compute)\.py)"


def public(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function that users call.

    A keyword that it does not have is a TypeError that names the keyword that is meant. The
    traceback of an error shows the user's lines, the function, and the line that raised the error.
    Frames in between are left out, unless ``admin.traceback.shorten`` in dask's configuration is
    empty.

    Parameters
    ----------
    function : callable
        The function.
    """
    parameters = signature(function).parameters.values()
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    known = [one.name for one in parameters if one.name != "self"]
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not takes_all:
            refuse_unknown(name, kwargs, known)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return called


def shorten(error: BaseException) -> None:
    """Leave out the frames of a traceback that say nothing to a user.

    The first two frames and the last one stay. An error of this package loses the package's own
    frames between them; any other error only those that hand tasks on. Frames that dask leaves out
    of its own tracebacks are left out as well.

    Parameters
    ----------
    error : BaseException
        An error that is being handled. Its traceback is changed.
    """
    from dask import config

    hidden = config.get("admin.traceback.shorten", None)
    if not hidden:
        return
    own = _HERE if isinstance(error, ShardwriteError) else _CARRIERS
    pattern = re.compile(f"{own}|.*(?:{'|'.join(hidden)})")
    kept = _second(error.__traceback__)
    frame = kept and kept.tb_next
    while kept is not None and frame is not None:
        if frame.tb_next is None or not pattern.match(frame.tb_frame.f_code.co_filename):
            kept.tb_next = frame
            kept = frame
        frame = frame.tb_next


def _second(traceback: TracebackType | None) -> TracebackType | None:
    """The second frame of a traceback, or the only one."""
    return traceback and (traceback.tb_next or traceback)
