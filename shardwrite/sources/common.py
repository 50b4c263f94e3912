"""Helpers of all formats: identity of a file, optional libraries, choice of an array."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from shardwrite.errors import SpecError

__all__ = ["choose_dataset", "identify", "require"]


def identify(name: str, path: str, *, stat_path: str | None = None, **options: object) -> str:
    """Identity of a file: format, resolved path, size, modification time and options.

    Parameters
    ----------
    name : str
        Name of the format.
    path : str
        File or directory.
    stat_path : str, optional
        File whose size and modification time count, if `path` is a directory.
    **options
        Further arguments on which the values depend; those that are None are left out.

    Raises
    ------
    OSError
        If the file is missing or cannot be examined.
    """
    stat = os.stat(stat_path or path)
    facts = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, **options}
    return f"{name}:{os.path.realpath(path)}?" + "&".join(
        f"{k}={v}" for k, v in facts.items() if v is not None
    )


def require(module: str, extra: str, path: str) -> Any:
    """Import an optional library.

    Parameters
    ----------
    module : str
        Name of the module.
    extra : str
        Extra of this package that installs the library.
    path : str
        File that is read, for the error.

    Raises
    ------
    SpecError
        If the library is not installed. The error names the extra.
    """
    if importlib.util.find_spec(module) is None:
        raise SpecError(
            f"reading this needs the library {module}, which is not installed",
            field="source",
            value=path,
            remedy=f'pip install "shardwrite[{extra}]"',
        )
    return importlib.import_module(module)


def choose_dataset(names: Sequence[str], dataset: str | None, path: str) -> str:
    """Choose the array `dataset`, or the only one if that is None.

    Raises
    ------
    SpecError
        If there is no such array, or there are several to choose from. The error lists them.
    """
    clean = None if dataset is None else dataset.strip("/")
    if clean is not None and clean in names:
        return clean
    if clean is None and len(names) == 1:
        return names[0]
    listed = ", ".join(sorted(names)[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
    if not names:
        raise SpecError(
            "there is no array in it",
            field="source",
            value=path,
            remedy="give a file or group with an array",
        )
    if clean is None:
        raise SpecError(
            f"it holds {len(names)} arrays",
            field="source",
            value=path,
            remedy=f"choose one as dataset: {listed}",
        )
    raise SpecError(
        f"there is no such array in {path}",
        field="dataset",
        value=dataset,
        remedy=f"choose one of: {listed}",
    )
