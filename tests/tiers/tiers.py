"""Which cases of a test run by default, and which in the long tier only."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SAMPLED = {
    "buckets/test_files.py": 2,
    "buckets/test_late_requests.py": 3,
    "buckets/test_state.py": 2,
    "cli/test_wording.py": 2,
    "codecs/test_fill.py": 3,
    "conformance/test_conformance.py": 5,
    "conformance/test_precomputed_encodings.py": 2,
    "conformance/test_precomputed_written.py": 4,
    "conformance/test_uint64_shards.py": 3,
    "encode/test_batches.py": 3,
    "faults/test_bounds.py": 2,
    "faults/test_disk.py": 2,
    "faults/test_leases.py": 2,
    "faults/test_lossy_disk.py": 5,
    "format/test_nested.py": 3,
    "format/test_order.py": 3,
    "hdf5/test_frames.py": 5,
    "journal/test_changes_in_place.py": 2,
    "journal/test_edges.py": 3,
    "mistakes/test_followed.py": 5,
    "mistakes/test_mistakes.py": 5,
    "operations/test_adopt_chunks.py": 2,
    "operations/test_bad_input.py": 3,
    "operations/test_consolidated.py": 3,
    "operations/test_consume.py": 2,
    "operations/test_consume_trees.py": 2,
    "operations/test_convert.py": 3,
    "operations/test_convert_groups.py": 2,
    "operations/test_convert_hdf5.py": 3,
    "operations/test_convert_zip.py": 2,
    "operations/test_copies_in_parts.py": 3,
    "operations/test_documents_of_2022.py": 5,
    "operations/test_draining.py": 2,
    "operations/test_empty_chunks_stay.py": 5,
    "operations/test_foreign_volumes.py": 5,
    "operations/test_given_axes.py": 3,
    "operations/test_groups_of_several.py": 2,
    "operations/test_hdf5_chunk_indexes.py": 4,
    "operations/test_hdf5_faults.py": 2,
    "operations/test_hdf5_kept.py": 3,
    "operations/test_hdf5_mixed.py": 5,
    "operations/test_hdf5_shards.py": 5,
    "operations/test_in_place.py": 3,
    "operations/test_index_expressions.py": 5,
    "operations/test_its_own_source.py": 3,
    "operations/test_kept.py": 2,
    "operations/test_left_over.py": 2,
    "operations/test_long_names.py": 4,
    "operations/test_lost_minishards.py": 5,
    "operations/test_manifest.py": 2,
    "operations/test_named_compressors.py": 5,
    "operations/test_names_in_trees.py": 3,
    "operations/test_odd_inputs.py": 2,
    "operations/test_other_programs.py": 3,
    "operations/test_parts.py": 2,
    "operations/test_precomputed_copies.py": 5,
    "operations/test_precomputed_encodings.py": 3,
    "operations/test_present.py": 5,
    "operations/test_reads_what_it_changes.py": 5,
    "operations/test_regions.py": 5,
    "operations/test_repair.py": 2,
    "operations/test_replacements.py": 2,
    "operations/test_scales_stay.py": 2,
    "operations/test_scattered.py": 3,
    "operations/test_scattered_parts.py": 2,
    "operations/test_shared_bytes.py": 5,
    "operations/test_stores_in_place.py": 2,
    "operations/test_targets_of_zarr.py": 3,
    "operations/test_tiny_chunks.py": 5,
    "operations/test_to_precomputed.py": 5,
    "operations/test_transfer.py": 5,
    "operations/test_transformer_2022.py": 3,
    "operations/test_uint64_shards.py": 2,
    "operations/test_unsharded.py": 3,
    "operations/test_values.py": 5,
    "operations/test_verify.py": 2,
    "operations/test_zarr_targets.py": 7,
    "plan/test_huge_shapes.py": 2,
    "plan/test_plan.py": 2,
    "read/test_transformer_view.py": 3,
    "read/test_transposed.py": 2,
    "runs/test_given.py": 2,
    "runs/test_made_again.py": 2,
    "runs/test_planning.py": 2,
    "runs/test_stored_chunks.py": 2,
    "show/test_picture.py": 2,
    "show/test_run_report.py": 2,
    "slurm/test_submissions.py": 2,
    "sources/test_b2nd.py": 5,
    "sources/test_hierarchies_of_2022.py": 5,
    "sources/test_no_regular_files.py": 3,
    "sources/test_packed.py": 2,
    "sources/test_precomputed.py": 2,
    "sources/test_sources.py": 2,
    "sources/test_variable_length.py": 4,
    "sources/test_wkw.py": 3,
    "stores/test_bucket.py": 2,
    "stores/test_contract.py": 2,
    "stores/test_rights.py": 5,
    "stream/test_stream.py": 3,
    "test_errors.py": 3,
    "test_remedies.py": 2,
    "upgrade/test_states.py": 2,
    "write/test_protocol.py": 3,
}
"""Files of which the default tier runs one case in so many of each test with parameters, chosen by
name. The long tier runs the others."""


def is_left_to_the_long_tier(file: str, case: str) -> bool:
    """Whether a case of a test, given by its full name, is none of the sample of its file."""
    return "[" in case and zlib.crc32(case.encode()) % SAMPLED.get(file, 1) != 0


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, of which those that are not `quick` run in the long tier only."""
    values = list(values)
    assert all(value in values for value in quick), "a quick case is none of the cases"
    return [pytest.param(v, marks=() if v in quick else pytest.mark.long) for v in values]


def drawn(n: int, n_quick: int) -> list[Any]:
    """Numbers of random cases, of which all but the first few run in the long tier only.

    So many show each kind of case several times; nothing that more of them found is known. Another
    thousand is tried by ``RANDOM_CASES=1000 make test-long``.
    """
    n += int(os.environ.get("RANDOM_CASES", "0"))
    return some(range(n), *range(n_quick))


def tried(n: int, drawn: Callable[[Any], Any], check: Callable[..., None]) -> Callable[..., None]:
    """A test that makes a check with `n` examples, which `drawn`, made by `given`, draws."""
    more = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=n, **more)(drawn(check))
