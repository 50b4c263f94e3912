"""Which cases of a test run by default, which in the long tier only, and which in the campaign."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SAMPLED = {
    "benchmarks/test_reports.py": 3,
    "buckets/test_files.py": 4,
    "buckets/test_late_requests.py": 5,
    "buckets/test_state.py": 4,
    "cli/test_wording.py": 4,
    "codecs/test_fill.py": 5,
    "conformance/test_conformance.py": 12,
    "conformance/test_precomputed_encodings.py": 4,
    "conformance/test_precomputed_written.py": 6,
    "conformance/test_uint64_shards.py": 5,
    "datasets/test_appends.py": 5,
    "datasets/test_engine.py": 4,
    "datasets/test_files.py": 3,
    "datasets/test_round_trips.py": 3,
    "datasets/test_rounding.py": 2,
    "datasets/test_sizes.py": 2,
    "datasets/test_steps.py": 3,
    "datasets/test_trees.py": 3,
    "encode/test_batches.py": 5,
    "engines/test_engines.py": 2,
    "faults/test_bounds.py": 4,
    "faults/test_disk.py": 8,
    "faults/test_leases.py": 4,
    "faults/test_lossy_disk.py": 8,
    "format/test_nested.py": 5,
    "format/test_order.py": 5,
    "hdf5/test_frames.py": 8,
    "journal/test_changes_in_place.py": 4,
    "journal/test_edges.py": 5,
    "journal/test_handover.py": 6,
    "mistakes/test_followed.py": 8,
    "mistakes/test_mistakes.py": 8,
    "operations/test_adopt_chunks.py": 4,
    "operations/test_bad_input.py": 5,
    "operations/test_consolidated.py": 5,
    "operations/test_consume.py": 4,
    "operations/test_consume_trees.py": 4,
    "operations/test_convert.py": 5,
    "operations/test_convert_groups.py": 4,
    "operations/test_convert_hdf5.py": 5,
    "operations/test_convert_zip.py": 4,
    "operations/test_copies_in_parts.py": 5,
    "operations/test_dask_patch.py": 2,
    "operations/test_dask_words.py": 2,
    "operations/test_documents_of_2022.py": 8,
    "operations/test_draining.py": 4,
    "operations/test_empty_chunks_stay.py": 8,
    "operations/test_foreign_volumes.py": 8,
    "operations/test_given_axes.py": 5,
    "operations/test_groups_of_several.py": 4,
    "operations/test_hdf5_chunk_indexes.py": 6,
    "operations/test_hdf5_faults.py": 4,
    "operations/test_hdf5_kept.py": 5,
    "operations/test_hdf5_mixed.py": 8,
    "operations/test_hdf5_shards.py": 8,
    "operations/test_in_place.py": 5,
    "operations/test_index_expressions.py": 8,
    "operations/test_its_own_source.py": 5,
    "operations/test_kept.py": 4,
    "operations/test_left_over.py": 4,
    "operations/test_long_names.py": 6,
    "operations/test_lost_minishards.py": 8,
    "operations/test_manifest.py": 4,
    "operations/test_mesh_shards.py": 2,
    "operations/test_named_compressors.py": 8,
    "operations/test_names_in_trees.py": 5,
    "operations/test_names_of_chunks.py": 2,
    "operations/test_odd_inputs.py": 4,
    "operations/test_other_programs.py": 5,
    "operations/test_parts.py": 4,
    "operations/test_parts_together.py": 2,
    "operations/test_precomputed_copies.py": 8,
    "operations/test_precomputed_encodings.py": 5,
    "operations/test_present.py": 8,
    "operations/test_reads_what_it_changes.py": 8,
    "operations/test_recover.py": 2,
    "operations/test_regions.py": 8,
    "operations/test_repair.py": 4,
    "operations/test_repair_compare.py": 2,
    "operations/test_replacements.py": 4,
    "operations/test_scales_stay.py": 4,
    "operations/test_scattered.py": 5,
    "operations/test_scattered_parts.py": 4,
    "operations/test_shared_bytes.py": 8,
    "operations/test_staged.py": 4,
    "operations/test_stores_in_place.py": 4,
    "operations/test_targets_of_zarr.py": 5,
    "operations/test_tiny_chunks.py": 8,
    "operations/test_to_precomputed.py": 8,
    "operations/test_transfer.py": 8,
    "operations/test_transformer_2022.py": 5,
    "operations/test_uint64_shards.py": 4,
    "operations/test_unsharded.py": 5,
    "operations/test_values.py": 8,
    "operations/test_verify.py": 4,
    "operations/test_zarr_targets.py": 9,
    "plan/test_huge_shapes.py": 4,
    "plan/test_plan.py": 4,
    "read/test_transformer_view.py": 5,
    "read/test_transposed.py": 4,
    "runs/test_given.py": 4,
    "runs/test_made_again.py": 4,
    "runs/test_planning.py": 4,
    "runs/test_stored_chunks.py": 4,
    "show/test_cards.py": 3,
    "show/test_picture.py": 4,
    "show/test_run_report.py": 4,
    "slurm/test_submissions.py": 4,
    "sources/test_b2nd.py": 8,
    "sources/test_hierarchies_of_2022.py": 16,
    "sources/test_no_regular_files.py": 5,
    "sources/test_packed.py": 4,
    "sources/test_precomputed.py": 4,
    "sources/test_sources.py": 4,
    "sources/test_variable_length.py": 6,
    "sources/test_wkw.py": 20,
    "stores/test_bucket.py": 4,
    "stores/test_contract.py": 6,
    "stores/test_rights.py": 8,
    "stores/test_web.py": 6,
    "stream/test_stream.py": 8,
    "test_docs.py": 3,
    "test_errors.py": 5,
    "test_remedies.py": 4,
    "upgrade/test_states.py": 4,
    "write/test_protocol.py": 5,
}
"""Files of which the default tier runs one case in so many of each test with parameters, chosen by
name. The long tier runs many of the others."""

SLOW_SERVERS = ("seaweed", "azurite")

SAMPLED_AGAIN = {
    **dict.fromkeys(
        (
            *SAMPLED,
            "buckets/test_behaviour.py",
            "buckets/test_contract.py",
            "buckets/test_datasets.py",
            "buckets/test_faults.py",
            "buckets/test_in_flight.py",
            "buckets/test_one_run.py",
            "buckets/test_shared_state.py",
            "buckets/test_two_at_once.py",
            "buckets/test_volumes.py",
            "faults/test_conversions.py",
            "faults/test_ends.py",
            "faults/test_explorer.py",
            "faults/test_formats.py",
            "faults/test_id_shards.py",
            "faults/test_kills.py",
            "faults/test_manifests.py",
            "faults/test_power_cut.py",
            "faults/test_same_process.py",
            "faults/test_stores.py",
            "faults/test_stream_kills.py",
            "faults/test_updates_machine.py",
            "faults/test_volumes.py",
            "operations/test_design.py",
            "test_packaging.py",
        ),
        5,
    ),
    "buckets/test_large_shards.py": 2,
    "test_docs.py": 1,
}
"""Files of which the long tier runs about one in so many of the cases that the default tier leaves
out. The campaign runs the others (`tests/faults/left_out.py`)."""


def left_to_the_campaign(file: str, cases: Mapping[str, tuple[bool, frozenset[Any]]]) -> set[str]:
    """Names of cases of a file that neither the default tier nor the long tier runs.

    - `cases`: by name, whether a case is long, and its test and the values of its parameters. Each
      of these meets at least one case in the two tiers.
    """
    one_in = SAMPLED_AGAIN.get(file, 1)
    met = {fact for is_long, facts in cases.values() if not is_long for fact in facts}
    left = set()
    for name, (is_long, facts) in sorted(cases.items()):
        if not is_long:
            continue
        if zlib.crc32(f"again {name}".encode()) % one_in == 0 or not facts <= met:
            met |= facts
        else:
            left.add(name)
    return left


def is_left_to_the_long_tier(file: str, case: str) -> bool:
    """Whether a case of a test, given by its full name, is none of the sample of its file.

    All cases on the servers that take longest to start are left to the long tier.
    """
    if file.startswith("buckets/") and any(server in case for server in SLOW_SERVERS):
        return True
    return "[" in case and zlib.crc32(case.encode()) % SAMPLED.get(file, 1) != 0


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, of which those that are not `quick` run in the long tier only."""
    values = list(values)
    assert all(value in values for value in quick), "a quick case is none of the cases"
    return [pytest.param(v, marks=() if v in quick else pytest.mark.long) for v in values]


class Drawn(int):
    """The number of a random case, which is no kind of its own."""


def drawn(n: int, n_quick: int) -> list[Any]:
    """Numbers of random cases, of which all but the first few run in the long tier only.

    So many show each kind of case several times; nothing that more of them found is known. Another
    thousand is tried by ``RANDOM_CASES=1000 make test-long``.
    """
    more = range(
        n, n + int(os.environ.get("RANDOM_CASES", "0"))
    )  # all of them, where they are wanted
    return some([*map(Drawn, range(n)), *more], *range(n_quick))


def tried(n: int, drawn: Callable[[Any], Any], check: Callable[..., None]) -> Callable[..., None]:
    """A test that makes a check with `n` examples, which `drawn`, made by `given`, draws."""
    more = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=n, **more)(drawn(check))
