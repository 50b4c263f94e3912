"""Fault family 12: each seeded bug is a patch that makes a test fail. Without it, the test passes.

Apply one by hand with ``patch -p1 < tests/faults/bugs/<name>.patch``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import forked
import preloaded

ROOT = Path(__file__).parent.parent.parent
BUGS = Path(__file__).parent / "bugs"
CAUGHT_BY = {
    "no-fsync": "tests/write/test_protocol.py::test_full_syncs_file_then_renames_then_syncs_the_directory",
    "no-directory-fsync": "tests/write/test_protocol.py::test_full_syncs_file_then_renames_then_syncs_the_directory",
    "fsync-retried": "tests/faults/test_system_calls.py::test_a_failed_sync_is_not_called_again",
    "ack-before-rename": "tests/faults/test_commit_steps.py::test_what_is_not_committed_is_not_in_the_journal",
    "index-before-data": "tests/engines/test_engines.py::test_engines_write_the_same",
    "shared-temporary-name": "tests/write/test_protocol.py::test_two_attempts_of_one_object",
    "temporary-in-another-directory": "tests/write/test_protocol.py::test_one_open_one_rename_no_read",
    "short-write-ignored": "tests/write/test_protocol.py::test_short_writes_are_continued",
    "close-error-ignored": "tests/faults/test_commit_steps.py::test_the_system_is_asked_whether_the_close_went_well",
    "lease-ignored": "tests/faults/test_leases.py::test_who_lives",
    "journal-before-data": "tests/faults/test_commit_steps.py::test_what_is_not_committed_is_not_in_the_journal",
    "elided-by-value": "tests/operations/test_values.py",
    "record-after-change": (
        "tests/faults/test_updates_machine.py::test_killed_at_a_step[AppendOnly(in_place=True)-end-True, every seventh]"
    ),
    "recovered-in-place": "tests/journal/test_changes_in_place.py::test_after_a_failed_sync_the_shard_is_another_file",
    "kept-where-it-reads-back": "tests/faults/test_lossy_disk.py::test_what_was_flushed_is_on_the_disk[writer-append in place]",
    "torn-on-a-full-disk": "tests/faults/test_disk.py::test_acknowledged_frames_can_be_read_where_files_may_not_grow[auto]",
    "late-rename": "tests/journal/test_changes_in_place.py::test_a_rename_that_comes_late_fails",
    "late-clearing": "tests/journal/test_edges.py::test_a_process_that_was_frozen_brings_no_old_shard_back",
    "lease-taken-again": (
        "tests/buckets/test_state.py::test_a_process_that_was_frozen_before_its_state_was_there[False-w-]"
    ),
    "removed-by-path": "tests/journal/test_changes_in_place.py::test_a_shard_is_erased_by_its_own_run_alone",
    "empty-taken-for-lost": "tests/runs/test_made_again.py::test_an_update_is_made_again_after_a_repair",
    "check-of-other-bytes-believed": "tests/operations/test_parts.py::test_a_shard_that_was_written_again_is_checked_again",
    "journal-trusted-by-finalize": "tests/operations/test_parts.py::test_finalize_looks_at_shards_and_the_same_part_heals_them",
    "plan-of-this-machine": "tests/operations/test_parts.py::test_machines_of_different_sizes_write_the_same_bytes",
    "array-given-up-in-passing": (
        "tests/test_remedies.py::test_a_run_that_makes_the_array_is_given_up_by_nothing_but_itself"
    ),
    "repair-not-ended": "tests/test_remedies.py::test_a_repair_that_was_interrupted_at_its_end",
    "salvage-beside-updates": "tests/operations/test_repair.py::test_nobody_updates_a_shard_during_its_salvage",
    "nothing-tidied": "tests/faults/test_ends.py::test_the_same_call_again_leaves_nothing[stream]",
    "draft-of-nobody": "tests/faults/test_ends.py::test_the_same_call_again_leaves_nothing[write]",
    "pipe-waited-for": "tests/faults/test_bounds.py::test_something_else_in_the_array[shardwrite-receipt.json-pipe]",
    "text-without-bound": "tests/faults/test_bounds.py::test_bombs_in_chunks_of_variable_length[zstandard]",
    "shard-read-whole": "tests/faults/test_bounds.py::test_a_sparse_shard_of_a_tebibyte[nothing]",
    "source-run-twice": "tests/engines/test_engines.py::test_no_source_block_runs_twice",
    "planted-state-followed": (
        "tests/faults/test_other_users.py::test_state_planted_in_a_sticky_directory_is_reported_and_never_followed[taken]"
    ),
    "look-that-writes": "tests/faults/test_other_users.py::test_commands_that_look_change_nothing[owner]",
    "journalled-at-the-end": "tests/faults/test_redone.py::test_one_group_of_729_shards",
    "drained-taken-for-done": "tests/operations/test_draining.py::test_a_part_of_one_group",
    "scripts-by-stem": "tests/slurm/test_submissions.py::test_arrays_of_one_name_have_directories_of_their_own",
    "driver-not-told-to-end": "tests/slurm/test_workers.py::test_a_cancelled_driver_submits_no_more_and_the_next_does",
    "begun-group-refused": "tests/runs/test_publishing.py::test_arrays_of_one_group_are_begun_before_the_first_is_published",
    "ends-of-jobs-not-told": "tests/slurm/test_submissions.py::test_how_jobs_ended",
    "submitted-twice": "tests/slurm/test_submissions.py::test_a_second_submission_is_refused_until_the_first_has_ended",
    "lost-cluster-taken-for-an-error": "tests/slurm/test_inside.py::test_a_cluster_that_is_lost_is_no_error_of_the_program",
    "rights-not-kept": "tests/stores/test_rights.py::test_whatever_changes_an_array_keeps_mode_owner_and_group",
    "secrets-echoed": "tests/operations/test_odd_inputs.py::test_an_address_is_refused_without_its_credentials",
    "escapes-printed": "tests/operations/test_odd_inputs.py::test_control_characters_in_names_are_spelt_out",
    "fill-value-cut": "tests/operations/test_odd_inputs.py::test_a_fill_value_that_would_change_is_refused",
    "url-not-decoded": "tests/operations/test_odd_inputs.py::test_a_url_names_the_file_that_it_says",
    "http-for-everybody": "tests/slurm/test_listening.py::test_inside_an_allocation",
    "no-turns": "tests/host/test_turns.py::test_small_shards_are_committed_by_one_thread_at_a_time",
    "token-not-opened": "tests/faults/test_leases.py::test_a_writer_that_thaws_after_its_run_was_taken_away_commits_nothing",
    "empty-directory-left": "tests/faults/test_ends.py::test_the_same_call_again_leaves_nothing[write]",
    "receipt-believed": "tests/faults/test_bounds.py::test_wrong_values_in_a_receipt",
    "record-not-fenced": (
        "tests/journal/test_changes_in_place.py::test_a_holder_that_thaws_amid_its_recovery_does_not_end_its_change"
    ),
    "late-recovery": "tests/journal/test_changes_in_place.py::test_a_recovery_that_comes_late_takes_nothing_back",
    "kept-values-computed-again": "tests/operations/test_staged.py::test_a_flip_goes_on",
    "keeper-ends-first": (
        "tests/operations/test_staged.py::test_runs_of_two_arrays_end_one_after_the_other"
    ),
    "some-handed-over": (
        "tests/journal/test_handover.py::test_several_arrays_ended_between_two_renames"
    ),
    "published-not-told": "tests/test_remedies.py::test_a_finalize_that_was_interrupted_after_it_published",
    "seen-before-the-mark": (
        "tests/buckets/test_datasets.py::test_an_array_that_is_replaced_before_its_mark_is_not_appended_to[moto]"
    ),
}
needs_patch = pytest.mark.skipif(
    shutil.which("patch") is None, reason="needs patch (Debian's package patch)"
)
FROZEN = {
    "record-after-change": (12, ["update in place raw", "update append in place raw"]),
    "removed-by-path": (12, ["erase"]),
}
"""Bugs of two kinds that so many freezes find, too (see `freeze`), at these operations."""


LATE = {
    "late-recovery": [
        "update in place raw",
        "same",
        "pwrite .*/claim-c.0.0/",
        r"rename .*\.swtmp -> .*/c/0/0",
    ]
}
"""Bugs that interleaved processes find, too (see `explorer`): operation, takeover, and before which
effects the first process and the second stand, whatever they do before."""


def test_every_patch_is_listed():
    assert {patch.stem for patch in BUGS.glob("*.patch")} == set(CAUGHT_BY)
    assert {*FROZEN, *LATE} <= set(CAUGHT_BY)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what the tests need, with what Python has compiled of it."""
    root = tmp_path_factory.mktemp("copy")
    for part in ("shardwrite", "tests", "pyproject.toml"):
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part,
                root / part,
                ignore=shutil.ignore_patterns("node_modules"),
            )
        else:
            shutil.copy(ROOT / part, root / part)
    return root


