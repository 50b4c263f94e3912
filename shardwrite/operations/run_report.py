"""Report of a run, while it goes on, after it was interrupted, or after it has ended."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from shardwrite.entry.public import public
from shardwrite.errors import IncompleteError, JournalError
from shardwrite.journal import (
    Beside,
    Receipt,
    RunDirectory,
    fetched,
    live_holders,
    look_beside,
    metadata_of,
    read_receipt,
)
from shardwrite.journal.timeline import timeline_of
from shardwrite.place.base import REPORT_NAME
from shardwrite.place.target import Target, resolve_target
from shardwrite.reporting.facts import PlanFigures, WorkerReport, printed
from shardwrite.reporting.make import make_report
from shardwrite.reporting.report import RunReport
from shardwrite.runs.result import WriteResult, result_from_receipt

_NO_TIMES = (
    "The journal of a run is removed when it ends. Write with keep_report=True (--keep-report) to "
    "keep its report, with a timeline, in the array."
)


@public
def report(store: Any, *, name: str | None = None, run_dir: Any = None) -> RunReport:
    """Report how the run on an array goes, or went. Nothing is written.

    The report of a run that has not ended is made from its journals. Of a run that has ended, it is
    the one that ``keep_report=True`` has kept. Without one, only totals are known.

    Parameters
    ----------
    store : str, path, or store or node of zarr-python
        A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; or a
        group or array of zarr-python.
    name : str, optional
        Path of the array in the store.
    run_dir : str or path, optional
        See :func:`to_sharded_zarr`.

    Returns
    -------
    RunReport
        The report. Print it, show it in a notebook, or see its fields.

    Raises
    ------
    IncompleteError
        If nothing was begun there, or another program has written the array.
    JournalError
        If the state of the run, the report or the receipt is damaged.
    UntrustedStateError
        If the state beside the array is not trusted, and the array holds neither a report nor a
        receipt.
    StoreError
        If something cannot be read.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> x = da.ones((400, 400), chunks=100)
    >>> result = x.to_sharded_zarr(path, shards=200, chunks=100, keep_report=True)
    >>> report = shardwrite.report(path)
    >>> report.state, report.n_done
    ('finished', 4)
    """
    target = fetched(resolve_target(store, name, run_dir, is_read=True))
    beside = look_beside(target)
    run = _run_of(beside)
    if run is not None:
        return _of_journals(run)
    receipt = read_receipt(target) if target.place.kind() == "array" else None
    found = _kept(target, receipt)
    if found is not None:
        return found
    if receipt is not None and receipt.result:
        result = result_from_receipt(receipt.result, target.label)
        return _of_receipt(receipt, result, beside)
    if beside.untrusted is not None:
        raise beside.untrusted
    raise IncompleteError(
        f"no run of shardwrite is known for {target.label}; check the path, or write the array",
        missing=[str(target.run_path)],
    )


def _run_of(beside: Beside) -> RunDirectory | None:
    """The run to report on: the one that makes the array, or else an update that somebody makes."""
    if beside.run is not None:
        return beside.run
    at_work = [run for run in beside.updates if live_holders(run.path, looking=True)]
    return next(iter([*at_work, *beside.updates]), None)


def _of_journals(run: RunDirectory) -> RunReport:
    found = timeline_of(run, metadata_of(run))
    # Read after the journals: a process that has a journal here has a lease, if it lives.
    state = "running" if live_holders(run.path, looking=True) else "interrupted"
    return make_report(run.target.label, run.record, found, state=state, now=time.time())


def _kept(target: Target, receipt: Receipt | None) -> RunReport | None:
    """The report that the array holds, if there is one."""
    data = target.place.read(REPORT_NAME)
    if data is None:
        return None
    try:
        found = RunReport.from_json(data)
    except ValueError as error:
        path = f"{target.label}/{REPORT_NAME}"
        raise JournalError(f"{path} is no report ({error}); remove it", path=path) from error
    runs = [] if receipt is None else [receipt.run, *(e.run for e in receipt.updates)]
    notes = list(found.notes)
    if found.run not in runs:
        notes.append("The receipt of the array does not know this run.")
    elif runs and runs[-1] != found.run:
        notes.append("The array was changed by later runs, of which no report was kept.")
    return _with(found, target.label, tuple(notes))


def _with(found: RunReport, path: str, notes: tuple[str, ...]) -> RunReport:
    """A report that was kept, with the path at which the array lies now."""
    return replace(found, path=path, notes=notes, told_by="report", state="finished")


def _of_receipt(receipt: Receipt, result: WriteResult, beside: Beside) -> RunReport:
    """Report of a run of which only the receipt is left."""
    n = result.n_shards + result.n_empty_shards
    seconds = receipt.result.get("seconds")
    return RunReport(
        path=result.path,
        run=receipt.run,
        state="finished",
        told_by="receipt",
        begun=0.0,
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 2**40 else 0.0,
        n_shards=n,
        n_done=n,
        n_empty=result.n_empty_shards,
        raw_nbytes=result.raw_nbytes,
        done_nbytes=result.raw_nbytes,
        stored_nbytes=result.stored_nbytes,
        durability=receipt.durability,
        plan=PlanFigures(layout=result.layout, n_tasks=result.n_tasks),
        workers=tuple(
            _of_peak(str(process), peak)
            for process, peak in list(result.peak_nbytes_by_process.items())[:128]
            if type(peak) is int and peak >= 0
        ),
        n_workers=len(result.peak_nbytes_by_process),
        failures={},
        notes=(_NO_TIMES, *beside.warnings),
    )


def _of_peak(name: str, peak_nbytes: int) -> WorkerReport:
    return WorkerReport(
        name=printed(name),
        job="",
        is_alive=False,
        start=0.0,
        stop=0.0,
        n_shards=0,
        raw_nbytes=0,
        busy_seconds=0.0,
        cpu_seconds=-1.0,
        peak_nbytes=peak_nbytes,
    )
