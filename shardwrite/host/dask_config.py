"""Settings in the configuration of dask: their values, and where these come from."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import dask.config

from shardwrite.config.table import PREFIX, SETTINGS, STRATEGY, Setting, refused, value_of
from shardwrite.errors import SpecError
from shardwrite.format.strategies import as_strategy

_UNSET = object()
_NAMES = {setting.name for setting in SETTINGS}


def look(setting: Setting[Any]) -> Any:
    """Value of a setting in the configuration of dask, or its default."""
    value = dask.config.get(setting.path, _UNSET)
    return setting.default if value is _UNSET or value is None else value


def where(setting: Setting[Any]) -> str:
    """Where the value of a setting comes from, such as ``in /etc/dask/site.yaml``."""
    return _where(setting.path, setting.variable)


def _where(path: str, variable: str) -> str:
    value = dask.config.get(path, _UNSET)
    if dask.config.get(path, _UNSET, config=dask.config.collect_env()) == value:
        return f"by the environment variable {variable}"
    files = list(dask.config.collect_yaml(dask.config.paths, return_paths=True))
    for file, content in reversed(files):
        if dask.config.get(path, _UNSET, config=content) == value:
            return f"in {file}"
    return "by the program, with dask.config.set"


def check_configuration() -> None:
    """Check all settings in the configuration of dask."""
    _refuse_dots()
    tree = dask.config.get(PREFIX, None)
    tree = {} if tree is None else tree
    if not isinstance(tree, Mapping):
        raise SpecError(
            f"is no mapping (set {_where(PREFIX, 'DASK_SHARDWRITE')})",
            field=PREFIX,
            value=tree,
            remedy="give settings below it, such as shardwrite.durability",
        )
    for name in _leaves(tree):
        if name not in _NAMES:
            _refuse(name)
    for setting in SETTINGS:
        value_of(setting)
    if (strategy := value_of(STRATEGY)) != STRATEGY.default:
        try:
            as_strategy(strategy)
        except SpecError as error:
            raise refused(STRATEGY, strategy, error.message, error.fields["remedy"]) from None


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Names of all settings in a part of the configuration, with hyphens."""
    for key, value in tree.items():
        name = f"{above}{key}".replace("_", "-")
        if isinstance(value, Mapping) and name not in _NAMES:
            yield from _leaves(value, f"{name}.")
        elif value is not None or not any(each.startswith(f"{name}.") for each in _NAMES):
            yield name  # and no empty section


def _refuse_dots() -> None:
    """Refuse names with dots in files: dask would look for a tree, and never find them."""
    for key, path in _dotted(dask.config.config):
        every = reversed(list(dask.config.collect_yaml(dask.config.paths, return_paths=True)))
        file = next((file for file, tree in every if (key, path) in _dotted(tree)), None)
        *sections, last = path.split(".")
        tree = "".join(f"{section}: {{" for section in sections) + f"{last}: ..."
        raise SpecError(
            "has a dot in its name, so it would be ignored "
            f"(set {'by the program' if file is None else f'in {file}'})",
            field=path,
            value=key,
            remedy=f"write it as a tree, {tree}{'}' * len(sections)}",
        )


def _dotted(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Names of this package with a dot in one key: that key, and the whole name."""
    for key, value in tree.items():
        path = f"{above}{key}"
        name = path.replace("_", "-").removeprefix(f"{PREFIX}.")
        if not f"{path}.".startswith(f"{PREFIX}."):
            continue
        if "." in str(key):
            yield str(key), path
        elif isinstance(value, Mapping) and name not in _NAMES:
            yield from _dotted(value, f"{path}.")


def _refuse(name: str) -> None:
    """Refuse a name that is unknown."""
    path = f"{PREFIX}.{name}"
    near = difflib.get_close_matches(name, sorted(_NAMES), n=1)
    remedy = f"use {PREFIX}.{near[0]}" if near else "see shardwrite config for all settings"
    variable = "DASK_" + path.upper().replace("-", "_").replace(".", "__")
    raise SpecError(
        f"no such setting (set {_where(path, variable)})",
        field=path,
        value=dask.config.get(path, None),
        remedy=remedy,
    )