@contextlib.contextmanager
def with_bug(root, bug):
    """A copy to which a patch is applied, and from which it is taken again."""
    command = ["patch", "-p1", "--quiet", "--fuzz=0", "--input", BUGS / f"{bug}.patch"]
    subprocess.run(command, cwd=root, check=True)
    try:
        yield
    finally:
        subprocess.run([*command, "--reverse"], cwd=root, check=True)


def run(root, *tests):
    """Exit code of pytest, 0 passed, 1 failed; and what it printed."""
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    code, text = forked.run_pytest(root, [*options, *(f"{root}/{test}" for test in tests)])
    assert code in (0, 1), text[-4000:]
    return code, text


@needs_patch
def test_every_patch_fits_the_package(tmp_path):
    shutil.copytree(ROOT / "shardwrite", tmp_path / "shardwrite")
    unfit = []
    for patch in sorted(BUGS.glob("*.patch")):
        command = ["patch", "-p1", "--quiet", "--fuzz=0", "--force", "--dry-run"]
        with patch.open() as text:
            ended = subprocess.run(
                command, stdin=text, cwd=tmp_path, check=False, capture_output=True
            )
        unfit += [patch.stem] if ended.returncode else []
    assert not unfit


ALL_BUGS = bool(os.environ.get("ALL_BUGS"))
SEEDED = [bug for n, bug in enumerate(CAUGHT_BY) if ALL_BUGS or n % 5 == 0 or bug in LATE]
"""What is tried here shows tests of all folders that can fail; ``ALL_BUGS=1 make test-long`` tries
all of them, as one does before a release."""


