"""Messages in the words of the command line.

The library names keywords of Python in its messages, and what to give for them. A user of the
command line has options and arguments instead, so a message is put into these before it is printed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

import click

from shardwrite.config.table import RUN_DIR
from shardwrite.errors import SpecError
from shardwrite.format.node import FORMAT

_ALIASES = {
    "against": ("against",),
    "codecs": ("compressors",),
    "files": ("paths",),
    "format": ("source_format",),
    "order": ("order", "strategy"),
    "path": ("src", "array", "dst"),
    "source": ("src", "against"),
    "store": ("dst", "array"),
    "x": ("src", "source", "against"),
}

_PHRASES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"call prepare again with restart=True \(shardwrite init --restart\)",
        "run shardwrite init --restart",
    ),
    (r"call prepare first \(shardwrite init\)", "run shardwrite init first"),
    (r"call prepare_conversion first \(--init\)", "run the same command with --init first"),
    (
        r"with verify and accept=True \(shardwrite verify --accept\)",
        "with shardwrite verify --accept",
    ),
    (
        r"set shardwrite\.source\.accept=True in dask's configuration \(--accept-source\)",
        "give --accept-source",
    ),
    (r"source_id \(--source-id\)", "--source-id"),
    (r'mode="w"', "--overwrite"),
    (r"restart=True \(--restart\)", "--restart"),
    (r'region="append"', "--append AXIS"),
    (r", FixedOrder\(order=\.\.\.\), AppendOnly\(\), Hdf5\(\), an order", " or an order"),
    (r", or import the module that registers the strategy", ""),
    (r"call shardwrite\.(\w+) \(shardwrite \1\)", r"run shardwrite \1"),
    (r'convert it with astype\("[^"]*"\), or allow', "allow"),
    (r'convert it with astype\("([^"]*)"\)', r"convert it to \1 first"),
    (r"convert the source with astype to", "convert SRC first to"),
    (r"give a shape as a tuple, \(([^)]*)\)", lambda m: f"give a shape as {_list(m[1])}"),
    (
        r"give other patterns to include and exclude",
        "give other patterns to --include and --exclude",
    ),
    (r"give a name or None for each axis", "give a name for each axis, as in time,y,x or time,,x"),
    (r"; storage_options=\{\} opens what fsspec knows", ""),
    (r", or set shardwrite\.run-dir in the configuration of dask", ""),
    (r",? or (\w+ )?(in )?storage_options", ""),
    (r"give it as text, such as '([^']*)'; a path object loses a slash", r"give one such as \1"),
    (r"fewer threads per process", "fewer threads (--threads)"),
    (r"make the source's chunks smaller", "read the source in smaller chunks (--source-chunks)"),
    (r"use smaller inner chunks", "use smaller inner chunks (--chunks)"),
    (r"choose one as dataset:", "choose one with --dataset:"),
    (r"give shape and dtype of", "give --shape and --dtype of"),
    (r"give format as one of", "give --format as one of"),
    (r"give format and dataset", "give --format and --dataset"),
    (r"correct shape, dtype and offset", "correct --shape, --dtype and --offset"),
    (r"open it with dask and give the dask array", "copy it to a local file first"),
    (r" to write_region, erase or repair", ""),
    (r"leave consume out", "leave --consume out"),
    (r"[Mm]ake the same call again", "run the same command again"),
)


# A call in Python. It stays as it is, with the keyword before it, if there is one.
_CALL = re.compile(r"((?:\b[a-z_]+=)?\b[\w.]+\((?:[^()]|\([^()]*\))*\))")


def in_options(error: BaseException, command: click.Command) -> str:
    """Message of an error, with the options and arguments of a command for keywords."""
    names = _names(command)
    if isinstance(error, SpecError):
        field, value = error.fields["field"], error.fields["value"]
        what = _about(field, value, names)
        rest = f"{error.message}; {error.fields['remedy']}"
        text = f"{what}: {_translated(rest, names)}"
    else:
        text = _translated(str(error), names)
    notes = [_translated(note, names) for note in getattr(error, "__notes__", ())]
    return "\n".join([text, *notes])


def text_in_options(text: str, command: click.Command) -> str:
    """A text, such as a warning, with the options and arguments of a command for keywords."""
    return _translated(text, _names(command))


def _names(command: click.Command) -> dict[str, str]:
    """What a user types for each keyword."""
    names: dict[str, str] = {}
    for one in command.params:
        if isinstance(one, click.Option):
            option = next(opt for opt in one.opts if opt.startswith("--"))
            names[option.removeprefix("--").replace("-", "_")] = option
            names.setdefault(str(one.name), option)
        else:
            metavar = getattr(one, "metavar", None) or str(one.name).upper()
            names[str(one.name)] = metavar.removesuffix("...")
    names.setdefault("run_dir", RUN_DIR.variable)
    for keyword, candidates in _ALIASES.items():
        found = next((names[name] for name in candidates if name in names), None)
        if found is not None:
            names.setdefault(keyword, found)
    return names


def _about(field: str, value: Any, names: dict[str, str]) -> str:
    """What a message is about: an option or argument, and its value."""
    whole, _, part = field.partition(".")
    name = names.get(whole)
    if whole == "format" and value in (None, FORMAT):  # that of an array, not that of a file
        name = names.get("array_format", name)
    if name is None:
        return f"{field}={value!r}"
    if part:
        return f"{part} {value!r} of {name}"
    return name if value is None else f"{name} {_as_typed(value)}"


def _as_typed(value: Any) -> str:
    """A value as a user would type it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value if value and not re.search(r"\s", value) else repr(value)
    if isinstance(value, tuple):
        return ",".join(map(_index, value))
    match value:
        case [{"name": str(name), "configuration": configuration}] | {
            "name": str(name),
            "configuration": configuration,
        } if not configuration:
            return name
    return json.dumps(value, default=repr)


