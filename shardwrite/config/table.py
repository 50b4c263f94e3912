"""The table of all settings, and their values.

`docs/make.py` makes the reference from this table. `shardwrite.yaml` holds the same defaults, with
the same words; a test compares the two.

A setting has the value that was decided for a run, or else the value in the configuration of dask.
This package knows nothing of dask: `use` is called with a function that reads its configuration.

Decisions are taken in the process that begins a run. `Decided` holds them, and travels with the
tasks, so that workers whose files and environment differ do the same.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

import shardwrite.options as groups
from shardwrite._dataclass import dataclass
from shardwrite.checks import is_number, is_whole
from shardwrite.errors import SpecError

# ---- Kinds of settings: how a value is written, and what it becomes


T = TypeVar("T")

S = TypeVar("S")

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}

_DURATIONS = {"": 1, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Kind of a setting."""

    label: str  # name of the kind, for the reference
    remedy: str  # what to give, for the message that refuses a wrong value
    # Function that turns a value of the configuration into a value of this kind. It raises
    # ValueError or TypeError if the value is wrong.
    parse: Callable[[Any], T]


def as_nbytes(value: object) -> int:
    """Number of bytes of a size such as ``"256MB"``, ``"1.5 GiB"`` or 1000.

    Fractions of a byte are cut off, and a number without a unit has none.

    Examples
    --------
    >>> as_nbytes("1.5 KiB"), as_nbytes(100)
    (1536, 100)
    """
    nbytes = 0
    if isinstance(value, str):
        nbytes = _nbytes_of(value)
    elif is_whole(value):
        nbytes = value
    if nbytes < 1:
        raise ValueError(f"{value!r} is not a positive number of bytes")
    return nbytes


@functools.lru_cache
def _nbytes_of(size: str) -> int:
    """Number of bytes, or 0 if the text is no size."""
    match = re.fullmatch(
        r"\s*(\d{1,1000}(?:\.\d{1,1000})?)\s*([kmgt]i?)?b?\s*", size, re.IGNORECASE
    )
    if match is None or ("." in match[1] and match[2] is None):
        return 0
    whole, _, decimals = match[1].partition(".")
    unit: int = 10 ** len(decimals)
    return int(whole + decimals) * _SUFFIXES[(match[2] or "").lower()] // unit


def _seconds(value: object) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", value)
        if not match or match[2] not in _DURATIONS:
            raise ValueError(f"{value!r} is no time")
        value = float(match[1]) * _DURATIONS[match[2]]
    return _number(value)


def _number(value: object) -> float:
    if not is_number(value):
        raise TypeError(f"{value!r} is no number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} is not positive")
    return float(value)


def _count(value: object) -> int:
    if not is_whole(value, 1):
        raise ValueError(f"{value!r} is not a positive integer")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is no text")
    return value


def _auto_nbytes(value: object) -> str:
    if value == "auto":
        return "auto"
    if not isinstance(value, str):
        raise TypeError("a number could be meant as an extent in elements")
    return f"{as_nbytes(value)}B"


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError("no mapping of names")
    return dict(value)


def _codecs(value: object) -> Any:
    is_list = isinstance(value, list | tuple) and all(
        isinstance(one, str | dict) and one for one in value
    )
    if not (is_list or (isinstance(value, str | dict) and value)):
        raise TypeError(f"{value!r} names no codecs")
    return list(value) if isinstance(value, list | tuple) else value


