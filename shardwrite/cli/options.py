"""Options that commands share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import click
from click.core import ParameterSource

from shardwrite.cli.completion import files, formats, one_of
from shardwrite.cli.values import Attributes, Extents, Json, Names, Numbers, OneCodec, Sizes, Value
from shardwrite.config.table import ACCEPT_SOURCE
from shardwrite.operations.keywords import (
    DropKeywords,
    ExclusiveKeywords,
    LayoutKeywords,
    NewKeywords,
    StripeKeywords,
)
from shardwrite.options import (
    ArrayKeywords,
    BeginKeywords,
    Keywords,
    NameKeywords,
    ReportKeywords,
    ResumeKeywords,
    StrategyKeywords,
    ViaKeywords,
    section_of,
    told_of,
)


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator that adds the options of several, in the order given."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class KeywordOption(click.Option):
    """An option that is made of a keyword."""

    def __init__(self, *args: Any, section: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


_PARSERS: dict[str, type[Value]] = {
    "attributes": Attributes,
    "codec": OneCodec,
    "json": Json,
    "names": Names,
    "numbers": Numbers,
    "sizes": Sizes,
}
_NUMBERS = {"int": int, "int | None": int, "float": float, "float | None": float}


def options_of(group: type[Keywords], *, without: Collection[str] = ()) -> Callable[[Any], Any]:
    """Options for the keywords of a group, except for some and for those that commands lack."""
    return combined(
        *(
            option_of(group, declared.name)
            for declared in dataclasses.fields(group)
            if declared.name not in without and told_of(declared).flag is not None
        )
    )


def option_of(group: type[Keywords], name: str, **how: Any) -> Callable[[Any], Any]:
    """The option for a keyword of a group.

    - `how`: keywords of click that hold in place of what the keyword tells.
    """
    declared = next(one for one in dataclasses.fields(group) if one.name == name)
    told = told_of(declared)
    flag = (told.flag or name).replace("_", "-")
    made = {"help": told.command_help or " ".join(told.help.split()), **dict(_reading(declared))}
    return click.option(
        f"--{flag}/--no-{flag}" if told.has_opposite else f"--{flag}",
        name,
        cls=KeywordOption,
        section=section_of(group, name),
        **{**made, **how},
    )


def _reading(declared: dataclasses.Field[Any]) -> Iterator[tuple[str, Any]]:
    """How click reads the value of a keyword, as keywords of an option."""
    told, annotation = told_of(declared), str(declared.type)
    if annotation in ("bool", "bool | None"):
        yield "is_flag", True
        if told.has_opposite:
            yield "default", declared.default
        return
    if told.parser == "patterns":
        yield "multiple", True
        yield "metavar", "PATTERN"
        return
    yield "default", None if declared.default is dataclasses.MISSING else declared.default
    if told.parser in _PARSERS:
        yield "type", _PARSERS[told.parser](*([told.example] if told.example else []))
    elif told.choices:
        yield "type", click.Choice(told.choices)
    elif told.least is not None:
        yield "type", click.IntRange(told.least, told.most)
    elif annotation in _NUMBERS:
        yield "type", _NUMBERS[annotation]
    elif told.parser:
        yield "metavar", told.parser.upper()
    if told.suggested:
        yield "shell_complete", one_of(*told.suggested)


def arguments_of(names: Collection[str], options: dict[str, Any]) -> tuple[str, ...]:
    """Words of a command line for those of some options that the user has given.

    - `options`: values of all options. A flag counts wherever its value comes from.
    """
    context = click.get_current_context()
    found: list[str] = []
    for option in context.command.params:
        key = str(option.name)
        if key not in names or key not in options or not isinstance(option, click.Option):
            continue
        value, flag = options[key], option.opts[0]
        is_given = context.get_parameter_source(key) is ParameterSource.COMMANDLINE
        if option.is_flag and isinstance(value, bool):
            no = option.secondary_opts
            found += [flag] if value else [no[0]] if is_given and no else []
        elif is_given:
            for one in value if option.multiple else [value]:
                found += [flag, _word(one, option.type)]
    return tuple(found)


def _word(value: Any, kind: object) -> str:
    """The text that an option reads as a value."""
    if value is None:
        return "none"
    if isinstance(kind, Attributes | Json) and value not in ("auto", "keep"):
        return json.dumps(value)
    if isinstance(value, tuple):
        return ",".join("" if item is None else str(item) for item in value)
    return str(value)


def _accept(context: click.Context, _: Any, value: bool) -> None:
    if value:
        import dask

        context.with_resource(dask.config.set({ACCEPT_SOURCE.path: True}))


accept_source_option = click.option(
    "--accept-source",
    is_flag=True,
    expose_value=False,
    callback=_accept,
    help="Go on with a run although the name or the time of SRC has changed. You say by this that "
    "its data are the same.",
)
source_id_option = click.option(
    "--source-id",
    metavar="NAME",
    help="Name of the data of SRC. Where it is the same, a run goes on. Default: made of its "
    "place, size and time.",
)
source_options = combined(
    source_id_option,
    accept_source_option,
    click.option(
        "--format",
        "source_format",
        shell_complete=formats,
        help="Format of SRC. Default: guessed from name and content.",
    ),
    click.option("--dataset", help="Path of the array inside SRC, as after :: in FILE::PATH."),
    click.option("--shape", type=Extents(), help="Shape of a raw file, such as 512,512,64."),
    click.option("--dtype", help="Type of the elements of a raw file, such as uint16."),
    click.option(
        "--offset", type=int, default=0, help="Number of bytes before the data of a raw file."
    ),
    click.option(
        "--source-chunks",
        type=Sizes(),
        help="Read SRC in chunks of this shape. Default: as the file has them.",
    ),
    click.option(
        "--decode-cf",
        is_flag=True,
        help="Unpack, mask and convert times as the attributes of SRC say (extra: cf). Give it "
        "for each file of an array, or for none.",
    ),
)
SOURCE_NAMES = [one.name for one in click.command()(source_options(lambda: None)).params]
manifest_option = option_of(ArrayKeywords, "manifest")
placing_option = option_of(StrategyKeywords, "strategy")
drop_hdf5_option = option_of(DropKeywords, "drop_hdf5")
layout_options = options_of(LayoutKeywords)
restart_option = option_of(BeginKeywords, "restart")
recheck_option = option_of(ResumeKeywords, "recheck")
durability_option = option_of(BeginKeywords, "durability")
via_option = option_of(ViaKeywords, "via")
exclusive_option = option_of(ExclusiveKeywords, "exclusive")
overwrite_option = option_of(NewKeywords, "overwrite")
stripe_option = option_of(StripeKeywords, "stripe_count")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and write nothing."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
keep_report_option = option_of(ReportKeywords, "keep_report")
name_option = option_of(NameKeywords, "name")
scheduler_option = click.option(
    "--scheduler",
    "address",
    shell_complete=files,
    help="Use a running dask scheduler: its address, or the path of its scheduler file.",
)
requeue_option = click.option(
    "--requeue",
    "n_requeues",
    type=click.IntRange(0),
    metavar="N",
    help="In a SLURM job that USR1 stops: put the job back into the queue, at most N times, if it "
    "has written shards.",
)
engine_options = combined(
    click.option(
        "--threads", type=click.IntRange(1), help="Number of threads. Default: one for each core."
    ),
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Use this many processes (a local dask cluster) instead of threads.",
    ),
    scheduler_option,
)
