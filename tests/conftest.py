"""The order in which tests begin, how their child processes start, and what hypothesis tries."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
import zlib
from pathlib import Path

N_CORES = 2


def keep_to_some_cores():
    """Have a process in which tests run, and all that it starts, see two cores.

    A plan of a process with many threads needs more memory than the small limits of tests allow.
    The first process of pytest-xdist runs no tests, and hands its cores on to the others.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    has_others = any(word.startswith(("-n", "--numprocesses", "--dist")) for word in sys.argv)
    if not hasattr(os, "sched_setaffinity") or (has_others and not worker):
        return
    cores = sorted(os.sched_getaffinity(0))
    first = N_CORES * int(worker.removeprefix("gw") or 0)
    os.sched_setaffinity(0, {cores[(first + n) % len(cores)] for n in range(N_CORES)})


keep_to_some_cores()  # before dask counts them
# netCDF4 sets this to its own filters otherwise, which h5py may then load with another HDF5 library.
os.environ.setdefault("HDF5_PLUGIN_PATH", "")

import dask  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402
from xdist.scheduler import LoadScopeScheduling  # noqa: E402

HERE = Path(__file__).parent
LEAN = str(HERE / "lean")
SLURM = HERE / "slurm"
FORKS = str(HERE / "forks")
OF_TESTS = [FORKS, str(HERE / "tiers"), str(HERE)]
sys.path[:0] = OF_TESTS  # where tests find `forks`, `tiers` and `seams`
from tiers import Drawn, is_left_to_the_long_tier, left_to_the_campaign  # noqa: E402

# Libraries, and nothing of this package, that worker processes of tests have when they start.
PRELOADED = ["dask.array", "distributed", "numcodecs", "zarr"]
MEMORY = "/dev/shm"
# So many processes share the long tests of these, each with servers or a SLURM of its own.
GROUPS = {"tests/buckets/": 3, "tests/slurm/": 2}
QUICK = "not long"
# One process runs all tests whose names begin with one of the words.
TOGETHER = (
    ("tests/slurm/",),
    ("tests/buckets/",),
    ("tests/test_architecture.py",),
    ("tests/test_packaging.py",),
    ("tests/test_site.py",),
    ("tests/faults/test_other_users.py",),
    ("tests/show/test_executed.py",),
    ("tests/wings/", "tests/test_options.py", "tests/test_entered.py"),
)
TOGETHER_IF_QUICK = (("tests/upgrade/",),)
LOST = "distributed.deploy.lost-worker-timeout"
START = ("distributed.worker.multiprocessing-method", "multiprocessing.context")

