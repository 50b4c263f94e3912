"""Source chunks in memory, as a played graph tells them, against counts by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from shardwrite.plan.edges import Edges
from shardwrite.plan.schedule import corner, peak_elements


def played(shape, groups, chunks, n_threads=1):
    edges = [
        [Edges.regular(n, step) for n, step in zip(shape, steps, strict=True)]
        for steps in (groups, groups, chunks)
    ]
    grids = corner(*edges, n_threads)
    return peak_elements(grids, n_threads, is_staged=False)


def test_one_task_holds_all_that_it_takes():
    assert played((12, 12), (12, 12), (5, 5)) == 144


@pytest.mark.parametrize("n_threads", [1, 3])
def test_each_thread_holds_the_chunks_of_its_task(n_threads):
    # a slab of 4 x 40 belongs to one task, and so it goes when that has ended
    most = played((40, 40), (4, 40), (1, 40), n_threads)
    assert (n_threads - 1) * 4 * 40 < most <= n_threads * 4 * 40


def test_slabs_wait_for_all_tasks_of_their_row():
    assert played((40, 40), (20, 20), (1, 40)) == 20 * 40


def test_chunks_that_cross_borders_wait():
    most = played((60, 60), (20, 20), (15, 15))
    assert 30 * 30 < most < 60 * 60


def test_a_graph_of_a_million_tasks_is_represented_by_a_corner():
    edges = [[Edges.regular(10**6, step)] * 2 for step in (100, 100, 70)]
    started = time.process_time()
    grids = corner(*edges, 4)
    assert np.prod([len(axis) for axis in grids.blocks]) < 2**12
    assert peak_elements(grids, 4, is_staged=False) > 4 * 70 * 70
    assert time.process_time() - started < 30, "it depends on the size of the array"
