"""What lies beside an array while it is written, and what stays of it: plan, journal, leases, receipt."""

from shardwrite.journal.begin import begin_run, differences, find_run, interrupted_end, probe
from shardwrite.journal.lease import Lease, live_holders, release_all
from shardwrite.journal.ledger import Ledger, as_runs
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.records import Beginning, Entry
from shardwrite.journal.replay import Replay, replay, sweep, sweep_after_workers, sweep_listed
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.writer import close_journals, ensure_current, journal_for

__all__ = [
    "Beginning",
    "Entry",
    "Lease",
    "Ledger",
    "Receipt",
    "Replay",
    "RunDirectory",
    "as_runs",
    "begin_run",
    "close_journals",
    "differences",
    "ensure_current",
    "find_run",
    "interrupted_end",
    "journal_for",
    "live_holders",
    "probe",
    "read_receipt",
    "release_all",
    "replay",
    "sweep",
    "sweep_after_workers",
    "sweep_listed",
]
