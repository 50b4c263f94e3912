"""Every remedy that a message names is carried out here, and does what the message says.

Each test provokes a message, does what it says, and looks at what came of that. `carries_out` names
the messages by a piece of their text; the last test finds all messages that name a remedy in the
source, and fails if one of them is missing.
"""

from __future__ import annotations

import ast
import errno
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
import seams
from helpers import Stop, stop
from package_texts import texts_in

import shardwrite
import shardwrite.operations.compact
import shardwrite.operations.region
from shardwrite import (
    AppendOnly,
    CorruptShardError,
    IncompleteError,
    JournalError,
    ShardWriter,
    SpecError,
    StoreError,
)
from shardwrite.cli import main
from shardwrite.journal.process import Holder, Process

ROOT = Path(__file__).resolve().parent.parent
_CONVERSIONS = "tests/slurm/test_conversion.py"
_ARRAY = "tests/slurm/test_array.py"
_JOBS = "tests/slurm/test_remedies_of_jobs.py"
_SUBMIT = "tests/slurm/test_submissions.py"
_IN_BUCKETS = "tests/buckets/test_one_run.py"
_SEVERAL = "test_several_arrays_are_submitted_watched_and_finished"
_SCRIPTS = "tests/slurm/test_scripts.py"
_STORES = "tests/operations/test_zarr_targets.py"
_WORDS = "tests/operations/test_dask_words.py"
_KEPT = "tests/operations/test_kept.py"
_IN_PLACE = "tests/operations/test_in_place.py"
_REPORTS = "tests/show/test_run_report.py"
_CONSUME = "tests/operations/test_consume.py"
_ADOPT = "tests/operations/test_adopt.py"
_HDF5 = "tests/operations/test_hdf5_kept.py"
_HDF5_FAULTS = "tests/operations/test_hdf5_faults.py"
_TREES = "tests/operations/test_consume_trees.py"
_VOLUMES = "tests/operations/test_to_precomputed.py"
_COMPARED = "tests/operations/test_repair_compare.py"
_REPLACEMENTS = "tests/operations/test_replacements.py"
_PLACES = "tests/operations/test_adopt_places.py"
_GROUPS = "tests/runs/test_state_of_groups.py"
_RECOVER = "tests/operations/test_recover.py"
_STAGED = "tests/operations/test_staged.py"
_OF_SCRIPTS = "tests/slurm/test_scripts.py::test_what_a_kind_of_script_does_not_take_is_refused"
COVERED: dict[str, str] = {
    "--shards {} --chunks {} --compressors {}": "tests/operations/test_design.py::test_the_command",
    'replace what is there with mode="w"': (
        "tests/datasets/test_runs.py::test_files_without_a_name_go_on_after_an_interruption"
    ),
    'mode="w" to replace all arrays': (
        "tests/datasets/test_rounding.py::test_another_number_of_bits_is_another_run"
    ),
    "since the run {} was begun, which changes the array, too. Make this call again": (
        "tests/buckets/test_datasets.py::test_another_append_ends_before_the_marks"
    ),
    "make the call that it was begun with, or give it up": (
        "tests/buckets/test_datasets.py::test_an_append_is_one_run_whose_state_lies_in_one_array"
    ),
    "the new array was moved away from": (
        "tests/journal/test_handover.py::test_the_new_array_is_gone_before_the_run_has_ended"
    ),
    "round the times to the units of the store": (
        "tests/datasets/test_appends.py"
        "::test_times_that_the_units_of_the_store_cannot_hold_are_refused"
    ),
    "something that is no array was put at": (
        "tests/journal/test_handover.py::test_a_group_is_put_there_right_before_the_exchange"
    ),
    "They cannot be computed again. Give the run up with abandon": (
        "tests/operations/test_its_own_source.py"
        "::test_what_was_replaced_is_not_read_for_shards_that_are_lost"
    ),
    "missing_value may stand in the encoding of the variable": (
        "tests/datasets/test_sizes.py::test_bad_objects_are_refused_before_any_task_runs"
    ),
    "by which the same call is known again": (
        "tests/operations/test_its_own_source.py::test_it_is_read_until_the_new_one_is_whole"
    ),
    "Give it up, too, with abandon": f"{_STAGED}::test_of_two_arrays_the_first_one_is_given_up",
    "Make the same call without restart to finish it": f"{_STAGED}::test_others_wait_for_it",
    "Some of its shards may be new. Give it up with abandon": (
        f"{_STAGED}::test_values_that_are_gone_are_not_computed_again"
    ),
    "give that call up with abandon": (f"{_STAGED}::test_a_source_without_a_name_is_told"),
    "parts {} work, because the plan has {} {}; give --parts {}": (
        "tests/slurm/test_submissions.py::test_more_parts_than_groups"
    ),
    "look with squeue --me": (
        "tests/slurm/test_submissions.py::test_a_submission_that_a_signal_ends_is_known"
    ),
    "array and finalize": _OF_SCRIPTS,
    "is for SRC and DST, and not for --program": _OF_SCRIPTS,
    "was not asked: SLURM took {} s before; try again": (
        "tests/slurm/test_status.py::test_squeue_that_does_not_answer"
    ),
    "Before you make the call again, end them: scancel": (
        f"{_SUBMIT}::test_jobs_of_a_submission_that_fails_are_named"
    ),
    "goes with --source": f"{_RECOVER}::test_the_command",
    "has just begun, whose state lies in": f"{_GROUPS}::test_two_views_that_begin_at_once",
    "make the call that it was begun with once more, where it was begun": (
        f"{_GROUPS}::test_a_root_that_was_moved_is_refused_until_its_state_has_followed"
    ),
    "look at it with verify": f"{_GROUPS}::test_lost_state_is_told_with_its_remedy",
    "Make the call that writes the array again": (
        f"{_RECOVER}::test_a_run_that_has_its_state_is_left_alone"
    ),
    "if all that are missing are such shards, give empty=True (--empty)": (
        f"{_RECOVER}::test_missing_shards_are_empty_if_the_user_says_so"
    ),
    "look at it with verify, and mend it with repair (shardwrite repair --source)": (
        f"{_RECOVER}::test_what_else_may_stand_there"
    ),
    "give it as the array was to have it, or give the source x (--source)": (
        f"{_RECOVER}::test_what_else_may_stand_there"
    ),
    "Nothing is given up; {}, and make this call again": (
        "tests/wings/test_wings.py::test_what_is_converted_in_its_place_is_left_alone"
    ),
    "since its conversion began": "tests/operations/test_in_place.py::test_a_tree_that_another_call_replaces_as_it_begins",
    ". If only the name or the time of the source has changed, and its data are the same": (
        "tests/operations/test_accept_source.py::test_commands_say_so"
    ),
    "All others are written. {}, and make the same call again": (
        "tests/faults/test_bad_reads.py::test_what_stays_wrong_fails_alone_and_is_named"
    ),
    "ask its owner for the right to write there, give a path outside of it": (
        "tests/operations/test_groups_of_several.py"
        "::test_a_list_of_another_user_is_refused_before_the_first_byte"
    ),
    "make the call again that has written it, or consolidate the group anew": (
        "tests/operations/test_groups_of_several.py::test_the_same_call_mends_a_list"
    ),
    "rename it, or leave it out with exclude={} (--exclude)": (
        "tests/operations/test_names_in_trees.py"
        "::test_a_name_that_no_array_can_have_is_refused_before_anything_changes"
    ),
    "if these are its chunks, correct chunk_key_encoding in zarr.json": (
        "tests/operations/test_names_of_chunks.py::test_the_remedies"
    ),
    "if they mean the same, give the values alone": (
        "tests/sources/test_packed.py::test_a_file_that_is_packed_otherwise_goes_nowhere"
    ),
    "with the version that began it": f"{_PLACES}::test_what_an_older_version_began_is_refused",
    "another conversion of {} in its place was begun": (
        f"{_PLACES}::test_short_calls_have_no_restart_and_name_none"
    ),
    "in larger chunks, with shardwrite write --chunks": (
        "tests/operations/test_adopt_chunks.py::test_the_remedy_for_sparse_files"
    ),
    "Give the conversion up with abandon (shardwrite abandon), and make the call": (
        f"{_IN_PLACE}::test_what_another_program_adds_is_not_lost"
    ),
    "give the conversion up with abandon (shardwrite abandon), and make the call": (
        f"{_IN_PLACE}::test_a_change_by_another_program_is_found"
    ),
    "write the bad ones again from their source with repair": (
        "tests/operations/test_lost_minishards.py::test_a_finished_array_that_was_updated_names_it"
    ),
    "If such a shard is lost, the old values are read again: remove these objects": (
        "tests/operations/test_uint64_shards.py::test_the_obsolete_pair_is_read_and_replaced"
    ),
    "write it anew: shardwrite repair --compare, with the source": f"{_COMPARED}::test_the_command",
    "--compare needs a source to compare with; give --source SRC": f"{_COMPARED}::test_the_command",
    "to see which shards differ, run `shardwrite verify ARRAY --against SRC`": (
        f"{_COMPARED}::test_the_command"
    ),
    "give the source x (--source), or leave it out": (f"{_COMPARED}::test_there_must_be_a_source"),
    "or remove the scale and its entry in info yourself": (
        "tests/operations/test_scales_stay.py::test_the_remedies"
    ),
    "Finish it by the same call, or give it up with abandon": (
        f"{_IN_PLACE}::test_a_run_that_has_not_ended_comes_first"
    ),
    "could not be renewed in time, so another process may have taken it over": (
        "tests/buckets/test_state.py"
        "::test_a_lease_that_cannot_be_renewed_stops_tasks_and_loses_nothing"
    ),
    "give another key, or remove that scale yourself": (
        f"{_VOLUMES}::test_other_volumes_are_left_alone"
    ),
    "give the name of the dataset that all files have": (
        f"{_ADOPT}::test_files_and_places_that_are_refused"
    ),
    "With --in-place, the new data take the name of SRC": (
        "tests/cli/test_convert_commands.py::test_in_place"
    ),
    "--in-place goes without DST: give one of the two": (
        "tests/cli/test_convert_commands.py::test_in_place_only_if_asked"
    ),
    "or give --in-place, so that the new data take the name of SRC": (
        "tests/cli/test_convert_commands.py::test_in_place_only_if_asked"
    ),
    "or call abandon (shardwrite abandon), which keeps the old array": (
        f"{_REPLACEMENTS}::test_messages_name_both_ways"
    ),
    "To replace it by this one, give mode": (
        f"{_REPLACEMENTS}::test_restart_alone_keeps_the_old_array"
    ),
    "Or give it up with abandon (shardwrite abandon), which keeps the old array": (
        f"{_REPLACEMENTS}::test_messages_name_both_ways"
    ),
    "It overwrites the objects of the old array, so nothing can be put back": (
        "tests/buckets/test_late_requests.py::test_a_replacement_in_two_calls"
    ),
    "give another path, or copy the directory, remove it, and give the copy its": (
        "tests/operations/test_overlayfs.py::test_refused_before_anything_changes"
    ),
    "the old array cannot go back to": (f"{_REPLACEMENTS}::test_what_stands_in_the_way_is_named"),
    "--drop-hdf5 is for a call with --in-place": f"{_HDF5}::test_conversions_on_the_command_line",
    "To write files with another name in place": f"{_HDF5}::test_another_name_by_a_word",
    "Repair it with the source (--source)": (
        f"{_HDF5_FAULTS}::test_a_file_that_hdf5_does_not_open_is_not_cut"
    ),
    "Run the command that writes the array again with recheck=True": (
        f"{_HDF5_FAULTS}::test_a_salvage_by_the_journal_cuts_no_file"
    ),
    "For plain shards, give drop_hdf5=True to ": (
        "tests/operations/test_hdf5_shards.py::test_a_shard_is_dropped_only_by_a_word"
    ),
    "write the volume again, under another key": f"{_VOLUMES}::test_updates_are_refused",
    "--dark goes with --png": "tests/operations/test_repair.py::test_the_commands",
    "make the same call again with a cluster that has some": (
        "tests/engines/test_engines.py::test_a_cluster_without_workers_is_told"
    ),
    "{} was replaced while it was read; read it again": (
        "tests/operations/test_uint64_shards.py"
        "::test_a_shard_that_is_replaced_amid_a_read_is_told_and_read_again"
    ),
    "Write with keep_report=True (--keep-report)": (
        f"{_REPORTS}::test_without_a_kept_report_totals_are_told"
    ),
    "{} is no report ({}); remove it": f"{_REPORTS}::test_a_kept_report_that_is_none",
    "It continues where the run stopped.": (
        f"{_REPORTS}::test_the_report_that_is_kept_tells_of_both_sessions"
    ),
    "Make the same call again (shardwrite finalize, if parts were written)": (
        f"{_REPORTS}::test_an_end_that_was_cut_off_after_the_report"
    ),
    "anew takes {} bytes: free as many, and make the same call again": (
        "tests/journal/test_changes_in_place.py::"
        "test_a_recovery_that_finds_no_room_says_how_much_it_needs"
    ),
    "may be torn until the same call, or abandon, has given it its old content back": (
        "tests/journal/test_changes_in_place.py::"
        "test_where_the_old_content_cannot_be_put_back_the_message_says_what_to_do"
    ),
    "Make room on the storage, and make the same call again": (
        "tests/faults/test_disk.py::test_the_disk_is_full"
    ),
    'With durability="batch" (--durability batch), shards are synced': (
        "tests/faults/test_disk.py::test_the_disk_is_full"
    ),
    "mend it, or remove it": "tests/operations/test_present.py::test_bad_input",
    "sbatch --parsable array.sbatch": (
        "tests/slurm/test_submissions.py::test_a_scale_whose_hash_scatters_the_chunks"
    ),
    "sbatch --parsable --array={}{} array.sbatch": (
        "tests/slurm/test_array.py::test_a_task_that_fails_is_named_and_comes_again"
    ),
    "With --consume, each file of SRC is removed as soon as": f"{_CONSUME}::test_the_command",
    "hold data that a conversion with consume=True has": f"{_CONSUME}::test_amid",
    "new shards hold what was in them. This cannot be given up": f"{_CONSUME}::test_amid",
    "is bad, put a good copy in its place": (
        f"{_CONSUME}::test_a_bad_shard_of_the_source_is_mended_in_another_directory"
    ),
    "put them back as they were, and make the same call again": (
        "tests/operations/test_growing.py::test_attributes_that_change_meanwhile"
    ),
    "is being consumed into {}, so that parts": f"{_CONSUME}::test_amid",
    "another program has written {} meanwhile. Move it away, and": (
        f"{_CONSUME}::test_what_another_program_has_written"
    ),
    "of the array that is consumed {}, and so are": (
        f"{_CONSUME}::test_what_is_missing_is_no_fill_value"
    ),
    "The parts are those of all {} arrays of the run": (
        "tests/operations/test_parts_together.py::"
        "test_an_end_of_one_array_names_parts_over_all_arrays"
    ),
    "if its state is lost, remove {}": (
        "tests/operations/test_zarr_targets.py::"
        "test_another_process_begins_anew_where_the_state_of_a_run_is_lost"
    ),
    "call prepare_conversion first (--init)": (
        "tests/operations/test_convert_parts.py::test_how_to_begin_is_told_rightly"
    ),
    "to finish it, and then convert or copy the array": (
        "tests/operations/test_unfinished_sources.py::test_an_array_that_is_not_whole_is_refused"
    ),
    "leave out mode (--overwrite)": f"{_CONSUME}::test_what_a_refusal_says_helps",
    "move the array out of the group before": (f"{_CONSUME}::test_what_a_refusal_says_helps"),
    "may be removed already: make the same call again to finish": (
        f"{_CONSUME}::test_a_record_that_cannot_be_synced"
    ),
    "it is not what it was when it was compared with the source": (
        f"{_CONSUME}::test_a_shard_that_was_damaged_after_its_source_was_removed"
    ),
    "and was there when the conversion began to remove what it": (
        f"{_CONSUME}::test_a_chunk_that_goes_while_it_runs"
    ),
    "is being converted in its place, and nothing else may write to it": (
        f"{_IN_PLACE}::test_nothing_else_writes_meanwhile"
    ),
    "the conversion in place has begun": (
        f"{_IN_PLACE}::test_a_disk_that_is_full_leaves_the_old_tree"
    ),
    "the new array differs from {}": f"{_IN_PLACE}::test_a_change_by_another_program_is_found",
    "while the array is copied. Nothing is published": (
        "tests/operations/test_convert.py::test_a_source_that_never_rests_is_an_error"
    ),
    "another program has removed {} meanwhile": (
        "tests/operations/test_consume.py::test_an_array_that_was_consumed_since_it_was_planned"
    ),
    "The workers may reach another service": (
        "tests/buckets/test_state.py::test_workers_that_reach_another_service_are_noticed"
    ),
    "{} holds a conversion that has not ended": f"{_TREES}::test_one_conversion_at_a_time",
    "Write it again from its source with repair": (
        "tests/operations/test_transfer.py::test_a_bad_shard_is_told_and_nothing_is_published"
    ),
    "--strategy goes with no parts and no --cluster": (
        "tests/cli/test_convert_commands.py::test_without_parts_the_strategy_is_taken"
    ),
    'give another place, or mode="w" to replace it': (
        "tests/operations/test_transfer.py::test_volumes_that_are_not_copied_as_they_are"
    ),
    'give another place, or mode="w" to replace its document': (
        "tests/operations/test_transfer.py::test_what_exists_is_refused_and_replaced_on_request"
    ),
    'give mode="w" to replace what exists': (
        "tests/operations/test_targets_of_zarr.py::test_an_array_is_replaced_by_mode_w_only"
    ),
    "convert it without --decode-cf": (
        "tests/sources/test_decoded.py::test_what_cannot_be_decoded_is_told"
    ),
    "says something else than mode={}": f"{_WORDS}::test_overwrite_is_a_mode",
    'overwrite=True is mode="w", and False is mode="w-"': f"{_WORDS}::test_overwrite_is_a_mode",
    "write them again from their source with repair (shardwrite repair --source), or keep the": (
        f"{_KEPT}::test_anything_else_stops_and_both_remedies_work"
    ),
    "is not accepted, since {} shards are bad": (
        f"{_KEPT}::test_anything_else_stops_and_both_remedies_work"
    ),
    ", or keep it with verify and accept=True": (
        f"{_KEPT}::test_changed_metadata_stop_and_are_accepted"
    ),
    "the metadata of {} have changed meanwhile; verify it again": (
        f"{_KEPT}::test_metadata_that_change_while_they_are_accepted"
    ),
    "start over with restart=True": (
        "tests/runs/test_made_again.py"
        "::test_shards_of_an_interrupted_run_are_kept_with_a_warning_if_the_source_has_no_name"
    ),
    "is written by others all the time; make the same call again": (
        "tests/runs/test_publishing.py::test_a_group_that_others_write_all_the_time"
    ),
    "open another writer, and give it that again": (
        "tests/stream/test_interrupted_calls.py::test_another_writer_goes_on_after_the_last_flush"
    ),
    "again to finish it, or give it up by abandon (shardwrite abandon)": (
        "tests/operations/test_scattered.py::test_a_call_that_was_interrupted_is_named"
    ),
    "begin again with restart=True (shardwrite init --restart)": (
        "tests/operations/test_named_sources.py::test_a_source_that_has_changed_is_refused"
    ),
    "Begin again by prepare with restart=True": (
        "tests/operations/test_scattered_parts.py::test_a_spool_that_is_gone"
    ),
    "plan each scale by a call of its own": f"{_VOLUMES}::test_several_plans_are_prepared_one_by_one",
    "write the volume again: shardwrite.to_precomputed, with another path": (
        "tests/operations/test_scattered.py::test_a_scale_that_names_no_volume_is_not_repaired"
    ),
    "in which encoded chunks wait. It is not taken for empty": (
        "tests/operations/test_scattered.py::test_a_lost_shard_of_the_spool_is_no_empty_one"
    ),
    "had written to {} before was changed since it was planned": (
        "tests/runs/test_made_again.py::"
        "test_a_finished_call_is_not_finished_any_more_if_it_is_computed_after_another"
    ),
    "Make the call that writes all arrays of that run again": (
        f"{_IN_BUCKETS}::test_recover_leaves_a_run_alone_whose_state_is_not_lost"
    ),
    "; then call repair again": f"{_IN_BUCKETS}::test_nothing_is_copied_of_an_array_that_is_not_finished",
    "Start over with restart=True, which removes nothing of others": (
        f"{_STORES}::test_a_store_that_was_emptied_is_noticed"
    ),
    "Move that away, and make the same call again": (
        f"{_STORES}::test_nothing_is_written_into_an_array_that_is_begun"
    ),
    'leave it out, or give mode="w" to replace the array': (
        "tests/operations/test_targets_of_zarr.py::test_an_array_is_replaced_by_mode_w_only"
    ),
    "mend it, or remove it after a look": (
        "tests/operations/test_convert_groups.py::test_remedies"
    ),
    "give another place, or remove it yourself": (
        "tests/operations/test_convert_groups.py::test_remedies"
    ),
    "write the array again, or to a store that can": (
        "tests/operations/test_zarr_targets.py"
        "::test_a_store_that_cannot_replace_atomically_is_written_but_not_updated"
    ),
    "writes whole shards, and nothing in place": (
        "tests/operations/test_hdf5_shards.py::test_the_command_line"
    ),
    "Move it away after a look, and verify the array deep": (
        "tests/journal/test_changes_in_place.py::test_a_record_of_a_shard_that_cannot_have_been"
    ),
    # Messages of SLURM jobs and clusters, whose tests carry the remedy out where there is a
    # cluster.
    "{}; submit it again to go on": "tests/slurm/test_array.py::test_a_time_limit",
    "and not again; submit it again to go on": f"{_JOBS}::test_a_job_that_was_requeued_too_often_is_submitted_again",
    "submit it again.": "tests/slurm/test_array.py::test_usr1_drains_and_the_task_comes_again_by_itself_and_alone",
    "What is done lies on disk: submit it again to go on.": "tests/slurm/test_allocation.py::test_requeue_from_outside",
    "if parts are missing it says how to submit them again": f"{_ARRAY}::test_a_task_that_fails_is_named_and_comes_again",
    "sbatch --parsable --dependency=afterany:<id of the array>": "tests/slurm/test_array.py::test_array_then_finalize",
    "no answer in {} s; try again": f"{_JOBS}::test_a_program_that_answers_when_it_is_asked_again",
    "still there after {} s: {}; try again": f"{_JOBS}::test_jobs_that_are_still_there_are_cancelled_by_another_try",
    "{} in {} s: {}; run the same command again": "tests/slurm/test_elastic.py::test_no_workers_come",
    "have the last job begin so much later": f"{_JOBS}::test_the_last_job_begins_later",
    "give the job more: --mem": "tests/slurm/test_inside.py::test_memory_of_a_worker",
    "scontrol does not say MaxArraySize; give --parts": f"{_JOBS}::test_parts_are_given_where_scontrol_says_no_limit",
    "give for instance --partition=main": f"{_JOBS}::test_an_option_in_the_form_that_the_message_shows",
    "give SRC and DST, or for an allocation --program": f"{_SCRIPTS}::test_the_scripts_to_copy_are_what_the_command_prints",
    "array and finalize take --parts": f"{_SCRIPTS}::test_the_scripts_to_copy_are_what_the_command_prints",
    "Do what `shardwrite {} --submit` does": f"{_SUBMIT}::test_commands_of_slurm_submit_what_others_do",
    "does not go with --submit": f"{_SUBMIT}::test_commands_of_slurm_submit_what_others_do",
    "is for job arrays: give --submit": f"{_SUBMIT}::test_commands_of_slurm_submit_what_others_do",
    "is for jobs: give --submit": f"{_SUBMIT}::test_commands_of_slurm_submit_what_others_do",
    "goes with --submit, and not with": f"{_SUBMIT}::test_a_conversion_by_jobs_needs_another_place",
    "give --cluster slurm": f"{_JOBS}::test_options_for_workers_that_are_jobs",
    "give --jobs": f"{_JOBS}::test_options_for_workers_that_are_jobs",
    "--cluster goes with none of": f"{_JOBS}::test_options_for_workers_that_are_jobs",
    "its workers are jobs, so give --cores": f"{_CONVERSIONS}::test_workers_that_are_jobs",
    "workers that are jobs convert in place (--cluster slurm)": (
        f"{_CONVERSIONS}::test_workers_that_are_jobs"
    ),
    "--parts and --resubmit go with --finalize": (
        "tests/cli/test_convert_commands.py::test_in_parts"
    ),
    "goes with --finalize": "tests/cli/test_convert_commands.py::test_in_parts",
    "give --names for the arrays that several sources become": f"{_SUBMIT}::{_SEVERAL}",
    "--names goes with --submit": f"{_SUBMIT}::{_SEVERAL}",
    "--dry-run shows a part of one array": (
        "tests/cli/test_parts_commands.py::test_numbers_of_parts_that_are_too_large"
    ),
    "prepare this scale by a call of its own": (
        "tests/operations/test_parts_together.py::test_a_scale_whose_hash_scatters_the_chunks"
    ),
    "--overwrite and --restart go with --init": (
        "tests/cli/test_convert_commands.py::test_begin_again"
    ),
    "shardwrite slurm resubmit {} --array": "tests/slurm/test_array.py::test_a_task_that_fails_is_named_and_comes_again",
    "Wait for them, or end them first": (
        "tests/slurm/test_submissions.py::test_a_second_submission_is_refused_until_the_first_has_ended"
    ),
    "the connection to dask's scheduler was lost": "tests/slurm/test_elastic.py::test_all_workers_are_lost",
    "make chunks smaller, or raise": "tests/faults/test_bounds.py::test_what_could_not_be_read_again_is_not_written",
    "{}: incomplete, run me again": "tests/faults/test_signals.py::test_abandon",
    "or plan with a smaller limit, and run it again": (
        "tests/faults/test_cluster.py::test_a_group_whose_workers_die_comes_again_and_leaves_the_others_alone"
    ),
    "is gone, although this run has written it": "tests/operations/test_left_over.py::test_a_directory_that_disappears_amid_a_write",
    "its scheduler is gone, or was restarted; run the same again": "tests/faults/test_cluster.py::test_the_scheduler_is_killed",
    "the scheduler of the dask client is gone; close the client, connect to another": (
        "tests/engines/test_lost_scheduler.py::test_it_is_told_at_once_and_the_same_call_goes_on"
    ),
    "there have been no workers for too long; run the same again": "tests/slurm/test_elastic.py::test_all_workers_are_lost",
}
"""Tests that carry out the remedy of a message, by a piece of its text."""