def _index(item: Any) -> str:
    """One index of a region, or one extent of a shape, as a user would type it."""
    if isinstance(item, slice):
        ends = (item.start, item.stop, *([] if item.step is None else [item.step]))
        return ":".join("" if end is None else str(end) for end in ends)
    if isinstance(item, tuple):
        return ":".join(map(str, item))
    return "..." if item is ... else str(item)


def _list(text: str) -> str:
    return ",".join(part.strip() for part in text.split(",") if part.strip())


def _translated(text: str, names: dict[str, str]) -> str:
    """A text with options for keywords."""
    for pattern, replacement in _PHRASES:
        text = re.sub(pattern, replacement, text)
    parts = _CALL.split(text)
    parts[::2] = [_without_calls(part, names) for part in parts[::2]]
    return "".join(parts)


def _without_calls(text: str, names: dict[str, str]) -> str:
    """A text that holds no call in Python, with options for keywords."""

    def value_of(found: re.Match[str]) -> str:
        name = names.get(found[1])
        if name is None:
            return found[0]
        given, between = found[2], "=" if name == RUN_DIR.variable else " "
        if given == "True":
            return name
        if "..." in given:  # not a value, but what stands for one
            return f"{name}{between}{given}"
        try:
            return f"{name}{between}{_as_typed(ast.literal_eval(given))}"
        except (SyntaxError, ValueError):
            return f"{name}{between}{given}"

    text = re.sub(
        r"""(?<![\w./-])([a-z_0-9]+)=("[^"]*"|'[^']*'|\([^)]*\)|\[[^\]]*\]|[\w.]+)""",
        value_of,
        text,
    )

    def name_of(found: re.Match[str]) -> str:
        return names.get(found[1], found[0])

    text = re.sub(r"(?<![\w./-])([a-z_0-9]+)=(?![^\s,;)])", name_of, text)
    text = re.sub(r"\[('[^'\]]*'(?:, '[^'\]]*')*)\]", lambda found: found[1].replace("'", ""), text)
    return re.sub(r"(?<![\w./-])([a-z]+(?:_[a-z0-9]+)+)\b(?![=(./])", name_of, text)