# Every run tries the same examples, and none of them has to be quick.
hypothesis.settings.register_profile("shardwrite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("shardwrite")


def has_room(place, nbytes):
    """Whether there is a directory with so much room."""
    return os.path.isdir(place) and shutil.disk_usage(place).free > nbytes


def pytest_configure(config):
    """Put temporary directories of quick tests into memory where there is room, because tests sync
    all that they write; those of long tests lie on the disk, and some of them need much room. Have
    each process of pytest-xdist begin to collect at another place.

    All of them collect everything, and what pytest compiles of a test file is kept. On a clean
    clone each process would otherwise compile every file, because all would be at the same one.
    """
    gc.disable()  # what is collected stays; a fifth of the time would go into looking at it
    if QUICK in config.option.markexpr and has_room(MEMORY, 2**33):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    names = getattr(config, "workerinput", {})
    if not names or any("::" in place for place in config.args):
        return
    places = list(config.args)
    if [(config.invocation_params.dir / place).resolve() for place in places] == [HERE]:
        places = sorted(str(path) for path in HERE.iterdir() if is_collected(path))
    first = len(places) * int(names["workerid"].removeprefix("gw")) // names["workercount"]
    config.args = places[first:] + places[:first]


def is_collected(path):
    """Whether there are tests in a file, or in a directory."""
    return any(path.rglob("test_*.py")) if path.is_dir() else path.match("test_*.py")


@pytest.hookimpl(tryfirst=True)  # before marks select
def pytest_collection_modifyitems(config, items):
    """Leave most cases of large families to the long tier, and many of these to the campaign.

    Tests that may take longest begin first, so that no process is left alone with one of them
    while the others, which run tests beside it, have nothing to do.

    The limit in time that a test has been given tells how long it takes. Tests on SLURM begin
    before all others, and then other groups, because one process takes all tests of a group.
    """
    usual, is_quick = float(config.getini("timeout")), QUICK in config.option.markexpr

    def limit(item):
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker is not None else usual

    is_named = any("::" in place for place in config.args)  # then all of its quick cases run
    cases_of = {}
    for item in () if is_named else items:
        file = str(item.path.relative_to(HERE)) if HERE in item.path.parents else ""
        is_short = item.get_closest_marker("compat") is not None  # with other versions, too
        if not is_short and is_left_to_the_long_tier(file, item.name):
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("campaign") is None:
            cases_of.setdefault(file, {})[item.name] = item
    for file, cases in cases_of.items():
        for name in left_to_the_campaign(file, {name: told(one) for name, one in cases.items()}):
            cases[name].add_marker(pytest.mark.campaign)
    items.sort(key=lambda item: item.path)  # the same order in all processes
    items.sort(
        key=lambda item: (
            SLURM in item.path.parents,
            bool(group_of(item.nodeid, is_quick=is_quick)),
            limit(item),
        ),
        reverse=True,
    )


def told(item):
    """Whether a case is long, and what `left_to_the_campaign` is to know of it."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    kinds = {(k, str(value)) for k, value in parameters.items() if not isinstance(value, Drawn)}
    facts = {item.originalname, *kinds}
    return item.get_closest_marker("long") is not None, frozenset(facts)


def pytest_collection_finish():
    """Leave what has been collected out of all further collections of garbage, and so of what a
    forked process copies."""
    gc.enable()
    gc.collect()
    gc.freeze()


class SomeTogether(LoadScopeScheduling):
    """Give tests out one by one, but some to one process: all tests on SLURM and on buckets,
    because each process would start a cluster, or servers, of its own, those that
    read the source of the package, because each process would parse it, and those of the wheel, of
    the site, of a notebook and of other users, because each process would build these, run it, or
    start a process for them, and those that import the package anew, because each process would
    start a server for them. The quick tests of older states are together, too, because
    each process would unpack the archives.

    The long tests on SLURM and on buckets wait for most of their time, and all of them in one
    process would last longer than all others. So they are in some groups.

    The group marks of pytest-xdist 3.8 do not do this: pytest 9.2 ignores them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid, is_quick=QUICK in self.config.option.markexpr) or nodeid


def group_of(nodeid, *, is_quick):
    """The group of tests that one process runs, or an empty string."""
    groups = (*TOGETHER, *TOGETHER_IF_QUICK) if is_quick else TOGETHER
    name = next((words[0] for words in groups if nodeid.startswith(words)), "")
    if is_quick or name not in GROUPS:
        return name
    return f"{name} {zlib.crc32(nodeid.encode()) % GROUPS[name]}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Use this order of tests wherever they are shared by several processes."""
    return SomeTogether(config, log)


def paths():
    """Directories of ``PYTHONPATH``."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture(scope="session", autouse=True)
def lean_children():
    """Have child processes start as `lean/sitecustomize.py` says, and find `forks`,
    `tiers` and `seams`."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([*paths(), LEAN, *OF_TESTS]))
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_workers(lean_children):
    """Have dask fork its workers from one process that has imported the libraries, because to
    start an interpreter and to import them takes longer than what most tests have them do.

    Each imports this package anew. What was put into the environment since does not reach them.

    On a busy machine a worker that died takes long to come back. By default a local cluster gives
    it up after 15 seconds, and one without workers waits for ever.
    """
    from distributed.utils import get_mp_context

    with dask.config.set({**dict.fromkeys(START, "forkserver"), LOST: "10 minutes"}):
        get_mp_context()  # it sets, once, what it would have preloaded
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        yield


@pytest.fixture(autouse=True)
def computed_as_before():
    """No test leaves dask with other threads or another scheduler, which later tests would use."""

    def settings():
        return [dask.config.get(name, None) for name in ("scheduler", "num_workers", "pool")]

    before = settings()
    yield
    assert settings() == before, "the test has changed how dask computes"


@pytest.fixture
def one_thread():
    """Compute in the thread of the test."""
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def children_as_users_start_them(monkeypatch):
    """Have child processes, and dask's workers, start and import all as they do elsewhere."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths() if path != LEAN))
    with dask.config.set(dict.fromkeys(START, "spawn")):
        yield
