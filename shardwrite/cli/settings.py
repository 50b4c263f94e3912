"""The command that shows the configuration."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click
import dask

from shardwrite.cli.common import command
from shardwrite.cli.terminal import echo
from shardwrite.config.table import PREFIX, SETTINGS, Setting
from shardwrite.host.dask_config import look, where

# ---- The settings as a file of defaults, and as a page


_WIDTH = 96


def as_yaml() -> str:
    """All settings with their defaults and meanings, as the text of a YAML file."""
    lines = [
        "# Defaults of shardwrite. To change some, copy them into a YAML file that dask reads,",
        "# such as ~/.config/dask/shardwrite.yaml.",
        f"{PREFIX}:",
    ]
    above = ""
    for setting in sorted(SETTINGS, key=lambda one: "." in one.name):
        parent, _, leaf = setting.name.rpartition(".")
        if parent != above:
            lines.append(f"  {parent}:")
            above = parent
        indent = "    " if parent else "  "
        lines += [f"{indent}# {line}" for line in _wrapped(setting, len(indent))]
        lines.append(f"{indent}{leaf}: {_shown_default(setting)}")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """All settings as a table of a page."""
    rows = ["| setting | default | type | keyword | meaning |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        keyword = f"`{setting.keyword}`" if setting.keyword else ""
        rows.append(
            f"| `{setting.path}` | `{_shown_default(setting)}` | {setting.kind.label} | {keyword} "
            f"| {setting.meaning} |"
        )
    return "\n".join(rows)


def _wrapped(setting: Setting[object], indent: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{setting.meaning} Type: {setting.kind.label}.", _WIDTH - indent)


def _shown_default(setting: Setting[object]) -> str:
    return json.dumps(setting.default)


# ---- The command


@command()
@click.option("--yaml", "as_file", is_flag=True, help="Print a file of all defaults, to be edited.")
def config(as_file: bool, as_json: bool) -> None:
    """Show all settings, their values, and where these come from.

    Set them in a YAML file in ~/.config/dask, or in environment variables: shardwrite.lease.ttl is
    DASK_SHARDWRITE__LEASE__TTL. Options of commands take precedence.
    """
    if as_file:
        echo(as_yaml().rstrip("\n"))
        return
    rows = [
        {
            "setting": setting.path,
            "value": _shown(setting),
            "default": setting.default,
            "set": None if _is_default(look(setting), setting.default) else where(setting),
            "variable": setting.variable,
        }
        for setting in SETTINGS
    ]
    if as_json:
        echo(json.dumps({"paths": [str(path) for path in dask.config.paths], "settings": rows}))
        return
    width = max(len(str(row["setting"])) for row in rows)
    echo(f"YAML files are read from: {', '.join(map(str, dask.config.paths))}\n")
    for row in rows:
        source = "the default" if row["set"] is None else f"set {row['set']}"
        echo(f"{row['setting']:<{width}}  {json.dumps(row['value'])}  ({source})")


def _shown(setting: Setting[Any]) -> object:
    """Value of a setting; of one that may hold credentials, only the names in it."""
    value = look(setting)
    if setting.is_secret and value:
        return {str(name): "***" for name in value} if isinstance(value, Mapping) else "***"
    return value


def _is_default(value: object, default: object) -> bool:
    return value == (list(default) if isinstance(default, tuple) else default) or value == default
