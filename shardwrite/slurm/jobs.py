"""Jobs that were submitted for a run, kept with it on disk: so that they are found when whoever submitted them is gone."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwrite.errors import SubmitError
from shardwrite.journal import RunDirectory, find_run, live_holders
from shardwrite.slurm.client import cancel, queue
from shardwrite.stores import listed, read_json
from shardwrite.target import Target

__all__ = ["Cancelled", "Submitted", "cancel_all", "cancel_left", "record_jobs", "record_workers", "submitted"]

_GONE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was submitted for a run.

    Attributes
    ----------
    drivers, workers, others : tuple of str
        Ids of jobs: those that submit workers, the workers, and arrays with their last jobs.
    n_parts : int
        Of the job array that was submitted last; 0 if there was none.
    """

    drivers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    n_parts: int = 0

    @property
    def ids(self) -> list[str]:
        """All; those first that would submit others."""
        return list(dict.fromkeys((*self.drivers, *self.others, *self.workers)))


def record_jobs(target: Target, array: str, finalize: str, n_parts: int) -> None:
    """Keep with the run the array that was submitted for it; nothing if it has ended meanwhile."""
    run = find_run(target)
    if run is not None:
        _write(run.path / f"jobs-{array}.json", {"array": array, "finalize": finalize, "n_parts": n_parts})


def record_workers(run: RunDirectory, name: str, driver: str | None, workers: Sequence[str]) -> None:
    """Keep with a run the workers that a driver has submitted; each time all of them.

    Parameters
    ----------
    run : RunDirectory
        The run.
    name : str
        Of the driver, so that no other writes that file.
    driver : str, optional
        Its job, if it is one.
    workers : sequence of str
        Their jobs.
    """
    _write(run.path / f"jobs-{name}.json", {"driver": driver, "workers": list(workers)})


def _write(path: Path, facts: dict[str, Any]) -> None:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_text(json.dumps(facts))
    os.rename(draft, path)


def submitted(run: RunDirectory) -> Submitted:
    """What the files beside a run's journal say."""
    paths = sorted(listed(run.path, "jobs-", ".json"), key=lambda path: path.stat().st_mtime)
    found = [read_json(path) for path in paths]
    return Submitted(
        drivers=tuple(str(facts["driver"]) for facts in found if facts.get("driver")),
        workers=tuple(str(job) for facts in found for job in facts.get("workers", ())),
        others=tuple(str(facts[key]) for facts in found for key in ("array", "finalize") if key in facts),
        n_parts=next((int(facts["n_parts"]) for facts in reversed(found) if "n_parts" in facts), 0),
    )


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a run's jobs.

    Attributes
    ----------
    jobs : list of str
        Those that were cancelled; all others had ended.
    n_known : int
        Jobs that were submitted for the run, as far as it is known.
    alive : list of str
        Processes that are at the run, or seem to be: host, pid, and job if it is one.
    """

    jobs: list[str]
    n_known: int
    alive: list[str]


def cancel_left(find: Callable[[], Submitted], wait: Callable[[float], None] = time.sleep) -> list[str]:
    """Cancel jobs until none of them is left, drivers first, which would replace their workers; those that were cancelled.

    Parameters
    ----------
    find : callable
        Gives the jobs, each time anew: a driver may submit more meanwhile.
    wait : callable
        Sleeps.

    Raises
    ------
    SubmitError
        If SLURM's commands are not here or fail, or jobs are still there after half a minute.
    """
    cancelled: dict[str, None] = {}
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        known = find()
        left = [job["id"] for job in queue(known.ids) if job["state"] != "COMPLETING"]
        if not left:
            return list(cancelled)
        if time.monotonic() > deadline:
            raise SubmitError(f"still there after {_GONE_SECONDS:.0f} s: {', '.join(left)}; try again", command="scancel")
        now = [job for job in left if job in known.drivers] or left
        cancel(now)
        cancelled.update(dict.fromkeys(now))
        wait(0.5)


def cancel_all(target: Target) -> Cancelled:
    """Cancel what was submitted for the run at a target and has not ended.

    Raises
    ------
    SubmitError
        See `cancel_left`.
    """
    run = find_run(target)
    if run is None:
        return Cancelled([], 0, [])
    cancelled = cancel_left(lambda: submitted(run))
    holders = live_holders(run.path, looking=True)
    alive = [" ".join(f"{h.get('host', 'unknown')}:{h.get('pid', 'unknown')} {h.get('job', '')}".split()) for h in holders]
    return Cancelled(cancelled, len(submitted(run).ids), alive)