SHAPE = (64, 64)
LAYOUT = {"shards": 16, "chunks": 8, "memory_limit": "60kB", "max_source_reruns": 100}
REGION = (slice(8, 40), slice(8, 40))


def carries_out(*pieces):
    """Register a test as the one that carries out the remedies of some messages."""

    def register(function):
        COVERED.update(dict.fromkeys(pieces, f"tests/test_remedies.py::{function.__name__}"))
        return function

    return register


@pytest.fixture(autouse=True)
def sync():
    with dask.config.set(scheduler="sync"):
        yield
    seams.forget_stop()


def values(version=0, shape=SHAPE):
    found = np.arange(np.prod(shape), dtype="u4").reshape(shape)
    return found + 1 + 10_000 * version


def source(version=0, region=...):
    return da.from_array(values(version)[region], chunks=16)


def write(path, version=0, **more):
    return source(version).to_sharded_zarr(
        path, **{**LAYOUT, "source_id": f"version {version}", **more}
    )


def update(path, version=1, region=REGION, **more):
    x = source(version, region)
    return x.to_sharded_zarr(
        path, region=region, source_id=f"version {version}", memory_limit="60kB", **more
    )


def read(path):
    return shardwrite.open_sharded(path)[:, :]


def shards(path):
    """Bytes of all shards."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted((path / "c").rglob("*"))
        if p.is_file()
    }


def interrupted_write(path, **more):
    """A run that makes an array and ended after its first task; its shards."""
    with pytest.raises(Stop):
        write(path, progress=stop, **more)
    found = shards(path)
    assert found, "nothing was committed"
    return found


def interrupted_update(path, **more):
    """An array, and an update of it that ended after its first task."""
    write(path)
    with pytest.raises(Stop):
        update(path, progress=stop, **more)


def interrupted_repair(path):
    """An array, and a repair of it that ended when its shards were written."""
    write(path)
    (path / "c/1/1").write_bytes(b"torn")
    with pytest.raises(Stop):
        shardwrite.repair(path, source(), progress=stop)


def is_tidy(path):
    return not seams.state_beside(path).exists()


def updated(version=1):
    found = values()
    found[REGION] = values(version)[REGION]
    return found


def old_or_new(path):
    found = read(path)
    for index in np.ndindex(4, 4):
        shard = tuple(slice(16 * i, 16 * i + 16) for i in index)
        assert any((found[shard] == v[shard]).all() for v in (values(), updated())), (
            f"shard {index} is neither old nor new"
        )


def refused(piece, error, call):
    with pytest.raises(error, match=re.escape(piece)) as caught:
        call()
    return caught.value


# ---- a run that makes the array has not ended

MAKES = "the run that makes"
WAYS_IN = {
    "update": lambda path: update(path),
    "update by restart": lambda path: update(path, restart=True),
    "erase by restart": lambda path: shardwrite.erase(path, REGION, restart=True),
    "abandon": lambda path: shardwrite.abandon(path),
    "stream": lambda path: stream(path),
}


def stream(path):
    with ShardWriter(path, n_threads=1) as writer:
        writer.append(np.zeros((1, 64), "u4"))


@carries_out("the run that makes {} has not ended. Make the same call again")
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_run_that_makes_the_array_is_given_up_by_nothing_but_itself(tmp_path, way):
    """Three acknowledged shards were lost with the array, after an update with ``restart=True``."""
    path = tmp_path / "x"
    before = interrupted_write(path, publish="first")
    refused(MAKES, JournalError, lambda: WAYS_IN[way](path))
    assert shards(path) == before
    result = write(path, publish="first")
    assert result.n_resumed_shards == len(before)
    np.testing.assert_array_equal(read(path), values())
    assert is_tidy(path)
    update(path)
    np.testing.assert_array_equal(read(path), updated())


def test_a_run_whose_writer_dies_while_it_is_looked_at_is_not_given_up(tmp_path, monkeypatch):
    """It was alive at the first look and dead at the second: still it makes the array."""
    path = tmp_path / "x"
    before = interrupted_write(path, publish="first")
    run = seams.run_of(path)
    neighbours = importlib.import_module("shardwrite.journal.neighbours")
    alive = [Holder(Process(host="there"), "other", 1.0)]
    monkeypatch.setattr(neighbours, "live_holders", lambda path: alive)
    with pytest.raises(JournalError, match="is being written"):
        neighbours.give_up(run)
    assert shards(path) == before


@carries_out(": call shardwrite finalize again")
def test_only_a_write_of_the_whole_array_starts_over(tmp_path):
    path = tmp_path / "x"
    interrupted_write(path, publish="first")
    refused(MAKES, JournalError, lambda: update(path))
    write(path, 2, restart=True)
    np.testing.assert_array_equal(read(path), values(2))
    assert is_tidy(path)


def test_the_command_abandon_says_that_the_array_is_still_made(tmp_path):
    path = tmp_path / "x"
    before = interrupted_write(path, publish="first")
    said = CliRunner().invoke(main, ["abandon", str(path)])
    assert said.exit_code == 1
    assert MAKES in said.output
    assert shards(path) == before


@carries_out("was removed while a run on {} in it had not ended")
def test_a_group_that_was_removed_while_an_array_in_it_was_replaced(tmp_path):
    """The old array may lie in the state."""
    root = tmp_path / "x"
    zarr.create_group(root)
    write(root / "a")
    with pytest.raises(Stop):
        write(root / "a", 1, mode="w", progress=stop)
    shutil.rmtree(root)
    refused(f"and remove {root}.shardwrite", JournalError, lambda: write(root / "b", 2))
    assert not root.exists()
    shutil.rmtree(f"{root}.shardwrite")
    write(root / "b", 2)
    np.testing.assert_array_equal(read(root / "b"), values(2))


@carries_out("Give the update up with abandon (shardwrite abandon), repair these shards")
def test_an_update_that_meets_a_bad_shard(tmp_path):
    path = tmp_path / "x"
    write(path)
    bad = next(key for key in sorted(shards(path)) if key.startswith("c/"))
    (path / bad).write_bytes(b"torn")
    part = (slice(2, 12), slice(2, 12))
    message = "Give the update up with abandon (shardwrite abandon), repair these shards"
    refused(message, CorruptShardError, lambda: update(path, region=part))
    refused("has not ended", JournalError, lambda: shardwrite.repair(path, source()))
    shardwrite.abandon(path)
    shardwrite.repair(path, source())
    update(path, region=part)
    expected = values()
    expected[part] = values(1)[part]
    np.testing.assert_array_equal(read(path), expected)


def test_an_update_of_an_array_that_was_removed_with_its_group_is_forgotten(tmp_path):
    """Its journal would tell of shards that the next array of this name does not have."""
    root = tmp_path / "x"
    zarr.create_group(root)
    interrupted_update(root / "a")
    assert (tmp_path / "x.shardwrite").exists()
    shutil.rmtree(root)
    write(root / "a", 2)
    assert not (tmp_path / "x.shardwrite").exists()
    zarr.create_group(root)
    update(root / "a")
    expected = values(2)
    expected[REGION] = values(1)[REGION]
    np.testing.assert_array_equal(read(root / "a"), expected)


@carries_out(
    "another plan was begun for {} and has not ended",
    "start over with restart=True (--restart), which takes its",
)
@pytest.mark.parametrize("publish", ["first", "last"])
def test_another_plan_for_a_new_array(tmp_path, publish):
    path = tmp_path / "x"
    interrupted_write(path, publish=publish)
    shutil.copytree(tmp_path, tmp_path / "copy")
    refused(
        "start over with restart=True (--restart), which takes its shards away",
        JournalError,
        lambda: write(path, 2),
    )
    assert write(path, publish=publish).n_resumed_shards > 0
    np.testing.assert_array_equal(read(path), values())
    path = tmp_path / "copy" / "x"
    assert write(path, 2, restart=True).n_resumed_shards == 0
    np.testing.assert_array_equal(read(path), values(2))
    assert is_tidy(path)


def store_two(root, version=0, **keywords):
    x = da.from_array(values(version), chunks=(16, 32))
    names = {"names": ["a", "b"], "source_id": f"version {version}"}
    return shardwrite.store([x, x + 1], [root] * 2, **names, shards=16, chunks=4, **keywords)


@carries_out("writes {} other arrays, too, such as {}")
def test_one_of_the_arrays_of_a_run(tmp_path, monkeypatch):
    root = tmp_path / "tree"
    with monkeypatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(Stop):
            store_two(root)
    x = da.from_array(values(2), chunks=(16, 32))
    refused(
        "Make the call that writes all of them with restart=True",
        JournalError,
        lambda: x.to_sharded_zarr(root, name="a", shards=16, chunks=4, restart=True),
    )
    assert store_two(root, 2, restart=True)[0].n_resumed_shards == 0
    np.testing.assert_array_equal(read(root / "a"), values(2))
    assert is_tidy(root)


@carries_out("another call has written {} since the run {} was begun")
def test_an_array_that_another_call_has_written_amid_a_begin(tmp_path, monkeypatch):
    root, link = tmp_path / "tree", os.link

    def link_one(source, target, **keywords):
        if str(target).startswith(str(root / "b")):
            raise KeyboardInterrupt
        link(source, target, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link_one)
        patch.setattr("shardwrite.journal.begin.cancel_begin", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            store_two(root)
    da.from_array(values(3), chunks=(16, 32)).to_sharded_zarr(root, name="b", shards=16, chunks=4)
    refused(
        "Make this call again with restart=True", JournalError, lambda: store_two(root, mode="w")
    )
    store_two(root, mode="w", restart=True)
    np.testing.assert_array_equal(read(root / "b"), values() + 1)
    assert is_tidy(root)


@carries_out("{} does not hold a plan that can be written in parts")
def test_a_plan_that_is_none_for_parts(tmp_path, monkeypatch):
    x, path = source(), tmp_path / "x"
    made = shardwrite.plan(x, **LAYOUT)
    shardwrite.prepare(x, path, made)
    shardwrite.write_part(x, path, 0, 2)

    def torn(*_):
        raise ValueError("its tasks do not fit the array")

    with monkeypatch.context() as patch:
        patch.setattr("shardwrite.runs.begun._partition", torn)
        refused(
            "call prepare again with restart=True",
            JournalError,
            lambda: shardwrite.write_part(x, path, 1, 2),
        )
    shardwrite.prepare(x, path, made, restart=True)
    assert not shards(path), "its shards were to be taken away"
    for index in range(2):
        shardwrite.write_part(x, path, index, 2)
    shardwrite.finalize(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out(
    "make the same call again to finish it, or shardwrite finalize, if all of its parts are written"
)
def test_reading_an_array_that_is_not_whole_yet(tmp_path):
    path = tmp_path / "x"
    interrupted_write(path)
    refused("make the same call again to finish it", SpecError, lambda: read(path))
    refused("make the same call again to finish it", SpecError, lambda: shardwrite.abandon(path))
    write(path)
    np.testing.assert_array_equal(read(path), values())
    x, path = source(), tmp_path / "y"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    shardwrite.write_part(x, path, 0, 1)
    refused("shardwrite finalize", SpecError, lambda: read(path))
    assert CliRunner().invoke(main, ["finalize", str(path)]).exit_code == 0
    np.testing.assert_array_equal(read(path), values())


@carries_out("run its command again with recheck=True (--recheck)")
def test_repairing_an_array_that_is_not_whole_yet(tmp_path):
    path = tmp_path / "x"
    key = sorted(interrupted_write(path))[0]
    (path / key).write_bytes(b"torn")
    refused(
        "run its command again with recheck=True (--recheck)",
        JournalError,
        lambda: shardwrite.repair(path, source()),
    )
    write(path, recheck=True)
    np.testing.assert_array_equal(read(path), values())


# ---- an update, a compaction or a repair has not ended

IN_THE_WAY = {
    "update": interrupted_update,
    "update in place": lambda path: interrupted_update(path, strategy=AppendOnly(in_place=True)),
    "compaction": lambda path: interrupted_compaction(path),
    "repair": interrupted_repair,
}
AGAIN = {
    "update": update,
    "update in place": lambda path: update(path, strategy=AppendOnly(in_place=True)),
    "compaction": lambda path: shardwrite.compact(path, above=0),
    "repair": lambda path: shardwrite.repair(path, source()),
}


def interrupted_compaction(path):
    write(path)
    update(path, strategy=AppendOnly())
    with pytest.raises(Stop):
        shardwrite.compact(path, above=0, progress=stop)


GIVE_UP = "or give it up with abandon"
LATER = {
    "update": lambda path: update(path, 2),
    "erase": lambda path: shardwrite.erase(path, REGION),
    "compaction in another order": lambda path: shardwrite.compact(path, above=0, order="F"),
    "repair": lambda path: (
        (path / "c/2/2").write_bytes(b"torn") and shardwrite.repair(path, source())
    ),
    "repair from elsewhere": lambda path: (
        (path / "c/2/2").write_bytes(b"torn") and shardwrite.repair(path, source() + 0)
    ),
    "stream": stream,
    "replacement": lambda path: write(path, 2, mode="w"),
    "creation": lambda path: shardwrite.create(path, (8, 8), "u4", shards=8, chunks=4, mode="w"),
}


@carries_out(
    "{} of {} has not ended{}. Run that again to finish it, or give it up with abandon (shardwrite abandon)",
    "give it up with abandon (shardwrite abandon), which leaves each of its shards as it is",
    "a repair",
)
@pytest.mark.parametrize(
    ("first", "later"),
    [
        pytest.param(first, later, marks=pytest.mark.long if (n + m) % 2 else ())
        for n, first in enumerate(IN_THE_WAY)
        for m, later in enumerate(LATER)
        if "compaction" not in later
        or first == "compaction"  # elsewhere there is nothing to compact
    ],
)
def test_an_update_in_the_way_is_run_again_or_given_up(tmp_path, first, later):
    path = tmp_path / "x"
    IN_THE_WAY[first](path)
    if (first, later) == ("repair", "repair"):
        LATER[later](path)  # it is the same one
        assert is_tidy(path)
        return
    before = shards(path)
    with pytest.raises(JournalError) as caught:
        LATER[later](path)
    said = str(caught.value)
    assert "un that again to finish it" in said or "Run it again as it was to finish it" in said
    assert GIVE_UP in said
    if "repair" not in later:
        assert shards(path) == before, "what was refused has changed something"
        shutil.copytree(tmp_path, tmp_path / "copy")
        AGAIN[first](path)
        assert is_tidy(path)
        LATER[later](path)
        assert is_tidy(path)
        path = tmp_path / "copy" / "x"
    assert CliRunner().invoke(main, ["abandon", str(path)]).exit_code == 0
    assert is_tidy(path)
    if "repair" not in later:
        if first != "compaction":
            old_or_new(path)
        assert set(shards(path)) == set(before)
    LATER[later](path)
    assert is_tidy(path)


@carries_out("An update with restart=True (--restart) gives it up, too")
@pytest.mark.parametrize("first", IN_THE_WAY)
def test_an_update_with_restart_gives_up_updates(tmp_path, first):
    path = tmp_path / "x"
    IN_THE_WAY[first](path)
    refused(
        "An update with restart=True (--restart) gives it up, too",
        JournalError,
        lambda: update(path, 2),
    )
    update(path, 2, restart=True)
    np.testing.assert_array_equal(read(path)[REGION], values(2)[REGION])
    assert is_tidy(path)
    assert shardwrite.verify(path, deep=True).is_good


@carries_out("Replacing the array takes its shards away: give restart=True (--restart) to do so")
def test_replacing_an_array_takes_no_update_away_without_being_told_to(tmp_path):
    path = tmp_path / "x"
    interrupted_update(path)
    before = shards(path)
    refused(
        "Replacing the array takes its shards away", JournalError, lambda: write(path, 2, mode="w")
    )
    assert shards(path) == before
    write(path, 2, mode="w", restart=True)
    np.testing.assert_array_equal(read(path), values(2))
    assert is_tidy(path)


def test_a_write_that_is_refused_gives_up_no_repair(tmp_path):
    path = tmp_path / "x"
    interrupted_repair(path)
    run = seams.plan_files(path)
    refused("an array exists there", SpecError, lambda: write(path, 2, restart=True))
    assert seams.plan_files(path) == run


@carries_out("an earlier repair has not ended; repair again with the source")
@pytest.mark.parametrize("remedy", ["source", "abandon"])
def test_a_repair_that_was_interrupted_at_its_end(tmp_path, remedy):
    """It said done, updates were refused, and there was nothing to abandon."""
    path = tmp_path / "x"
    interrupted_repair(path)
    assert shardwrite.verify(path, deep=True).is_good, "it was to be interrupted at its end"
    refused("a repair of", JournalError, lambda: update(path))
    told = shardwrite.repair(path)
    assert told.tasks == ()
    assert not told.is_done
    assert "an earlier repair has not ended" in str(told)
    if remedy == "source":
        assert shardwrite.repair(path, source()).is_done
    else:
        assert shardwrite.abandon(path) == [((0, 64), (0, 64))]
    assert is_tidy(path)
    assert shardwrite.repair(path).is_done
    update(path)
    np.testing.assert_array_equal(read(path), updated())


def test_a_repair_that_was_interrupted_does_not_hide_the_array_from_finalize_and_status(tmp_path):
    path = tmp_path / "x"
    interrupted_repair(path)
    assert shardwrite.finalize(path).n_shards == 16
    assert seams.status_of(path).is_whole


@carries_out(
    "the shape of {} became {} while an update of {} was planned; make the same call again"
)
def test_an_array_that_grows_while_an_update_is_planned(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write(path)
    real = shardwrite.operations.region.execute_staged

    def late(*arguments):
        monkeypatch.setattr("shardwrite.operations.region.execute_staged", real)
        source(2, (slice(0, 16), slice(None))).to_sharded_zarr(path, region="append")
        return real(*arguments)

    monkeypatch.setattr("shardwrite.operations.region.execute_staged", late)
    again = lambda: source(1, (slice(0, 16), slice(None))).to_sharded_zarr(path, region="append")  # noqa: E731
    refused("make the same call again", JournalError, again)
    again()
    np.testing.assert_array_equal(
        read(path), np.concatenate([values(), values(2)[:16], values(1)[:16]])
    )


ANOTHER = {
    "codecs": {"chunks": 4},
    "codecs[0].configuration.index_location": {"index_location": "start"},
    "fill_value": {"fill_value": 9},
}


def test_an_array_that_is_gone_when_an_update_begins(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write(path)
    real = shardwrite.operations.region.execute_staged

    def late(*arguments):
        monkeypatch.setattr("shardwrite.operations.region.execute_staged", real)
        path.rename(tmp_path / "aside")
        return real(*arguments)

    monkeypatch.setattr("shardwrite.operations.region.execute_staged", late)
    again = lambda: source(1, (slice(0, 16), slice(None))).to_sharded_zarr(path, region=np.s_[:16])  # noqa: E731
    refused("make the same call again. Another process may", JournalError, again)
    assert is_tidy(path)
    (tmp_path / "aside").rename(path)
    again()
    np.testing.assert_array_equal(read(path), np.concatenate([values(1)[:16], values()[16:]]))


@pytest.mark.parametrize("other", list(ANOTHER))
@carries_out("since an update of it was planned; make the same call again")
def test_an_array_that_is_another_one_when_an_update_begins(tmp_path, monkeypatch, other):
    path = tmp_path / "x"
    write(path)
    real = shardwrite.operations.region.execute_staged

    def late(*arguments):
        monkeypatch.setattr("shardwrite.operations.region.execute_staged", real)
        write(path, mode="w", **ANOTHER[other])
        return real(*arguments)

    monkeypatch.setattr("shardwrite.operations.region.execute_staged", late)
    again = lambda: source(1, (slice(0, 16), slice(None))).to_sharded_zarr(path, region=np.s_[:16])  # noqa: E731
    refused(f"make the same call again. It differs in {other}", JournalError, again)
    assert is_tidy(path)
    np.testing.assert_array_equal(read(path), values())
    again()
    np.testing.assert_array_equal(read(path), np.concatenate([values(1)[:16], values()[16:]]))


@pytest.mark.parametrize("other", ["gone", *ANOTHER])
@carries_out("since a ShardWriter of it was opened; open another one")
def test_an_array_that_is_another_one_when_a_stream_begins(tmp_path, other):
    path = tmp_path / "x"
    write(path)
    row = np.ones((1, 64), "u4")
    with ShardWriter(path, n_threads=1) as late:
        if other == "gone":
            path.rename(tmp_path / "aside")
        else:
            write(path, mode="w", **ANOTHER[other])
        refused("open another one", JournalError, lambda: late.append(row))
    if other == "gone":
        (tmp_path / "aside").rename(path)
    assert is_tidy(path)
    np.testing.assert_array_equal(read(path), values())
    with ShardWriter(path, n_threads=1) as writer:
        writer.append(row)
    np.testing.assert_array_equal(read(path)[64:], row)


@carries_out("became {}, and this writer knows {}; open another one", "make another one")
def test_writers_that_are_closed_or_late(tmp_path):
    path = tmp_path / "x"
    write(path)
    late = ShardWriter(path, n_threads=1)
    stream(path)
    row = np.ones((1, 64), "u4")
    refused("open another one", JournalError, lambda: late.append(row))
    late.close()
    refused("make another one", SpecError, lambda: late.append(row))
    with ShardWriter(path, n_threads=1) as writer:
        writer.append(row)
    np.testing.assert_array_equal(read(path)[64:], [np.zeros(64), np.ones(64)])


# ---- somebody is at work

BLOCKED = """
    import dask, dask.array as da, numpy as np, sys, time, shardwrite
    def wait(block):
        print("at work", flush=True)
        time.sleep(120)
        return block
    x = da.ones((64, 64), chunks=16).map_blocks(wait, dtype="f8", meta=np.empty((0, 0)))
    with dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(sys.argv[1], shards=16, chunks=8)
