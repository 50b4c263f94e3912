"""The job array on a real SLURM: whatever interrupts it, the same again finishes it, and redoes what was in flight."""

from __future__ import annotations

N_SHARDS = 256


def test_array_then_finalize(cluster, work):
    """The scripts as they are, on four nodes; bit by bit what one process writes."""
    work.init()
    work.scripts(4)
    for kind in ("array", "finalize"):
        cluster.run("sbatch", "--test-only", f"{kind}.sbatch", cwd=work.directory)
    tasks = cluster.wait(work.array())
    assert {facts["ExitCode"] for facts in tasks.values()} == {"0:0"}, work.log()
    assert len(tasks) == 4
    if cluster.has_namespaces:
        assert len({facts["NodeList"] for facts in tasks.values()}) > 1
    code, said = work.finalize()
    assert code == "0:0", said
    work.check()
