"""What lies beside an array while it is written, and what stays of it: plan, journal, leases, receipt."""

from shardwrite.journal.begin import (
    begin_run,
    differences,
    find_run,
    interrupted_end,
    interrupted_removal,
    probe,
    tidied_run,
)
from shardwrite.journal.lease import Lease, live_holders, release_all
from shardwrite.journal.ledger import Ledger, as_runs
from shardwrite.journal.neighbours import (
    Beside,
    begin_beside,
    give_up,
    give_up_streams,
    look_beside,
    make_way,
    neighbours,
    tidied_neighbours,
    unfinished_append,
)
from shardwrite.journal.receipt import Receipt, empty_after, read_receipt
from shardwrite.journal.records import Beginning, Entry, cause_of
from shardwrite.journal.redo import Change, change_in_place, recover_change, recover_changes, shard_lock
from shardwrite.journal.replay import (
    History,
    Replay,
    discard,
    drivers_on,
    histories,
    replay,
    stale_temporaries,
    sweep,
    sweep_after_workers,
    sweep_listed,
    unended,
)
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.trust import require_trusted
from shardwrite.journal.writer import close_journals, ensure_current, journal_for

__all__ = [
    "Beginning",
    "Beside",
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
    "drivers_on",
    "empty_after",
    "ensure_current",
    "find_run",
    "give_up",
    "give_up_streams",
    "histories",
    "interrupted_end",
    "interrupted_removal",
    "journal_for",
    "live_holders",
    "look_beside",
    "make_way",
    "neighbours",
    "probe",
    "read_receipt",
    "recover_change",
    "recover_changes",
    "release_all",
    "replay",
    "require_trusted",
    "shard_lock",
    "stale_temporaries",
    "sweep",
    "sweep_after_workers",
    "sweep_listed",
    "tidied_neighbours",
    "tidied_run",
    "unended",
    "unfinished_append",
]