"""


@carries_out("Wait for it, or end that process first")
@pytest.mark.parametrize("remedy", ["end", "wait"])
def test_another_process_is_at_work(tmp_path, remedy):
    path = tmp_path / "x"
    if remedy == "end":
        other = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(BLOCKED), path],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert other.stdout.readline() == "at work\n"
            refused(f"pid {other.pid}", JournalError, lambda: write(path, restart=True))
        finally:
            other.send_signal(signal.SIGKILL)
            other.communicate()
        write(path, restart=True)
    else:
        go, reached = threading.Event(), threading.Event()

        def wait(block):
            reached.set()
            assert go.wait(60)
            return block

        x = source(2).map_blocks(wait, dtype="u4", meta=np.empty((0, 0), "u4"))
        thread = threading.Thread(target=lambda: x.to_sharded_zarr(path, **LAYOUT))
        thread.start()
        try:
            assert reached.wait(60)
            refused("Wait for it", JournalError, lambda: write(path, restart=True))
        finally:
            go.set()
            thread.join(60)
        write(path, mode="w")
    np.testing.assert_array_equal(read(path), values())
    assert is_tidy(path)


HOLDS = """
    import sys, time, pathlib
    import seams
    with seams.hold_claim(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])):
        print("held", flush=True)
        time.sleep(120)
