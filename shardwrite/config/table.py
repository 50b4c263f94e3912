"""The table of all settings.

`docs/make.py` makes the reference from this table. `shardwrite.yaml` holds the same defaults, with
the same words; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardwrite.config import kinds
from shardwrite.config.kinds import Kind

PREFIX = "shardwrite"
T = TypeVar("T")


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


RUN_DIR = Setting(
    "run-dir",
    kinds.or_null(kinds.text),
    None,
    "Directory for the state of runs on arrays that lie in no directory. All processes of a run "
    "must see it. With null, the state of a run on a bucket lies in the bucket.",
    keyword="run_dir",
)
STORAGE = Setting(
    "storage",
    kinds.mapping,
    {},
    "Options of obstore for URLs of buckets, such as endpoint and region. Keys and tokens are "
    "better kept in the environment.",
    keyword="storage_options",
    is_secret=True,
)
VIA = Setting(
    "bucket.via",
    kinds.or_null(kinds.text),
    None,
    "Directory on each machine's own disk in which shards wait until they are put into a bucket. "
    "It may name variables, such as $SLURM_TMPDIR. With null, they wait in memory.",
    keyword="via",
    travels=True,
)
EXCLUSIVE = Setting(
    "bucket.exclusive",
    kinds.flag,
    False,
    "Whether nobody else writes to an array while it is updated. This is asked only where a bucket "
    "cannot refuse a request if an object has changed meanwhile.",
    keyword="exclusive",
    fills=True,
)
DURABILITY = Setting(
    "durability",
    kinds.or_null(kinds.one_of("full", "batch", "none")),
    None,
    "Whether shards are synced to disk one by one, many at a time, or not at all. With null, the "
    "strongest that the store can promise. Stores that cannot sync ignore it.",
    keyword="durability",
)
STRATEGY = Setting(
    "strategy",
    kinds.text,
    "fixed-order",
    "Write strategy, or the order of inner chunks in a shard: C, F or morton.",
    keyword="strategy",
    fills=True,
)
WRITE_EMPTY_CHUNKS = Setting(
    "write-empty-chunks",
    kinds.flag,
    False,
    "Whether inner chunks that hold only the fill value are stored.",
    keyword="write_empty_chunks",
    fills=True,
)
MEMORY_LIMIT = Setting(
    "memory-limit",
    kinds.or_null(kinds.size),
    None,
    "Memory of each worker process. With null, the limit of the cluster, the job or the machine.",
    keyword="memory_limit",
    fills=True,
)
MAX_GRAPH_TASKS = Setting(
    "max-graph-tasks",
    kinds.count,
    100_000,
    "Number of tasks that the scheduler may hold at a time.",
    keyword="max_graph_tasks",
    fills=True,
)
MAX_SOURCE_RERUNS = Setting(
    "max-source-reruns",
    kinds.positive,
    1.25,
    "How often a source task may run on average, if the work is cut into several graphs.",
    keyword="max_source_reruns",
    fills=True,
)
PROGRESS = Setting(
    "progress",
    kinds.flag,
    False,
    "Whether functions show a progress bar. Commands always show one, unless they print JSON.",
    keyword="progress",
    fills=True,
)
SHARDS = Setting(
    "array.shards",
    kinds.auto_nbytes,
    "auto",
    'Size of a shard of new arrays, where "auto" is asked for. With auto, about 64 MiB of decoded '
    "data, or the size of a source chunk.",
    keyword="shards",
)
INNER_CHUNKS = Setting(
    "array.chunks",
    kinds.auto_nbytes,
    "auto",
    'Size of an inner chunk of new arrays, where "auto" is asked for. With auto, about 512 KiB of '
    "decoded data.",
    keyword="chunks",
)
COMPRESSORS = Setting(
    "array.compressors",
    kinds.codecs,
    "auto",
    'Compressors of new arrays, where "auto" is asked for. With auto, zstd followed by crc32c. '
    "A name alone is followed by crc32c, too.",
    keyword="compressors",
)
HEARTBEAT = Setting(
    "lease.heartbeat",
    kinds.seconds,
    15.0,
    "Time between two signs of life of a process that works on a run, in seconds.",
    travels=True,
)
TTL = Setting(
    "lease.ttl",
    kinds.seconds,
    120.0,
    "Time without a sign of life after which a process on another host counts as dead, in seconds. "
    "It must be more than twice the heartbeat.",
    travels=True,
)
CLAIM_WAIT = Setting(
    "lease.claim-wait",
    kinds.seconds,
    300.0,
    "Time for which a process waits for a shard that another process changes, in seconds.",
    travels=True,
)
RETRY_PAUSES = Setting(
    "retry-pauses",
    kinds.pauses,
    (0.05, 0.2, 0.8),
    "Pauses before a failed commit is tried again, in seconds. An empty list means no retries.",
    travels=True,
)
READ_LIMIT = Setting(
    "read.limit",
    kinds.size,
    "32 MiB",
    "Largest document or file of run state that is read.",
    travels=True,
)
CHUNK_LIMIT = Setting(
    "read.chunk-limit",
    kinds.size,
    "128 MiB",
    "Largest inner chunk of texts or bytes of variable length, before it is encoded.",
    travels=True,
)
INDEX_LIMIT = Setting(
    "precomputed.index-limit",
    kinds.size,
    "64 MiB",
    "Largest index of a shard in Neuroglancer's format that is written or read.",
    keyword="index_limit",
    travels=True,
)
SOURCE_CHUNKS = Setting(
    "source.chunk-size",
    kinds.size,
    "64 MiB",
    "Size up to which a file is read at a time, if nobody gives the chunks.",
    keyword="source_chunks",
)
ACCEPT_SOURCE = Setting(
    "source.accept",
    kinds.flag,
    False,
    "Whether to go on with a run although the name or the time of its source has changed. You say "
    "by it that the data are the same. Set it for one call, and not for good.",
)
CLUSTER_ATTEMPTS = Setting(
    "cluster.attempts",
    kinds.count,
    3,
    "How often a task is run whose workers die, before the run gives up.",
)
SLURM_TIMEOUT = Setting(
    "slurm.command-timeout",
    kinds.seconds,
    60.0,
    "Time in which a command of SLURM must answer, in seconds.",
)
SLURM_START = Setting(
    "slurm.start-timeout",
    kinds.seconds,
    120.0,
    "Time in which a scheduler or a first worker inside a job must appear, in seconds.",
)
LOG_LEVEL = Setting(
    "log-level",
    kinds.one_of("debug", "info", "warning", "error"),
    "warning",
    "Least level of the log that commands print. Functions use the logging of your program.",
    keyword="log_level",
    fills=True,
)

SETTINGS: tuple[Setting[Any], ...] = (
    SHARDS,
    INNER_CHUNKS,
    COMPRESSORS,
    STRATEGY,
    WRITE_EMPTY_CHUNKS,
    DURABILITY,
    RUN_DIR,
    STORAGE,
    VIA,
    EXCLUSIVE,
    MEMORY_LIMIT,
    MAX_GRAPH_TASKS,
    MAX_SOURCE_RERUNS,
    PROGRESS,
    LOG_LEVEL,
    RETRY_PAUSES,
    HEARTBEAT,
    TTL,
    CLAIM_WAIT,
    READ_LIMIT,
    CHUNK_LIMIT,
    INDEX_LIMIT,
    SOURCE_CHUNKS,
    ACCEPT_SOURCE,
    CLUSTER_ATTEMPTS,
    SLURM_TIMEOUT,
    SLURM_START,
)


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
