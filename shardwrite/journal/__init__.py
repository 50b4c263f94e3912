"""What lies beside an array while it is written, and what stays of it: plan, journal, leases, receipt."""

from shardwrite.journal.begin import begin_run, differences, find_run, interrupted_end, probe
from shardwrite.journal.jobs import JOBS_PREFIX, note_job, write_note
from shardwrite.journal.lease import Lease, live_holders, release_all
from shardwrite.journal.ledger import Ledger, as_runs
from shardwrite.journal.neighbours import begin_beside, give_up, give_up_streams, make_way, neighbours, unfinished_append
from shardwrite.journal.receipt import Receipt, empty_after, read_receipt
from shardwrite.journal.records import Beginning, Entry, cause_of
from shardwrite.journal.redo import Change, change_in_place, recover_change, recover_changes, shard_lock
from shardwrite.journal.replay import History, Replay, discard, histories, replay, sweep, sweep_after_workers, sweep_listed, unended
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.writer import close_journals, ensure_current, journal_for

__all__ = [
    "JOBS_PREFIX",
    "Beginning",
    "Change",
    "Entry",
    "History",
    "Lease",
    "Ledger",
    "Receipt",
    "Replay",
    "RunDirectory",
    "as_runs",
    "begin_beside",
    "begin_run",
    "cause_of",
    "change_in_place",
    "close_journals",
    "differences",
    "discard",
    "empty_after",
    "ensure_current",
    "find_run",
    "give_up",
    "give_up_streams",
    "histories",
    "interrupted_end",
    "journal_for",
    "live_holders",
    "make_way",
    "neighbours",
    "note_job",
    "probe",
    "read_receipt",
    "recover_change",
    "recover_changes",
    "release_all",
    "replay",
    "shard_lock",
    "sweep",
    "sweep_after_workers",
    "sweep_listed",
    "unended",
    "unfinished_append",
    "write_note",
]
