"""State of a run on disk: plan, journals and leases beside the array, and the receipt in it.

The plan, the journals and the leases lie in ``<array>.shardwrite/`` and are removed when the run
ends. The receipt lies in the array and stays.
"""

from shardwrite.journal.adopting import ADOPTS, AdoptedFile, Adoption, Listing, Range
from shardwrite.journal.begin import (
    begin_run,
    differences,
    find_run,
    interrupted_end,
    probe,
    refuse_other_run,
    tidied_run,
)
from shardwrite.journal.bucket_fence import BucketFence, Fence
from shardwrite.journal.bucket_runs import (
    check_held,
    confirm,
    fence_of,
    fetched,
    holding,
    is_resumed,
    refuse_in_store,
    refuse_unfinished,
    shared_fence_of,
)
from shardwrite.journal.bucket_shares import sharing
from shardwrite.journal.consuming import (
    CONSUMES,
    Checked,
    Consumption,
    Listed,
    consumption_of,
)
from shardwrite.journal.documents import (
    DocumentChange,
    consolidate,
    enlarged,
    has_consolidated,
    replace_document,
    withdraw,
)
from shardwrite.journal.in_place import (
    InPlace,
    find_in_place,
    layout_of,
    new_tree_of,
    refuse_in_place,
    work_of,
)
from shardwrite.journal.jobs import JOBS_PREFIX, note_job, write_note
from shardwrite.journal.lease import Lease, live_holders, release_all, this_process
from shardwrite.journal.ledger import Ledger, elements_in_shards
from shardwrite.journal.lock import Claim
from shardwrite.journal.manifest import all_listed, list_before, present_listed
from shardwrite.journal.membership import begun_at, taking_part
from shardwrite.journal.neighbours import (
    Beside,
    begin_beside,
    give_up,
    give_up_passing,
    look_beside,
    make_way,
    neighbours,
    tidied_neighbours,
    tidy,
    unfinished,
    unfinished_append,
)
from shardwrite.journal.process import Holder, Process
from shardwrite.journal.receipt import (
    Contents,
    Receipt,
    UpdateEntry,
    changed_region,
    read_receipt,
    receipt_at,
)
from shardwrite.journal.record import Intent, RunRecord, StrategyFacts
from shardwrite.journal.records import Beginning, Entry, cause_of
from shardwrite.journal.replay import (
    History,
    Replay,
    drivers_on,
    histories,
    replay,
    shards_of,
    sweep,
)
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.takeover import end_run, metadata_of, take_away, take_back
from shardwrite.journal.timeline import Commits, OpenTask, Timeline, Worker, timeline_of
from shardwrite.journal.trust import require_trusted, require_trusted_copies
from shardwrite.journal.undo import (
    Change,
    OldBytes,
    change_in_place,
    recover_changes,
    recover_shard,
    shard_claim,
)
from shardwrite.journal.uploads import abort_uploads, uploads_left
from shardwrite.journal.volume_info import change_info, read_volume, replace_info
from shardwrite.journal.writer import (
    FarJournal,
    JournalWriter,
    admit,
    close_journals,
    ensure_current,
    journal_for,
    own_journals,
)

__all__ = [
    "ADOPTS",
    "CONSUMES",
    "JOBS_PREFIX",
    "AdoptedFile",
    "Adoption",
    "Beginning",
    "Beside",
    "BucketFence",
    "Change",
    "Checked",
    "Claim",
    "Commits",
    "Consumption",
    "Contents",
    "DocumentChange",
    "Entry",
    "FarJournal",
    "Fence",
    "History",
    "Holder",
    "InPlace",
    "Intent",
    "JournalWriter",
    "Lease",
    "Ledger",
    "Listed",
    "Listing",
    "OldBytes",
    "OpenTask",
    "Process",
    "Range",
    "Receipt",
    "Replay",
    "RunDirectory",
    "RunRecord",
    "StrategyFacts",
    "Timeline",
    "UpdateEntry",
    "Worker",
    "abort_uploads",
    "admit",
    "all_listed",
    "begin_beside",
    "begin_run",
    "begun_at",
    "cause_of",
    "change_in_place",
    "change_info",
    "changed_region",
    "check_held",
    "close_journals",
    "confirm",
    "consolidate",
    "consumption_of",
    "differences",
    "drivers_on",
    "elements_in_shards",
    "end_run",
    "enlarged",
    "ensure_current",
    "fence_of",
    "fetched",
    "find_in_place",
    "find_run",
    "give_up",
    "give_up_passing",
    "has_consolidated",
    "histories",
    "holding",
    "interrupted_end",
    "is_resumed",
    "journal_for",
    "layout_of",
    "list_before",
    "live_holders",
    "look_beside",
    "make_way",
    "metadata_of",
    "neighbours",
    "new_tree_of",
    "note_job",
    "own_journals",
    "present_listed",
    "probe",
    "read_receipt",
    "read_volume",
    "receipt_at",
    "recover_changes",
    "recover_shard",
    "refuse_in_place",
    "refuse_in_store",
    "refuse_other_run",
    "refuse_unfinished",
    "release_all",
    "replace_document",
    "replace_info",
    "replay",
    "require_trusted",
    "require_trusted_copies",
    "shard_claim",
    "shards_of",
    "shared_fence_of",
    "sharing",
    "sweep",
    "take_away",
    "take_back",
    "taking_part",
    "this_process",
    "tidied_neighbours",
    "tidied_run",
    "tidy",
    "timeline_of",
    "unfinished",
    "unfinished_append",
    "uploads_left",
    "withdraw",
    "work_of",
    "write_note",
]