def _pauses(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return tuple(0.0 if _is_zero(one) else _seconds(one) for one in value)


def _is_zero(value: object) -> bool:
    return is_number(value) and value == 0


size = Kind("size", 'give for instance "32 MiB"', as_nbytes)

auto_nbytes = Kind("size or auto", 'give "auto", or a size in bytes such as "256MB"', _auto_nbytes)

seconds = Kind("time", "give a positive number of seconds", _seconds)

positive = Kind("number", "give a positive number", _number)

count = Kind("integer", "give an integer, 1 or more", _count)

flag = Kind("true or false", "give true or false", _flag)

text = Kind("text", "give a text", _text)

codecs = Kind(
    "codecs", 'give "auto", the name of a codec, or a list of codecs as in zarr.json', _codecs
)

mapping = Kind("mapping", "give names and values", _mapping)

pauses = Kind("list of times", "give a list of seconds, such as [0.05, 0.2, 0.8]", _pauses)


def one_of(*choices: str) -> Kind[str]:
    """Kind of a setting that is one of some words."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is no choice")
        return value

    return Kind(", ".join(choices), f"use one of {list(choices)}", parse)


def or_null(kind: Kind[S]) -> Kind[S | None]:
    """Kind of a setting that may be null, too."""

    def parse(value: object) -> S | None:
        return None if value is None else kind.parse(value)

    return Kind(f"{kind.label}, or null", f"{kind.remedy}, or null", parse)


# ---- The settings


PREFIX = "shardwrite"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A default that users can change."""

    name: str  # name in the configuration, without ``shardwrite.``
    kind: Kind[T]  # what its values are
    # Value that holds if no one has set another, as it is written in the configuration
    default: Any
    meaning: str  # description, in one or two sentences
    # Keyword of functions, and option of commands, that takes precedence
    keyword: str | None = None
    fills: bool = False  # whether the value is given to functions that are called without `keyword`
    travels: bool = False  # whether workers use the value of the process that began the run
    is_secret: bool = False  # whether the value may hold credentials, so that it is never shown

    @property
    def path(self) -> str:
        """Full name in the configuration of dask."""
        return f"{PREFIX}.{self.name}"

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "DASK_" + self.path.upper().replace("-", "_").replace(".", "__")


def of_keyword(
    group: type[groups.Keywords], name: str, kind: Kind[T], meaning: str, **more: bool
) -> Setting[T]:
    """Setting that is the default of a keyword of a group."""
    *_, last = name.split(".")
    keyword = last.replace("-", "_")
    default = groups.declared_in(group, keyword).default
    return Setting(name, kind, default, meaning, keyword=keyword, **more)


SHARDS = of_keyword(
    groups.ArrayKeywords,
    "array.shards",
    auto_nbytes,
    'Size of a shard of new arrays, where "auto" is asked for. With auto, about 64 MiB of decoded '
    "data, or the size of a source chunk.",
)

INNER_CHUNKS = of_keyword(
    groups.ArrayKeywords,
    "array.chunks",
    auto_nbytes,
    'Size of an inner chunk of new arrays, where "auto" is asked for. With auto, about 512 KiB of '
    "decoded data.",
)

COMPRESSORS = of_keyword(
    groups.ArrayKeywords,
    "array.compressors",
    codecs,
    'Compressors of new arrays, where "auto" is asked for. With auto, zstd followed by crc32c. '
    "A name alone is followed by crc32c, too.",
)

ADVICE = Setting(
    "array.advice",
    flag,
    True,
    "Whether a warning names better shapes where those that are given make too many or too small "
    "files, large indexes, or shards that nearly fit chunks of the source.",
)

STRATEGY = of_keyword(
    groups.StrategyKeywords,
    "strategy",
    text,
    "Write strategy, or the order of inner chunks in a shard: C, F or morton.",
    fills=True,
)

WRITE_EMPTY_CHUNKS = of_keyword(
    groups.EmptyKeywords,
    "write-empty-chunks",
    flag,
    "Whether inner chunks that hold only the fill value are stored.",
    fills=True,
)

DURABILITY = of_keyword(
    groups.DurabilityKeywords,
    "durability",
    or_null(one_of(*groups.DURABILITIES)),
    "Whether shards are synced to disk one by one, many at a time, or not at all. With null, the "
    "strongest that the store can promise. Stores that cannot sync ignore it.",
)

RUN_DIR = of_keyword(
    groups.StateKeywords,
    "run-dir",
    or_null(text),
    "Directory for the state of runs on arrays that lie in no directory. All processes of a run "
    "must see it. With null, the state of a run on a bucket lies in the bucket.",
)

STORAGE = Setting(
    "storage",
    mapping,
    {},
    "Options of obstore for URLs of buckets, such as endpoint and region. Keys and tokens are "
    "better kept in the environment.",
    keyword="storage_options",
    is_secret=True,
)

VIA = of_keyword(
    groups.ViaKeywords,
    "bucket.via",
    or_null(text),
    "Directory on each machine's own disk in which shards wait until they are put into a bucket. "
    "It may name variables, such as $SLURM_TMPDIR. With null, they wait in memory.",
    travels=True,
)

EXCLUSIVE = of_keyword(
    groups.ExclusiveKeywords,
    "bucket.exclusive",
    flag,
    "Whether nobody else writes to an array while it is updated. This is asked only where a bucket "
    "cannot refuse a request if an object has changed meanwhile.",
    fills=True,
)

MEMORY_LIMIT = of_keyword(
    groups.MemoryKeywords,
    "memory-limit",
    or_null(size),
    "Memory of each worker process. With null, the limit of the cluster, the job or the machine.",
    fills=True,
)

MAX_GRAPH_TASKS = of_keyword(
    groups.GraphKeywords,
    "max-graph-tasks",
    count,
    "Number of tasks that the scheduler may hold at a time.",
    fills=True,
)

MAX_SOURCE_RERUNS = of_keyword(
    groups.PlanKeywords,
    "max-source-reruns",
    positive,
    "How often a source task may run on average, if the work is cut into several graphs.",
    fills=True,
)

PROGRESS = Setting(
    "progress",
    flag,
    False,
    "Whether functions show a progress bar. Commands always show one, unless they print JSON.",
    keyword="progress",
    fills=True,
)

LOG_LEVEL = Setting(
    "log-level",
    one_of("debug", "info", "warning", "error"),
    "warning",
    "Least level of the log that commands print. Functions use the logging of your program.",
    keyword="log_level",
    fills=True,
)

RETRY_PAUSES = Setting(
    "retry-pauses",
    pauses,
    (0.05, 0.2, 0.8),
    "Pauses before a failed commit is tried again, in seconds. An empty list means no retries.",
    travels=True,
)

HEARTBEAT = Setting(
    "lease.heartbeat",
    seconds,
    15.0,
    "Time between two signs of life of a process that works on a run, in seconds.",
    travels=True,
)

TTL = Setting(
    "lease.ttl",
    seconds,
    120.0,
    "Time without a sign of life after which a process on another host counts as dead, in seconds. "
    "It must be more than twice the heartbeat.",
    travels=True,
)

CLAIM_WAIT = Setting(
    "lease.claim-wait",
    seconds,
    300.0,
    "Time for which a process waits for a shard that another process changes, in seconds.",
    travels=True,
)

READ_LIMIT = Setting(
    "read.limit",
    size,
    "32 MiB",
    "Largest document or file of run state that is read.",
    travels=True,
)

READ_GAP = Setting(
    "read.gap",
    size,
    "64 KiB",
    "Inner chunks of a shard that lie no farther apart are read by one request, where requests go "
    "over a network.",
    travels=True,
)

READ_REQUEST = Setting(
    "read.request-size",
    size,
    "8 MiB",
    "Largest request for several inner chunks of a shard.",
    travels=True,
)

INDEX_CACHE = Setting(
    "read.index-cache",
    size,
    "64 MiB",
    "Memory of a process for the indexes of shards that it has read. With 1 B, none is kept.",
    travels=True,
)

CHUNK_CACHE = Setting(
    "read.chunk-cache",
    or_null(size),
    None,
    "Memory of a process for decoded inner chunks, for programs that read some of them often, such "
    "as viewers. With null, none is kept.",
    travels=True,
)

READ_IN_FLIGHT = Setting(
    "read.in-flight",
    count,
    32,
    "Requests for inner chunks that a process has under way at a time, where requests go over a "
    "network. They may be for one shard or for many.",
    travels=True,
)

READ_IN_FLIGHT_SIZE = Setting(
    "read.in-flight-size",
    size,
    "64 MiB",
    "Size of these requests together. They count until their inner chunks are decoded. A larger "
    "request is made alone.",
    travels=True,
)

READ_THREADS = Setting(
    "read.threads",
    or_null(count),
    None,
    "Threads that read the shards of an array that is indexed outside of dask. With null, as many "
    "as there are cores. Where requests go over a network, at least as many as there may be under "
    "way.",
)

CHUNK_LIMIT = Setting(
    "read.chunk-limit",
    size,
    "128 MiB",
    "Largest inner chunk of texts or bytes of variable length, before it is encoded.",
    travels=True,
)

INDEX_LIMIT = Setting(
    "precomputed.index-limit",
    size,
    "64 MiB",
    "Largest index of a shard in Neuroglancer's format that is written or read.",
    keyword="index_limit",
    travels=True,
)

SOURCE_CHUNKS = Setting(
    "source.chunk-size",
    size,
    "64 MiB",
    "Size up to which a file is read at a time, if nobody gives the chunks.",
    keyword="source_chunks",
)

ACCEPT_SOURCE = Setting(
    "source.accept",
    flag,
    False,
    "Whether to go on with a run although the name or the time of its source has changed. You say "
    "by it that the data are the same. Set it for one call, and not for good.",
)

CLUSTER_ATTEMPTS = Setting(
    "cluster.attempts",
    count,
    3,
    "How often a task is run whose workers die, before the run gives up.",
)

SLURM_TIMEOUT = Setting(
    "slurm.command-timeout",
    seconds,
    60.0,
    "Time in which a command of SLURM must answer, in seconds.",
)

SLURM_START = Setting(
    "slurm.start-timeout",
    seconds,
    120.0,
    "Time in which a scheduler or a first worker inside a job must appear, in seconds.",
)

SETTINGS: tuple[Setting[Any], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Setting)
)
"""All of them, in the order of the file of defaults and of the reference."""


