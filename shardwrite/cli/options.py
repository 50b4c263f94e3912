"""Options that commands share, and those that say who does the work."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, cast

import click
from click.core import ParameterSource

from shardwrite.cli.completion import files, formats, one_of
from shardwrite.cli.terminal import Grouped
from shardwrite.cli.values import Attributes, Extents, Json, Names, Numbers, OneCodec, Sizes
from shardwrite.config.table import ACCEPT_SOURCE
from shardwrite.errors import SpecError
from shardwrite.operations.keywords import LayoutKeywords, NewKeywords
from shardwrite.options import (
    BeginKeywords,
    Keywords,
    NameKeywords,
    NamesKeywords,
    ReportKeywords,
    ResumeKeywords,
    SourceKeywords,
    StrategyKeywords,
    StripeKeywords,
    ViaKeywords,
    command_help_of,
    declared_in,
    flag_of,
    names,
    option_in,
    section_of,
)
from shardwrite.slurm.keywords import (
    ArrayJobKeywords,
    JobKeywords,
    TaskKeywords,
    WorkerKeywords,
)
from shardwrite.sources.keywords import FileKeywords

MEMORY_OF_A_THREAD = 2**30  # of processes that write parts, if the user does not say it


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One decorator that adds the options of several, in the order given."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def names_of(options: Callable[[Any], Any]) -> list[str]:
    """Names of the options that a decorator adds, in its order."""
    return [str(one.name) for one in click.command()(options(lambda: None)).params]


class KeywordOption(click.Option):
    """An option that is made of a keyword."""

    def __init__(self, *args: Any, section: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


_PARSERS: Mapping[str, Callable[..., Any]] = {
    "attributes": Attributes,
    "codec": OneCodec,
    "extents": Extents,
    "folder": partial(click.Path, file_okay=False),
    "json": Json,
    "names": Names,
    "numbers": Numbers,
    "sizes": Sizes,
}
_NUMBERS = {"int": int, "int | None": int, "float": float, "float | None": float}
_MANY = {"patterns": "PATTERN", "texts": "TEXT"}  # parsers of options that may be repeated


def options_of(
    group: type[Keywords], *, without: Collection[str] = (), unset: bool = False
) -> Callable[[Any], Any]:
    """Options for the keywords of a group, except for some and for those that commands lack.

    Arguments that may be given by their position are none of them; see `option_of`.

    - `unset`: see `option_of`.
    """
    return combined(
        *(
            option_of(group, declared.name, unset=unset)
            for declared in dataclasses.fields(group)
            if declared.kw_only
            and declared.name not in without
            and option_in(declared).flag is not None
        )
    )


def option_of(
    group: type[Keywords], name: str, *spelt: str, unset: bool = False, **how: Any
) -> Callable[[Any], Any]:
    """The option for a keyword of a group.

    - `spelt`: spellings of it and the name of its value, in place of those that the keyword says.
    - `unset`: it is None if it is not given, and its help tells the default.
    - `how`: keywords of click that hold in place of what the keyword says.
    """
    declared = declared_in(group, name)
    flag, opposite = flag_of(declared), option_in(declared).opposite
    made = {
        "help": command_help_of(group, declared),
        "section": section_of(group, name),
        **dict(_reading(declared)),
        **how,
    }
    if unset:
        default = made.pop("default", None)
        made["default"] = None
        if default not in (None, 0) and "efault:" not in made["help"]:
            made["help"] += f" Default: {default}."
    flags = f"{flag}/--{opposite}" if opposite else flag
    return click.option(*(spelt or (flags, name)), cls=KeywordOption, **made)


def _reading(declared: dataclasses.Field[Any]) -> Iterator[tuple[str, Any]]:
    """How click reads the value of a keyword, as keywords of an option."""
    described, annotation = option_in(declared), str(declared.type)
    if annotation in ("bool", "bool | None"):
        yield "is_flag", True
        if described.opposite:
            yield "default", declared.default
        return
    if described.parser in _MANY:
        yield "multiple", True
        yield "metavar", _MANY[described.parser]
        return
    yield "default", None if declared.default is dataclasses.MISSING else declared.default
    if described.parser in _PARSERS:
        yield "type", _PARSERS[described.parser](*filter(None, [described.example]))
    elif described.choices:
        yield "type", click.Choice(described.choices)
    elif described.least is not None:
        kind = click.FloatRange if annotation.startswith("float") else click.IntRange
        yield "type", kind(described.least, described.most)
    elif annotation in _NUMBERS:
        yield "type", _NUMBERS[annotation]
    elif described.parser:
        yield "metavar", described.parser.upper()
    if described.parser == "src":
        yield "shell_complete", files
    elif described.suggested:
        yield "shell_complete", one_of(*described.suggested)


def of_group(group: type[Keywords], options: dict[str, Any]) -> dict[str, Any]:
    """Those of some options that are keywords of a group."""
    return {name: options[name] for name in names(group) if name in options}


def given_of(those: Collection[str]) -> list[str]:
    """Those of some options that the user has typed, as they are spelt."""
    context = click.get_current_context()
    return [
        option.opts[0]
        for option in context.command.params
        if (name := str(option.name)) in those
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]


def refuse(those: Collection[str], why: str) -> None:
    """Refuse options that the user has typed, because of another one.

    - `why`: what is said of each of them, such as ``"does not go with --part"``.
    """
    for option in given_of(those):
        raise click.UsageError(f"{option} {why}")


def arguments_of(those: Collection[str], options: dict[str, Any]) -> tuple[str, ...]:
    """Words of a command line for those of some options that the user has given.

    If the user accepts the source as it is, so do these words.

    - `options`: values of all options. A flag counts wherever its value comes from.
    """
    context = click.get_current_context()
    found: list[str] = []
    for option in context.command.params:
        key = str(option.name)
        if key not in those or key not in options or not isinstance(option, click.Option):
            continue
        value, flag = options[key], option.opts[0]
        is_given = context.get_parameter_source(key) is ParameterSource.COMMANDLINE
        if option.is_flag and isinstance(value, bool):
            no = option.secondary_opts
            found += [flag] if value else [no[0]] if is_given and no else []
        elif is_given:
            for one in value if option.multiple else [value]:
                found += [flag, _word(one, option.type)]
    return (*found, *(["--accept-source"] if given_of({"accept_source"}) else []))


def _word(value: Any, kind: object) -> str:
    """The text that an option reads as a value."""
    if value is None:
        return "none"
    if isinstance(kind, Json) and value not in ("auto", "keep"):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return ",".join(f"{'...' if key is ... else key}={size}" for key, size in value.items())
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
source_id_option = option_of(
    SourceKeywords,
    "source_id",
    metavar="NAME",
    section="Source",
    help="Name of the data of SRC. Where it is the same, a run goes on. Default: made of its "
    "place, size and time.",
)
source_options = combined(
    source_id_option,
    accept_source_option,
    option_of(FileKeywords, "format", "--format", "source_format", shell_complete=formats),
    options_of(FileKeywords, without=("format", "chunks")),
    option_of(FileKeywords, "chunks", "--source-chunks", "source_chunks"),
    click.option(
        "--decode-cf",
        is_flag=True,
        cls=KeywordOption,
        section=FileKeywords.section,
        help="Unpack, mask and convert times as the attributes of SRC say (extra: cf). Give it "
        "for each file of an array, or for none.",
    ),
)
SOURCE_NAMES = names_of(source_options)
FILE_NAMES = [name for name in SOURCE_NAMES if name in names(FileKeywords)]
placing_option = option_of(StrategyKeywords, "strategy")
layout_options = options_of(LayoutKeywords)
restart_option = option_of(BeginKeywords, "restart")
recheck_option = option_of(ResumeKeywords, "recheck")
durability_option = option_of(BeginKeywords, "durability")
via_option = option_of(ViaKeywords, "via")
overwrite_option = option_of(NewKeywords, "overwrite")
stripe_option = option_of(StripeKeywords, "stripe_count")
begin_options = combined(overwrite_option, restart_option, accept_source_option, durability_option)


def page_option(what: str) -> Callable[[Any], Any]:
    """The option that names a page of HTML to write.

    - `what`: what the page shows, which its help says.
    """
    return click.option(
        "--html",
        "html_path",
        type=click.Path(dir_okay=False, writable=True),
        help=f"Also write {what}.",
    )


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, and write nothing."
)
keep_report_option = option_of(ReportKeywords, "keep_report")
name_option = option_of(NameKeywords, "name")
names_option = option_of(NamesKeywords, "names")
scheduler_option = click.option(
    "--scheduler",
    "address",
    shell_complete=files,
    help="Use a running dask scheduler: its address, or the path of its scheduler file.",
)
CONSUMED = (
    "With --consume, each file of SRC is removed as soon as what was made of it is durable and was "
    "compared with it. In the end SRC is gone. There is no way back."
)
"""What the commands say that remove SRC."""

_REQUEUE = (
    "In a SLURM job that USR1 stops: put the job back into the queue, at most N times, if it has "
    "written shards."
)
requeue_option = option_of(
    TaskKeywords,
    "n_requeues",
    "--requeue",
    "n_requeues",
    default=None,
    section="Run",
    metavar="N",
    help=_REQUEUE,
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
ENGINE_NAMES = names_of(engine_options)


# ---- Work that SLURM jobs do


_OF_JOBS = names(JobKeywords)
_OF_WORKERS = {*names(WorkerKeywords)}.difference(_OF_JOBS)
_OF_ARRAYS = {*names(ArrayJobKeywords), "stripe_count"}.difference(_OF_JOBS, ["n_requeues"])

array_options = combined(
    click.option(
        "--submit",
        is_flag=True,
        cls=KeywordOption,
        section=JobKeywords.section,
        help="Let a SLURM job array do the work: make the plan, and submit tasks that write the "
        "parts, and a job that publishes DST after them. If anything was interrupted, run the same "
        "command again: tasks whose part is complete end at once.",
    ),
    options_of(ArrayJobKeywords, without=["n_requeues"], unset=True),
    option_of(
        TaskKeywords,
        "n_requeues",
        "--requeue",
        "--requeues",
        "n_requeues",
        default=None,
        section="Run",
        help=f"{_REQUEUE} Default: {TaskKeywords.n_requeues} for a job array, or else never.",
    ),
)
"""Options of commands whose work a job array can do, and the one that says so."""

worker_options = combined(
    click.option(
        "--cluster",
        type=click.Choice(["slurm"]),
        cls=KeywordOption,
        section=WorkerKeywords.section,
        help="Let dask workers do the work that are SLURM jobs. This process submits them.",
    ),
    options_of(WorkerKeywords, without=_OF_JOBS, unset=True),
)
"""Options of commands whose work dask workers can do that are jobs."""


class Submittable(Grouped):
    """A command whose work a job array can do.

    - `here`: names of options that are only for work that this process does, or has dask do.
    """

    def __init__(self, *args: Any, here: Collection[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.here = here

    @property
    def not_submitted(self) -> Collection[str]:
        """Names of options that do not go with `--submit`."""
        return {*self.here, *ENGINE_NAMES, *_OF_WORKERS, "cluster"}

    def submitting(self, name: str) -> Submittable:
        """A command of another name that does what this one does with `--submit`."""
        run, hidden = cast("Callable[..., None]", self.callback), {*self.not_submitted, "submit"}
        (flag,) = (one for one in self.params if one.name == "submit")
        told = f"Do what `shardwrite {self.name} --submit` does."

        def submit(**options: Any) -> None:
            run(**{**options, "submit": True})

        return Submittable(
            name,
            here=self.here,
            callback=submit,
            params=[_hidden(one) if one.name in hidden else one for one in self.params],
            help=f"{told}\n\n{cast('click.Option', flag).help}",
        )


def _hidden(option: click.Parameter) -> click.Parameter:
    """A copy of an option that is taken, and not shown."""
    found = copy.copy(option)
    setattr(found, "hidden", True)  # noqa: B010 (arguments have no such field)
    return found


def check_jobs(*, submit: bool, cluster: str | None = None, allowed: Collection[str] = ()) -> None:
    """Refuse options that do not go with those which say who does the work.

    - `allowed`: names of options of job arrays that mean something else here, too.
    """
    command = cast("Submittable", click.get_current_context().command)
    of_arrays = _OF_ARRAYS.difference(allowed)
    if submit:
        refuse(command.not_submitted, "does not go with --submit")
    elif cluster is not None:
        refuse(of_arrays, "goes with --submit, and not with --cluster")
        if given_of(ENGINE_NAMES):
            raise click.UsageError(
                "--cluster goes with none of --threads, --workers and --scheduler: its workers are "
                "jobs, so give --cores"
            )
        if not given_of(["jobs"]):
            raise SpecError("how many workers?", field="jobs", value=None, remedy="give --jobs")
    else:
        refuse(of_arrays, "is for job arrays: give --submit")
        refuse(_OF_WORKERS, "is for workers that are jobs: give --cluster slurm")
        has_workers = any(one.name == "cluster" for one in command.params)
        refuse(_OF_JOBS, f"is for jobs: give --submit{' or --cluster slurm' * has_workers}")


def jobs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Remove what is said of jobs from the options of a command; what is not given is left out."""
    of_jobs = {*names(ArrayJobKeywords), *_OF_WORKERS}
    taken = {name: options.pop(name) for name in [*options] if name in of_jobs}
    return {name: value for name, value in taken.items() if value not in (None, ())}