@pytest.mark.long
def test_without_a_bug_the_tests_pass(copy):
    """One of each file whose bugs are tried: a copy of the package only lies elsewhere."""
    caught = sorted((CAUGHT_BY[bug] for bug in SEEDED), reverse=True)
    tests = {test.partition("::")[0]: test for test in caught}
    code, text = run(copy, *sorted(tests.values()))
    assert code == 0, text[-2000:]


@needs_patch
@pytest.mark.long
@pytest.mark.parametrize("bug", SEEDED)
def test_a_seeded_bug_is_caught(copy, bug):
    with with_bug(copy, bug):
        code, text = run(copy, CAUGHT_BY[bug])
    if code == 0 and " passed" not in text:
        pytest.skip(f"the test cannot run here: {text[-1000:]}")
    assert code == 1, "the test passes with the bug"


def harness(root, script, *arguments):
    """What a harness of a copy finds, as it writes it to a file."""
    out = root / "out.json"
    environ = {name: value for name, value in os.environ.items() if name != "SHIM"}
    command = [sys.executable, root / "tests/faults" / script, *arguments, "--json", out]
    ended = subprocess.run(
        command,
        env={**environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(out.read_text())


@needs_patch
@pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())
@pytest.mark.long
@pytest.mark.parametrize("bug", FROZEN)
def test_freezes_find_a_seeded_bug(copy, bug):
    n, frozen = FROZEN[bug]
    command = ["freeze.py", "--operations", *frozen, "--freezes", str(n)]
    with with_bug(copy, bug):
        summary = harness(copy, *command)["summary"]
    assert summary["freezes"] == n
    assert summary["troubles"], "no freeze found it"


@needs_patch
@pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())
@pytest.mark.long
@pytest.mark.parametrize("bug", LATE)
def test_interleaved_processes_find_a_seeded_bug(copy, bug):
    operation, takeover, before, then = LATE[bug]
    command = ["explorer.py", "--depth", "3", "--ways", "late", "--before", before, "--then", then]
    command += ["--operations", operation, "--takeovers", takeover]
    with with_bug(copy, bug):
        summary = harness(copy, *command)["summary"]
    assert summary["lost"], "no schedule found it"
    summary = harness(copy, *command)["summary"]
    assert not summary["troubles"], "what was found is not the bug"
