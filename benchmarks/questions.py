"""What is measured for the page of figures, and which questions it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cases import CODECS
from benchmarks.results import MEMORY, RATE, Results

__all__ = ["EQUAL", "MEASUREMENTS", "QUESTIONS", "WHY_MISSED", "Loss", "Measurement", "Question"]

EQUAL = 0.05
"""Repeats differ by more than this, so what differs by less counts as equal."""
_WRITES = ("codecs", "encode", "engines", "format", "plan", "runs", "stores", "write")


@dataclass(frozen=True)
class Measurement:
    """Numbers that commands give together.

    Parameters
    ----------
    commands : tuple of str
        Modules with their arguments. ``MEMORY``, ``DISK`` and ``SCRATCH`` stand for directories.
    kind : str
        How what they print is read: see `benchmarks.results.numbers_of`.
    of : tuple of str
        Folders of the package whose changes make the numbers old.
    tiny : tuple of str
        The same commands at a size that only shows that they work.
    """

    commands: tuple[str, ...]
    kind: str
    of: tuple[str, ...]
    tiny: tuple[str, ...]


_SIDE = "benchmarks.side_by_side --json SCRATCH/raw.json --markdown SCRATCH/table"
_SMALL = f"{_SIDE} --scale small --repeats 1"
_COLD = f"{_SIDE} --scale small --repeats 2 --cold --cases zstd-64,slabs,many-shards"
_THROUGHPUT = "benchmarks.throughput --directory MEMORY --output SCRATCH/lines"
_DATASETS = "benchmarks.datasets --contestants shardwrite,xarray,xarray-zarrs"
_SYNCED = "shardwrite-full,tensorstore-sync,shardwrite,tensorstore"
MEASUREMENTS = {
    "side-by-side": Measurement(
        (f"{_SIDE} --scale default --repeats 2 --once-above 2 --dir MEMORY",),
        "side by side",
        _WRITES,
        (f"{_SMALL} --cases lz4-64,many-shards --contestants shardwrite,tensorstore --dir MEMORY",),
    ),
    "cold": Measurement(
        (f"{_COLD} --contestants shardwrite,dask+zarr-python,dask+zarrs,tensorstore --dir DISK",),
        "side by side",
        _WRITES,
        (f"{_SMALL} --cold --cases lz4-64 --contestants shardwrite,tensorstore --dir DISK",),
    ),
    "durability": Measurement(
        (
            f"{_SIDE} --scale small --repeats 2 --cases zstd-64,none-64,many-shards --contestants {_SYNCED} --dir DISK",
        ),
        "side by side",
        _WRITES,
        (f"{_SMALL} --cases none-64 --contestants shardwrite-full,tensorstore-sync --dir DISK",),
    ),
    "bare-loop": Measurement(
        (
            f"{_SIDE} --scale default --repeats 2 --cases zstd-64,lz4-64,none-16 --contestants shardwrite,bare-loop --dir MEMORY",
        ),
        "side by side",
        _WRITES,
        (f"{_SMALL} --cases none-64 --contestants shardwrite,bare-loop --dir MEMORY",),
    ),
    "plans": Measurement(
        ("benchmarks.scale plan --sources blocks,shards,line --shards 10000,1000000,10000000",),
        "scale",
        ("plan", "runs"),
        ("benchmarks.scale plan --sources blocks --shards 100",),
    ),
    "tasks": Measurement(
        ("benchmarks.scale run --sources blocks,shards --shards 10000,1000000 --directory MEMORY",),
        "scale",
        ("engines", "journal", "plan", "runs", "write"),
        ("benchmarks.scale run --sources blocks --shards 100 --workers 1 --directory MEMORY",),
    ),
    "local": Measurement(
        ("benchmarks.scale local --sources shards --shards 100000 --directory MEMORY",),
        "scale",
        ("journal", "operations", "plan", "runs", "write"),
        ("benchmarks.scale local --sources shards --shards 100 --steps first --directory MEMORY",),
    ),
    "scaling": Measurement(
        (f"{_THROUGHPUT} --workers 0,1,2 --threads 1,2 --scaling strong,weak",),
        "throughput",
        _WRITES,
        (
            f"{_THROUGHPUT} --workers 0 --threads 1 --shape 32,32,32 --shards 16,16,16 --chunks 8,8,8",
        ),
    ),
    "codecs": Measurement(
        ("benchmarks.codecs --dir MEMORY/sources",),
        "table 2 1",
        ("codecs",),
        ("benchmarks.codecs --mbytes 1 --repeats 1 --sides 64,16",),
    ),
    "update": Measurement(
        ("benchmarks.update --repeats 3 --dir MEMORY",),
        "table 0 1",
        ("format", "journal", "runs", "stores", "write"),
        ("benchmarks.update --repeats 1 --side 64 --dir MEMORY",),
    ),
    "verify": Measurement(
        ("benchmarks.verify --repeats 2 --dir MEMORY",),
        "table 1 1",
        ("codecs", "format", "operations", "read", "stores"),
        ("benchmarks.verify --repeats 1 --cases lz4-32 --dir MEMORY",),
    ),
    "stream": Measurement(
        ("benchmarks.stream --dir MEMORY",),
        "streams",
        ("codecs", "encode", "stores", "stream", "write"),
        ("benchmarks.stream --repeats 1 --slices 4 --dir MEMORY",),
    ),
    "first-call": Measurement(
        ("benchmarks.start_up --repeats 5 --dir MEMORY",),
        "table 1 1",
        (),
        ("benchmarks.start_up --repeats 1 --cases=--help --dir MEMORY",),
    ),
    "precomputed": Measurement(
        ("benchmarks.precomputed --repeats 1 --dir MEMORY",),
        "table 2 1",
        ("codecs", "volumes", "write"),
        (
            "benchmarks.precomputed --repeats 1 --cases raw --mib 16 --shard-mib 4 --tasks write --dir MEMORY",
        ),
    ),
    "datasets": Measurement(
        (
            f"{_DATASETS} --nbytes 1000000000 --repeats 2 --dir MEMORY",
            f"{_DATASETS} --nbytes 500000000 --repeats 2 --cold --cases aligned-zstd,one-step-zstd --dir DISK",
        ),
        "table 1 1",
        (*_WRITES, "datasets"),
        (
            f"{_DATASETS} --nbytes 1 --repeats 1 --cases aligned-raw --dir MEMORY",
            f"{_DATASETS} --nbytes 1 --repeats 1 --cases aligned-raw --cold --dir DISK",
        ),
    ),
    "refusals": Measurement(
        ("benchmarks.refusals --dir MEMORY",),
        "table 1 1",
        (),
        ("benchmarks.refusals --repeats 1 --rows 2 --dir MEMORY",),
    ),
}
"""The most important ones come first."""


@dataclass(frozen=True)
class Loss:
    """A case in which somebody else does better.

    Parameters
    ----------
    case : str
        The case.
    ours, best : float
        Our value, and that of the best other one.
    by : str
        Whose that is.
    cause : str
        Why; empty if nobody has said so.
    """

    case: str
    ours: float
    best: float
    by: str
    cause: str


@dataclass(frozen=True)
class Question:
    """One question of the page, with its one figure.

    Parameters
    ----------
    title : str
        The question; it is the heading.
    of : str
        The measurement: a key of `MEASUREMENTS`.
    quantity : str
        What is shown.
    about : str
        What was done.
    caveats : tuple of str
        What a reader must know before the numbers.
    cases, names : tuple of str
        What is shown, in this order; everything if empty.
    is_log : bool
        Whether the axis is logarithmic.
    more_is_better : bool
        Whether the highest number is the best.
    ours, peers : tuple of str
        Who is compared; nobody, if there is no peer.
    causes : mapping of str to str
        Why a peer is better, by the case.
    cause : str
        Why, in all other cases.
    """

    title: str
    of: str
    quantity: str
    about: str
    caveats: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_log: bool = False
    more_is_better: bool = True
    ours: tuple[str, ...] = ("shardwrite",)
    peers: tuple[str, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""

    def shown(self, results: Results) -> dict[str, dict[str, float]]:
        """The values of the figure, by case and by whom."""
        values = results.values(self.quantity)
        cases: Sequence[str] = self.cases or tuple(values)
        return {
            case: {
                by: values[case][by]
                for by in self.names or tuple(values[case])
                if by in values[case]
            }
            for case in cases
            if case in values
        }

    def losses(self, results: Results) -> Iterator[Loss]:
        """Each case in which a peer does better, by more than counts as equal."""
        sign = 1 if self.more_is_better else -1
        for case, own in self.shown(results).items():
            ours = [value for by, value in own.items() if by in self.ours]
            peers = {by: value for by, value in own.items() if by in self.peers}
            if not ours or not peers:
                continue
            mine = max(ours, key=lambda value: sign * value)
            by = max(peers, key=lambda name: sign * peers[name])
            low, high = sorted((mine, peers[by]))
            if sign * (peers[by] - mine) > 0 and low < high * (1 - EQUAL):
                yield Loss(case, mine, peers[by], by, self.causes.get(case, self.cause))


_VOLUMES = ("gzip", "raw", "segmentation", "png", "jpeg")
_PEERS = ("dask+zarr-python", "dask+zarrs", "tensorstore")
_EVERYBODY = ("shardwrite", *_PEERS, "bare-loop")
_ALIGNED = tuple(f"{codec}-{inner}" for codec in CODECS for inner in (64, 32, 16))
_OTHERS = ("small-blocks", "slabs", "unaligned", "sparse", "many-shards", "two-workers")
_SIDE_CAVEATS = (
    "Warm: the source is in the page cache, and each process has written something small before.",
    'Nothing is synced: durability is "none", and the others wait for no disk, either.',
)
_NO_DASK = "tensorstore reads whole shards in one process, without dask. The others are given dask's chunks"
_WAIT = "Chunks wait in memory until their shards are complete. tensorstore reads whole shards, and ignores dask's chunks"
_MANY = "Each shard passes dask, the journal and a rename, and tensorstore has neither dask nor a journal"
_GZIP = "gzip leaves memory in the allocator"
_SYNC = "Each shard's directory is synced, too, before the shard counts as written"
_OVERHEAD = "A run has a plan, a journal and a scheduler, and the bare loop has none"
_RUN = "Beside the same data, a run writes a plan, a journal and a receipt"
_HOLDS = "Each thread holds source chunks and two batches of 2 MiB, and encoded chunks wait for the rest of their shard"
WHY_MISSED = {
    "aligned, over the best peer": "With zstd, all programs but dask with zarr-python wait for the same compressor",
    "aligned, over the bare loop": _OVERHEAD,
    "sparse, over the best peer": "All programs read every value to find the empty chunks",
    "chunked by dask, over our own aligned case": "Chunks are cut, and pieces wait until their shards are complete",
    "chunked by dask, over the best peer that uses dask": "With zstd, all of them wait for the same compressor",
    "chunked by dask, over tensorstore, which does without dask": _NO_DASK,
    "many small shards, over tensorstore": _MANY,
    "memory, measured over what the plan expects": "gzip leaves memory in the allocator, and many small shards are encoded at a time. "
    "Chunks that match nothing wait for a shorter time than the plan expects",
    "memory, over the peer that takes least": _WAIT,
}
"""Why an aim is missed, by its name in the table of aims."""
QUESTIONS = {
    "aligned": Question(
        "How fast is a write if dask's chunks are whole shards?",
        "side-by-side",
        RATE,
        "1 GiB of uint16, shards of 256³. The name says the codec and the side of inner chunks.",
        (*_SIDE_CAVEATS, "The bare loop is no program for users: it shows what is possible."),
        _ALIGNED,
        _EVERYBODY,
        is_log=True,
        peers=_PEERS,
        cause=_RUN,
    ),
    "regrouped": Question(
        "How fast is it if chunks do not fit, or shards are small?",
        "side-by-side",
        RATE,
        "As above, with zstd. `small-blocks` are 64³, `slabs` are planes, `unaligned` is 100 x 110 x 90, `many-shards` are 20,000 of "
        "16 KiB.",
        (*_SIDE_CAVEATS, "tensorstore is told the shards, and takes no chunks of dask."),
        _OTHERS,
        _EVERYBODY,
        is_log=True,
        peers=_PEERS,
        causes={
            "slabs": _NO_DASK,
            "unaligned": _NO_DASK,
            "two-workers": "tensorstore runs in one process, and sends nothing to workers",
            "many-shards": _MANY,
        },
        cause=_RUN,
    ),
    "memory": Question(
        "How much memory does that take?",
        "side-by-side",
        MEMORY,
        "Anonymous memory at its peak, above that of the idle process with its libraries. Less is better.",
        ("All have two threads.", "It is sampled every 10 ms, so a short peak may be missed."),
        ("zstd-64", "lz4-64", "none-64", "gzip-64", "gzip-32", *_OTHERS),
        _EVERYBODY,
        is_log=True,
        more_is_better=False,
        peers=_PEERS,
        causes={
            "gzip-32": _GZIP,
            "gzip-64": _GZIP,
            "slabs": _WAIT,
            "unaligned": _WAIT,
            "many-shards": "Many small shards are encoded at a time, which is faster",
        },
        cause=_HOLDS,
    ),
    "cold": Question(
        "How long does the first write of a process take?",
        "cold",
        RATE,
        "128 MiB from a file that is not in the page cache, into a disk, by a process that has written nothing before.",
        ("Cold: imports and reading the source are in the time.",),
        peers=_PEERS,
        cause="shardwrite is imported beside dask and zarr-python, and makes a plan and a journal",
    ),
    "durability": Question(
        "What does durability cost on a disk?",
        "durability",
        RATE,
        "`shardwrite-full` syncs each shard and its directory. `tensorstore-sync` is tensorstore as it comes: it syncs each file.",
        (
            "Warm, as above.",
            "128 MiB, of which a run takes 10 to 20 ms before its first shard and after its last.",
            "The disk is that of a virtual machine that others use, too: repeats differ by up to 2.4 times.",
        ),
        names=("shardwrite-full", "tensorstore-sync", "shardwrite", "tensorstore"),
        is_log=True,
        ours=("shardwrite-full",),
        peers=("tensorstore-sync",),
        causes={"zstd-64": _SYNC, "none-64": _SYNC, "many-shards": _SYNC},
    ),
    "bare-loop": Question(
        "How far is a write from a bare loop?",
        "bare-loop",
        RATE,
        "4 GiB, so that what a run costs before its first shard and after its last does not decide.",
        ("Warm, as above.",),
        is_log=True,
        peers=("bare-loop",),
        causes=dict.fromkeys(_ALIGNED, _OVERHEAD),
    ),
    "plans": Question(
        "How long does a plan take?",
        "plans",
        "s",
        "`blocks` are dask chunks of many shards, `shards` is a chunk for each shard, `line` is an array of one dimension.",
        ("Nothing is written.",),
        is_log=True,
        more_is_better=False,
    ),
    "tasks": Question(
        "How long does a run of a million shards take, apart from its data?",
        "tasks",
        "s",
        "Workers of a cluster encode and write nothing; scheduler, journal and reports are real.",
        ("Two workers on the same two cores as scheduler and client.",),
        is_log=True,
        more_is_better=False,
    ),
    "local": Question(
        "How long do you wait if an array has very many shards?",
        "local",
        "s",
        "Shards of 16 KiB, written by the threads of one process. Stopped at half: the time to the first commit, of a status, and to the "
        "first commit after the run goes on. Then the command `info`, and the end of a run in parts.",
        ("Other work went on beside it.",),
        is_log=True,
        more_is_better=False,
    ),
    "scaling": Question(
        "Does it scale with cores?",
        "scaling",
        RATE,
        "512³ uint16, zstd, from blocks that tasks compute. Strong: the same array for all. Weak: an array for each thread.",
        ("There are two cores. Four threads gain nothing.", "Computing the blocks is in the time."),
    ),
    "codecs": Question(
        "Which implementation of a codec is taken?",
        "codecs",
        "MB/s, 1 thread",
        "With the extra `fast`. `taken` is what shardwrite does.",
        (
            "One thread; the file has two threads and the sizes, too.",
            "At level 1, zlib-ng compresses less: 1.3 times, and not 1.9 times.",
        ),
        tuple(
            f"{codec}, {side}³"
            for side in (64, 16)
            for codec in ("zstd, level 3", "blosc lz4", "gzip, level 1", "gzip, level 6")
        ),
        is_log=True,
        ours=("taken",),
        peers=("numcodecs", "numcodecs.Blosc", "zlib", "ISA-L", "zlib-ng"),
        cause="It is the same library, or one that compresses less. The call passes a table of codecs first",
    ),
    "update": Question(
        "How long does it take to change one inner chunk of a large shard?",
        "update",
        "seconds",
        "One of 32,768 chunks in a shard of 1 GiB of float32 (621 MB encoded). Less is better.",
        (
            "Warm.",
            "Without `in_place`, the whole shard is copied.",
            "Repeats differ: three gave 0.41 to 0.69 s for `FixedOrder()`, and 0.5 to 2.3 s for tensorstore.",
        ),
        is_log=True,
        more_is_better=False,
        ours=tuple(
            f"shardwrite {name}({arguments})"
            for name in ("FixedOrder", "AppendOnly")
            for arguments in ("", "in_place=True")
        ),
        peers=("zarr-python", "tensorstore"),
        cause="shardwrite also keeps what it needs to undo a change that was interrupted",
    ),
    "verify": Question(
        "How long does verifying take?",
        "verify",
        "seconds",
        "128 MiB (`many-shards`: 2,000 shards). `--deep` decodes all, and `--against` compares with the source. Less is better.",
        ("Warm, two threads.", "The other programs read all values, and check no list of files."),
        is_log=True,
        more_is_better=False,
        ours=("shardwrite verify --deep",),
        peers=("zarr-python reads all", "tensorstore reads all"),
        cause="It also compares the list of files and the index of each shard with the receipt",
    ),
    "stream": Question(
        "How fast does it take the slices of an instrument?",
        "stream",
        "MB/s",
        "Slices of 8.4 MB, one by one. `bare` is one thread that writes the same bytes from one buffer.",
        ("Warm.",),
        peers=("tensorstore",),
        causes={"zstd": "Both wait for the same compressor"},
        cause="The writer copies each slice before the call returns",
    ),
    "first-call": Question(
        "What does the start of a process cost?",
        "first-call",
        "CPU seconds",
        "CPU seconds of fresh processes, the best of nine.",
        ("Warm: files of libraries are in the page cache, and compiled.",),
        more_is_better=False,
    ),
    "precomputed": Question(
        "How fast are volumes of Neuroglancer?",
        "precomputed",
        "seconds",
        "128 MiB in shards of 16 MiB. Chunks are read one by one at random, and shards one by one. Less is better.",
        (
            "Warm.",
            "gzip is what each program does by itself: level 6 or ISA-L in shardwrite, and level 9 in the others.",
            "cloud-volume makes shards in two processes, as igneous does.",
        ),
        is_log=True,
        more_is_better=False,
        peers=("tensorstore", "cloud-volume"),
        causes=dict.fromkeys((f"write, {case}" for case in _VOLUMES), _RUN),
        cause="Each chunk passes several calls of Python before its decoder",
    ),
    "datasets": Question(
        "How fast is a whole dataset of xarray?",
        "datasets",
        RATE,
        "Two variables of float32, in shards of 48 steps. The source has chunks of 48 steps (`aligned`) or of one. The others are "
        "`ds.chunk(shards).to_zarr(...)` of xarray, with the codecs of zarr-python or of zarrs.",
        (
            "Warm: 1 GB in a memory file system. Cold: 500 MB on a disk, and the system has forgotten the source.",
            "Nothing is synced. All inner chunks have a checksum.",
            "Reading the source is in the time. It has no codec, and xarray-zarrs reads it by zarrs.",
        ),
        peers=("xarray", "xarray-zarrs"),
        cause=_RUN,
    ),
    "refusals": Question(
        "How long does a mistake wait for its message?",
        "refusals",
        "slowest (ms)",
        "All mistakes of `tests/mistakes` in one process, after all imports.",
        ("Warm. The fastest of five calls counts.",),
        ("fastest call", "processor"),
        more_is_better=False,
    ),
}
