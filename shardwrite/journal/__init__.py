"""What lies beside an array while it is written, and what stays of it: plan, journal, leases, receipt."""

from shardwrite.journal.begin import begin_run, differences, find_run, interrupted_end, probe
from shardwrite.journal.lease import Lease, live_holders, release_all
from shardwrite.journal.ledger import Ledger, as_runs
from shardwrite.journal.lock import Claim
from shardwrite.journal.neighbours import begin_beside, give_up_streams, make_way, neighbours, unfinished_append
from shardwrite.journal.receipt import Receipt, empty_after, read_receipt
from shardwrite.journal.records import Beginning, Entry, cause_of
from shardwrite.journal.replay import History, Replay, histories, replay, sweep, sweep_listed
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.takeover import end_run, take_away, take_back
from shardwrite.journal.undo import Change, change_in_place, recover_changes, recover_shard, shard_claim
from shardwrite.journal.writer import admit, close_journals, ensure_current, journal_for, own_journals

__all__ = [
    "Beginning",
    "Change",
    "Claim",
    "Entry",
    "History",
    "Lease",
    "Ledger",
    "Receipt",
    "Replay",
    "RunDirectory",
    "admit",
    "as_runs",
    "begin_beside",
    "begin_run",
    "cause_of",
    "change_in_place",
    "close_journals",
    "differences",
    "empty_after",
    "end_run",
    "ensure_current",
    "find_run",
    "give_up_streams",
    "histories",
    "interrupted_end",
    "journal_for",
    "live_holders",
    "make_way",
    "neighbours",
    "own_journals",
    "probe",
    "read_receipt",
    "recover_changes",
    "recover_shard",
    "release_all",
    "replay",
    "shard_claim",
    "sweep",
    "sweep_listed",
    "take_away",
    "take_back",
    "unfinished_append",
]