"""


@carries_out(
    "{} was not given back in {} s. End the process that holds it ({}), and run the same command again"
)
def test_a_claim_that_another_process_keeps(tmp_path, monkeypatch):
    path = tmp_path / "x"
    interrupted_update(path)
    claim = seams.state_beside(path) / "claim-end"
    (tmp_path / "run").mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDS), claim, tmp_path / "run"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout.readline() == "held\n"
        with dask.config.set({"shardwrite.lease.claim-wait": 0.05}):
            error = refused("End the process that holds it", JournalError, lambda: update(path))
            assert str(other.pid) in str(error)
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    update(path)
    np.testing.assert_array_equal(read(path), updated())
    assert is_tidy(path)


# ---- a run that is not whole


@carries_out(
    "it was stopped on request; run the same command again to go on",
    "these are of {}; it was stopped on request, run the same command again",
)
def test_stopped_on_request(tmp_path):
    path = tmp_path / "x"
    stop = lambda _: seams.request_stop()  # noqa: E731
    refused(
        "run the same command again to go on", IncompleteError, lambda: write(path, progress=stop)
    )
    seams.forget_stop()
    assert write(path).n_resumed_shards > 0
    np.testing.assert_array_equal(read(path), values())
    x, path = source(), tmp_path / "y"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    refused(
        "these are of", IncompleteError, lambda: shardwrite.write_part(x, path, 0, 1, progress=stop)
    )
    seams.forget_stop()
    assert shardwrite.write_part(x, path, 0, 1).n_resumed_shards > 0
    shardwrite.finalize(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("run the same command again to go on")
def test_a_shard_that_nobody_committed(tmp_path, monkeypatch):
    path = tmp_path / "x"
    with monkeypatch.context() as patch:
        seams.skip(patch, "enter shards")
        refused("run the same command again to go on", IncompleteError, lambda: write(path))
    write(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("call prepare first (shardwrite init)", "call shardwrite init first")
@pytest.mark.parametrize("how", ["function", "command"])
def test_nothing_was_begun(tmp_path, how):
    x, path = source(), tmp_path / "x"
    np.save(tmp_path / "x.npy", values())
    refused(
        "call prepare first (shardwrite init)",
        IncompleteError,
        lambda: shardwrite.write_part(x, path, 0, 1),
    )
    refused(
        "call prepare first (shardwrite init)", IncompleteError, lambda: shardwrite.finalize(path)
    )
    refused("call shardwrite init first", IncompleteError, lambda: seams.status_of(path))
    if how == "function":
        shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
        shardwrite.write_part(x, path, 0, 1)
    else:
        done = CliRunner().invoke(
            main, ["init", str(tmp_path / "x.npy"), str(path), "--shards", "16", "--chunks", "8"]
        )
        assert done.exit_code == 0, done.output
        assert (
            CliRunner()
            .invoke(main, ["write-part", str(tmp_path / "x.npy"), str(path), "0/1"])
            .exit_code
            == 0
        )
    assert seams.status_of(path).n_shards == 16
    shardwrite.finalize(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out(
    "write their parts again; give the number of parts to be told which",
    "part{} {} of {} must be written again",
)
def test_parts_that_are_missing(tmp_path):
    x, path = source(), tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    shardwrite.write_part(x, path, 1, 2)
    refused(
        "give the number of parts to be told which",
        IncompleteError,
        lambda: shardwrite.finalize(path),
    )
    error = refused(
        "part 0 of 2 must be written again",
        IncompleteError,
        lambda: shardwrite.finalize(path, n_parts=2),
    )
    for part in error.parts:
        shardwrite.write_part(x, path, part, 2)
    shardwrite.finalize(path)
    np.testing.assert_array_equal(read(path), values())


def test_a_finalize_that_was_interrupted_after_it_published(tmp_path, monkeypatch):
    """The array was out, and status said that it was not published yet."""
    x, path = source(), tmp_path / "x"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    shardwrite.write_part(x, path, 0, 1)
    assert "not published yet" in str(seams.status_of(path))

    with monkeypatch.context() as patch:
        seams.kill_before(patch, "leave a receipt", Stop)
        with pytest.raises(Stop):
            shardwrite.finalize(path)
    found = seams.status_of(path)
    assert "not published yet" not in str(found)
    assert "published; its run has not ended: call shardwrite finalize again" in str(found)
    assert CliRunner().invoke(main, ["finalize", str(path)]).exit_code == 0
    assert seams.status_of(path).is_whole
    assert is_tidy(path)


# ---- something stands there


@carries_out('give mode="w" to replace it')
def test_an_array_stands_there(tmp_path):
    path = tmp_path / "x"
    write(path)
    x = source(2)
    for call in (
        lambda **mode: write(path, 2, **mode),
        lambda **mode: shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT), **mode),
        lambda **mode: shardwrite.create(path, (8, 8), "u4", shards=8, chunks=4, **mode),
    ):
        refused('give mode="w" to replace it', SpecError, call)
        np.testing.assert_array_equal(read(path), values())
        shutil.copytree(tmp_path, tmp_path.with_name("kept"))
        call(mode="w")
        if is_tidy(path):
            assert read(path).shape == (8, 8) or (read(path) == values(2)).all()
        shutil.rmtree(tmp_path)
        tmp_path.with_name("kept").rename(tmp_path)


def stands(kind, path):
    if kind == "a group":
        zarr.create_group(path, attributes={"a": 1})
    elif kind == "of version 2":
        path.mkdir()
        (path / ".zarray").write_text("{}")
    elif kind == "torn":
        path.mkdir()
        (path / "zarr.json").write_text('{"zarr_')
    elif kind == "another thing":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    else:
        (path.parent / "elsewhere").mkdir()
        path.symlink_to(path.parent / "elsewhere")


@carries_out(
    "give another name= inside it, or remove it yourself",
    "give another path, or remove it yourself",
    "remove it yourself, after a look",
)
@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("a group", "give another name= inside it, or remove it yourself"),
        ("of version 2", "give another path, or remove it yourself"),
        ("torn", "remove it yourself, after a look"),
        ("another thing", "give another path, or remove it yourself"),
        ("a link", "give the path that it points to"),
    ],
)
def test_something_else_stands_there(tmp_path, kind, remedy):
    path = tmp_path / "x"
    stands(kind, path)
    refused(remedy, SpecError, lambda: write(path))
    refused(remedy, SpecError, lambda: write(path, mode="w"))
    if "name=" in remedy:
        write(path, name="inside")
        np.testing.assert_array_equal(zarr.open_group(path)["inside"][...], values())
    if "another path" in remedy:
        write(tmp_path / "y")
    if kind == "a link":
        write(path.resolve())
        np.testing.assert_array_equal(read(path.resolve()), values())
        return
    shutil.rmtree(path)
    write(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("remove the link", "move the file away")
@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_else_stands_beside_it(tmp_path, kind):
    path, beside = tmp_path / "x", seams.state_beside(tmp_path / "x")
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        beside.symlink_to(tmp_path / "elsewhere")
        refused("remove the link", SpecError, lambda: write(path))
        beside.unlink()
    else:
        beside.write_text("mine")
        refused("move the file away", SpecError, lambda: write(path))
        beside.rename(tmp_path / "away")
    write(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("give either --region or --append AXIS")
def test_a_command_without_its_option(tmp_path):
    write(tmp_path / "x")
    np.save(tmp_path / "new.npy", values(1)[REGION])
    command = ["update", str(tmp_path / "new.npy"), str(tmp_path / "x")]
    said = CliRunner().invoke(main, command)
    assert said.exit_code == 2
    assert "give either --region or --append AXIS" in said.output
    done = CliRunner().invoke(main, [*command, "--region", "8:40,8:40"])
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(read(tmp_path / "x"), updated())


# ---- what is torn


@carries_out("Move {} away after a look, and keep it")
@pytest.mark.parametrize("kind", ["array", "update"])
@pytest.mark.parametrize(
    "torn", [b'{"run', b'{"run": "../../x", "digest": "d", "replaces": false}']
)
def test_a_plan_that_is_torn(tmp_path, kind, torn):
    path = tmp_path / "x"
    if kind == "array":
        interrupted_write(path)
    else:
        interrupted_update(path)
    (plan,) = seams.plan_files(path)
    plan.unlink()
    plan.write_bytes(torn)
    again = (lambda: write(path)) if kind == "array" else (lambda: update(path))
    refused(f"Move {plan.parent} away after a look", JournalError, again)
    plan.parent.rename(tmp_path / "kept")
    if kind == "array":  # shards without metadata are no array
        refused("give another path, or remove it yourself", SpecError, again)
        shutil.rmtree(path)
    again()
    np.testing.assert_array_equal(read(path), values() if kind == "array" else updated())
    assert is_tidy(path)


def test_an_update_of_another_array(tmp_path):
    path = tmp_path / "x"
    interrupted_update(path)
    (document,) = seams.state_beside(path).rglob("run-*/zarr.json")
    document.write_text(json.dumps({**json.loads(document.read_text()), "shape": [8, 8]}))
    (run,) = seams.state_beside(path).glob("updates/*")
    refused(
        f"Move {run} away after a look, and keep it", JournalError, lambda: shardwrite.abandon(path)
    )
    run.rename(tmp_path / "kept")
    assert shardwrite.abandon(path) == []
    assert is_tidy(path)
    update(path)
    np.testing.assert_array_equal(read(path), updated())


@carries_out(
    "{} is no receipt ({}); remove it, and verify --deep instead", "remove it, and verify deep"
)
@pytest.mark.parametrize("torn", ["{", [[0, 1000]]])
def test_a_receipt_that_is_torn(tmp_path, torn):
    path = tmp_path / "x"
    write(path)
    receipt = seams.receipt_of(path)
    if torn == "{":
        receipt.write_text(torn)
    else:
        seams.change_receipt(path, lambda found: found.update(empty=torn))
    if torn == "{":
        refused(
            "remove it, and verify --deep instead", JournalError, lambda: shardwrite.verify(path)
        )
    else:  # it only does not fit the array
        assert "remove it, and verify deep" in shardwrite.verify(path).warnings[0]
    receipt.unlink()
    assert shardwrite.verify(path, deep=True).is_good
    assert CliRunner().invoke(main, ["verify", "--deep", str(path)]).exit_code == 0


@carries_out("restore it, or remove the array and write that again")
def test_metadata_that_is_torn(tmp_path):
    path = tmp_path / "x"
    write(path)
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text[:50])
    refused("restore it, or remove the array and write that again", SpecError, lambda: read(path))
    shutil.copytree(tmp_path, tmp_path / "copy")
    (path / "zarr.json").write_text(text)
    np.testing.assert_array_equal(read(path), values())
    path = tmp_path / "copy" / "x"
    shutil.rmtree(path)
    write(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("the receipt of {} does not hold a result ({}); remove the receipt")
def test_a_receipt_without_a_result(tmp_path):
    path = tmp_path / "x"
    write(path)
    update(path)
    receipt = seams.receipt_of(path)
    seams.change_receipt(
        path, lambda found: found["updates"][-1].update(result={"n_shards": "many"})
    )
    refused("remove the receipt", JournalError, lambda: update(path))
    receipt.unlink()
    update(path)
    np.testing.assert_array_equal(read(path), updated())


@carries_out("Put a copy back, or remove it and verify --deep. After that nobody knows")
def test_a_receipt_of_which_a_bit_has_flipped(tmp_path):
    """A call that believed it would append the same rows once more."""
    path = tmp_path / "x"
    write(path)
    append = lambda: source(2, (slice(0, 16), slice(None))).to_sharded_zarr(  # noqa: E731
        path, region="append", source_id="row"
    )
    append()
    receipt = seams.receipt_of(path)
    good = receipt.read_bytes()
    bad = bytearray(good)
    bad[good.index(b'"row"') + 1] ^= 1
    receipt.write_bytes(bad)
    refused("Put a copy back", JournalError, append)
    receipt.write_bytes(good)
    append()
    assert read(path).shape[0] == len(values()) + 16
    receipt.write_bytes(bad)
    receipt.unlink()
    assert shardwrite.verify(path, deep=True).is_good
    assert read(path).shape[0] == len(values()) + 16, "the append is done"


@carries_out("tells of an append to another array; remove it after a look")
def test_a_receipt_of_another_array(tmp_path):
    path = tmp_path / "x"
    write(path)
    row = source(2, (slice(0, 16), slice(None)))
    row.to_sharded_zarr(path, region="append", source_id="row")
    receipt = seams.receipt_of(path)
    seams.change_receipt(
        path, lambda found: found["updates"][-1]["identity"].update(region=[[0, 16]])
    )
    again = lambda: row.to_sharded_zarr(path, region="append", source_id="row")  # noqa: E731
    refused("remove it after a look", JournalError, again)
    receipt.unlink()
    again()
    np.testing.assert_array_equal(
        read(path), np.concatenate([values(), values(2)[:16], values(2)[:16]])
    )


@carries_out("consolidate the group again, or remove it")
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("remedy", ["consolidate", "remove"])
def test_consolidated_metadata_that_is_none(tmp_path, remedy):
    root = tmp_path / "g"
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    root.mkdir()
    (root / "zarr.json").write_text(json.dumps({**group, "consolidated_metadata": 5}))
    refused("consolidate the group again, or remove it", SpecError, lambda: write(root, name="x"))
    (root / "zarr.json").write_text(json.dumps(group))
    if remedy == "consolidate":
        zarr.consolidate_metadata(root)
    write(root, name="x")
    np.testing.assert_array_equal(zarr.open_group(root, mode="r")["x"][...], values())
    assert is_tidy(root / "x")


@pytest.mark.parametrize("remedy", ["restore", "move away"])
def test_the_metadata_of_a_run_that_is_torn(tmp_path, remedy):
    path = tmp_path / "x"
    interrupted_write(path)
    (document,) = seams.state_beside(path).glob("run-*/zarr.json")
    text = document.read_text()
    document.write_text(text[:40])
    state = seams.state_beside(path)
    refused(f"Move {state} away after a look, and keep it", JournalError, lambda: write(path))
    if remedy == "restore":
        document.write_text(text)
        assert write(path).n_resumed_shards > 0
    else:
        state.rename(tmp_path / "kept")
        shutil.rmtree(path)
        write(path)
    np.testing.assert_array_equal(read(path), values())


@carries_out("remove it after a look, or write it again")
@pytest.mark.parametrize("remedy", ["remove", "write again"])
def test_the_document_of_a_group_that_is_torn(tmp_path, remedy):
    root = tmp_path / "g"
    zarr.create_group(root)
    write(root / "inner", name="other")
    document = root / "zarr.json"
    text = document.read_text()
    document.write_text(text[:40])
    refused("or write it again", SpecError, lambda: write(root / "inner", name="x"))
    if remedy == "remove":
        document.unlink()
    else:
        document.write_text(text)
    write(root / "inner", name="x")
    np.testing.assert_array_equal(zarr.open_group(root / "inner", mode="r")["x"][...], values())


@carries_out("{} is {} and not a file; remove it after a look")
def test_a_shard_that_is_no_file(tmp_path):
    path = tmp_path / "x"
    write(path)
    (path / "c/1/1").unlink()
    os.mkfifo(path / "c/1/1")
    refused(
        "not a file; remove it after a look",
        StoreError,
        lambda: shardwrite.open_sharded(path)[16:32, 16:32],
    )
    (path / "c/1/1").unlink()
    assert shardwrite.repair(path, source()).is_done
    np.testing.assert_array_equal(read(path), values())


@pytest.mark.parametrize("durability", ["full", "batch", "none"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["written", "emptied"])
def test_a_directory_in_place_of_a_shard(tmp_path, durability, is_empty):
    """A repair said "Is a directory", and nothing else. If the new shard was empty, all files in the
    directory were deleted."""
    path, new = tmp_path / "x", values()
    write(path)
    if is_empty:
        new[16:32, 16:32] = 0
    x = da.from_array(new, chunks=16)
    (path / "c/1/1").unlink()
    (path / "c/1/1").mkdir()
    (path / "c/1/1" / "mine").write_text("from somebody")
    remedy = "is a directory and not a file; remove it after a look"
    region = (slice(16, 32), slice(16, 32))
    refused(remedy, StoreError, lambda: shardwrite.repair(path, x, durability=durability))
    assert (path / "c/1/1" / "mine").read_text() == "from somebody"
    assert not list(path.rglob("*.swtmp"))
    shutil.rmtree(path / "c/1/1")
    assert shardwrite.repair(path, x, durability=durability).is_done
    assert shardwrite.verify(path, deep=True, against=x).is_good
    np.testing.assert_array_equal(read(path), new)
    (path / "c/1/1").unlink(missing_ok=True)
    (path / "c/1/1").mkdir()
    (path / "c/1/1" / "mine").write_text("from somebody")
    update = lambda: x[region].to_sharded_zarr(path, region=region, durability=durability)  # noqa: E731
    refused(remedy, StoreError, update)
    assert (path / "c/1/1" / "mine").exists()
    shutil.rmtree(path / "c/1/1")
    update()
    np.testing.assert_array_equal(read(path), new)


@carries_out("write the array again, or remove the document")
def test_a_document_without_a_shape(tmp_path):
    path = tmp_path / "x"
    write(path)
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    refused(
        "write the array again, or remove the document",
        SpecError,
        lambda: seams.target_of(path).shape,
    )
    write(path, mode="w")
    np.testing.assert_array_equal(read(path), values())


REPAIR = "write it again: shardwrite repair, with the source"


@carries_out(REPAIR, "to write again; give the source to do it", "written again", "to repair")
def test_bad_shards(tmp_path):
    path = tmp_path / "x"
    write(path)
    np.save(tmp_path / "x.npy", values())
    (path / "c/1/1").write_bytes(b"torn")
    assert [problem.remedy for problem in shardwrite.verify(path).problems] == [REPAIR]
    refused(REPAIR, CorruptShardError, lambda: shardwrite.compact(path))
    told = shardwrite.repair(path)
    assert "to repair" in str(told)
    assert "1 to write again; give the source to do it" in str(told)
    assert (
        CliRunner()
        .invoke(main, ["repair", str(path), "--source", str(tmp_path / "x.npy")])
        .exit_code
        == 0
    )
    np.testing.assert_array_equal(read(path), values())
    shardwrite.compact(path)
    (path / "c/1/1").write_bytes(b"torn")
    assert "1 written again" in str(shardwrite.repair(path, source()))


UNREAD = "it need not be bad: have the storage give it, and verify again"


@carries_out(UNREAD)
def test_shards_that_the_storage_refuses(tmp_path, monkeypatch):
    """A shard that nobody could look at is not told to be written again."""
    path = tmp_path / "x"
    write(path)
    real = os.open

    def refuse(name, *args, **kwargs):
        if os.fspath(name).endswith("c/1/1"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert [problem.remedy for problem in shardwrite.verify(path).problems] == [UNREAD]
    monkeypatch.undo()
    assert shardwrite.verify(path).is_good


RECOVER = "an update of the array was interrupted: run it again, or shardwrite abandon; if it is bad then, write it again"


@carries_out(RECOVER)
@pytest.mark.parametrize("remedy", ["again", "abandon"])
def test_bad_shards_after_an_update(tmp_path, remedy):
    path = tmp_path / "x"
    interrupted_update(path)
    (path / "c/3/3").write_bytes(b"torn")
    assert [problem.remedy for problem in shardwrite.verify(path).problems] == [RECOVER]
    refused("has not ended", JournalError, lambda: shardwrite.compact(path))
    if remedy == "again":
        update(path)
    else:
        assert CliRunner().invoke(main, ["abandon", str(path)]).exit_code == 0
    assert [problem.remedy for problem in shardwrite.verify(path).problems] == [REPAIR]
    whole = da.from_array(updated(), chunks=16)
    assert shardwrite.repair(path, whole).is_done
    assert shardwrite.verify(path, deep=True).is_good
    np.testing.assert_array_equal(read(path)[48:, 48:], values()[48:, 48:])


@carries_out("Run verify --deep, and repair from the source")
def test_an_inner_chunk_that_rots_beside_a_change(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write(path)

    with monkeypatch.context() as patch:
        seams.kill_before(patch, "settle a change", Stop)
        with pytest.raises(Stop):
            update(path, strategy=AppendOnly(in_place=True))
    (claim,) = seams.state_beside(path).rglob("claim-c.*")
    key = claim.name.removeprefix("claim-").replace(".", "/")
    data = bytearray((path / key).read_bytes())
    data[5] ^= 1  # in the first inner chunk, which the update does not touch
    (path / key).write_bytes(data)
    with pytest.warns(UserWarning, match="Run verify --deep, and repair from the source"):
        shardwrite.abandon(path)
    assert [problem.key for problem in shardwrite.verify(path, deep=True).problems] == [key]
    assert shardwrite.repair(path, source()).is_done
    assert shardwrite.verify(path, deep=True).is_good


@carries_out("write the shard again from its source")
def test_a_scan_that_would_prove_nothing(tmp_path):
    path = tmp_path / "x"
    write(path, index_location="start")
    (path / "c/1/1").write_bytes(b"torn")
    refused(
        "write the shard again from its source",
        SpecError,
        lambda: shardwrite.repair(path, scan=True),
    )
    assert shardwrite.repair(path, source()).is_done
    np.testing.assert_array_equal(read(path), values())


@carries_out('write it again from its source with mode="w" and restart=True')
def test_a_compaction_that_another_program_spoils(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write(path)
    update(path, strategy=AppendOnly())

    def spoil(*_):
        other = tmp_path / "other"
        da.from_array(values() % 2, chunks=16).to_sharded_zarr(other, **LAYOUT)
        shutil.copy(other / "c/0/0", path / "c/0/0")

    seams.before(monkeypatch, "check a compaction", spoil)
    remedy = 'write it again from its source with mode="w" and restart=True'
    refused(remedy, CorruptShardError, lambda: shardwrite.compact(path, above=0))
    write(path, 1, mode="w", restart=True)
    np.testing.assert_array_equal(read(path), values(1))


# ---- datasets of xarray


@carries_out(
    'give another path or group, or mode="w" to replace its arrays and attributes',
    "give another path or group, or remove it yourself",
)
def test_a_dataset_where_another_one_is(tmp_path):
    xr = pytest.importorskip("xarray")
    path = tmp_path / "x.zarr"

    def dataset(*names, n=1):
        return xr.Dataset({name: ("x", da.arange(5) * n) for name in names})

    def check(ds, **how):
        xr.testing.assert_identical(xr.open_zarr(path, **how).compute(), ds.compute())

    dataset("a", "b").shardwrite.to_zarr(path)
    remedy = 'give another path or group, or mode="w" to replace its arrays and attributes'
    refused(remedy, SpecError, lambda: dataset("a", "b", "c").shardwrite.to_zarr(path))
    dataset("a", "b", "c", n=2).shardwrite.to_zarr(path, mode="w")
    check(dataset("a", "b", "c", n=2))
    remedy = "give another path or group, or remove it yourself"
    refused(remedy, SpecError, lambda: dataset("a").shardwrite.to_zarr(path, mode="w"))
    dataset("a").shardwrite.to_zarr(path, group="g")
    check(dataset("a"), group="g", consolidated=False)
    for name in "bcg":
        shutil.rmtree(path / name)
    dataset("a").shardwrite.to_zarr(path, mode="w")
    check(dataset("a"), consolidated=False)


# ---- no message is forgotten

NAMES_A_REMEDY = re.compile(
    r"restart|abandon|\bagain\b|\brepair\b|\brecheck|\bprepare\b|shardwrite init|\bfinalize\b|\bverify\b|"
    r"\bremove (it(?! for)|the|that|\{)|\b[Mm]ove (the|\{)|open another|make another|mode=|restore|Wait for|(?<![\w-])--[a-z]"
)
SHELL = re.compile(r"^(exec |srun |--scheduler |\^#SBATCH |\n# Signals to this shell)")
"""Lines of job scripts; the tests in tests/slurm run them."""


ONLY_TOLD = (
    "Pauses before a failed commit is tried again",
    "makes a task begin again",
    "{} began again",
    "was run again, because workers that ran it died",
    "tried again after {} s",
    "is changed again and again",
)
"""Pieces of texts that tell what happens or has happened, and ask for nothing."""


def messages() -> Iterator[tuple[str, str]]:
    """Texts of the package that name a remedy, with their places; docstrings and the help of
    options are none."""
    # These put options for keywords, and options into groups, and list the help of all commands;
    # they have no messages of their own.
    names = ("main.py", "terminal.py", "wording.py")
    without = {ROOT / "shardwrite" / "cli" / name for name in names}
    for path in sorted(set((ROOT / "shardwrite").rglob("*.py")) - without):
        for line, text in texts_in(path):
            if any(piece in text for piece in ONLY_TOLD):
                continue
            if NAMES_A_REMEDY.search(text) and not SHELL.match(text):
                yield f"{path.relative_to(ROOT)}:{line}", text


def test_every_remedy_is_carried_out_by_a_test():
    found = list(messages())
    assert len(found) > 50
    forgotten = [
        f"{place}: {text}" for place, text in found if not any(piece in text for piece in COVERED)
    ]
    assert not forgotten, "\n".join(forgotten)
    stale = [piece for piece in COVERED if not any(piece in text for _, text in found)]
    assert not stale, f"no message says this any more: {stale}"


def test_the_tests_that_are_named_exist():
    for file in {where.split("::")[0] for where in COVERED.values()}:
        names = {
            node.name
            for node in ast.walk(ast.parse((ROOT / file).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        missing = {
            where
            for where in COVERED.values()
            if where.startswith(f"{file}::") and where.split("::")[1] not in names
        }
        assert not missing