def as_tree() -> dict[str, Any]:
    """All defaults as a nested mapping, as a configuration holds them."""
    tree: dict[str, Any] = {}
    for setting in SETTINGS:
        *parents, last = setting.path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        default = setting.default
        node[last] = list(default) if isinstance(default, tuple) else default
    return tree


# ---- Values of settings


Look = Callable[[Setting[Any]], Any]
"""Function that gives the value of a setting in the configuration, not parsed."""

_TRAVELLING = tuple(setting for setting in SETTINGS if setting.travels)

_decided: ContextVar[Mapping[str, Any] | None] = ContextVar("shardwrite-decided", default=None)


def _defaults(setting: Setting[Any]) -> Any:
    return setting.default


def _no_source(setting: Setting[Any]) -> str:
    return setting.path


_look: list[tuple[Look, Callable[[Setting[Any]], str]]] = [(_defaults, _no_source)]


def use(look: Look, where: Callable[[Setting[Any]], str]) -> None:
    """Set the functions that read the configuration.

    - `look`: function that gives the value of a setting, not parsed.
    """
    _look[:] = [(look, where)]


def value_of(setting: Setting[T]) -> T:
    """Value of a setting."""
    decided = _decided.get()
    if decided is not None and setting.name in decided:
        found: T = decided[setting.name]
        return found
    look, _ = _look[-1]
    return parsed(setting, look(setting))


def parsed(setting: Setting[T], value: Any) -> T:
    """Check a value of a setting, and turn it into a value of its kind."""
    try:
        return setting.kind.parse(value)
    except (TypeError, ValueError):
        raise refused(setting, value) from None


def refused(setting: Setting[Any], value: Any, message: str = "", remedy: str = "") -> SpecError:
    """Error that refuses the value of a setting.

    - `message`, `remedy`: what is wrong, and what to do. By default, the value is of the wrong
      kind.
    """
    _, where = _look[-1]
    return SpecError(
        f"{message or 'not a valid value'} (set {where(setting)})",
        field=setting.path,
        value=type(value).__name__ if setting.is_secret else value,
        remedy=remedy or setting.kind.remedy,
    )


@dataclass(frozen=True, slots=True)
class Decided:
    """Values of the settings that travel with the tasks of a run."""

    values: tuple[tuple[str, Any], ...]  # name and value of each setting

    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        """Use these values in this thread until the block ends."""
        token = _decided.set(dict(self.values))
        try:
            yield
        finally:
            _decided.reset(token)


def decided_settings() -> Decided:
    """Values, as they hold here and now, of the settings that go to workers with a task."""
    return Decided(tuple((setting.name, value_of(setting)) for setting in _TRAVELLING))
