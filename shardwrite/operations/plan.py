"""The function that plans an array, without writing it."""

from __future__ import annotations

from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.keywords import PlanArguments
from shardwrite.operations.traffic import with_traffic
from shardwrite.options import taken_from
from shardwrite.place.scratch import target_via
from shardwrite.place.target import resolve_new
from shardwrite.plan import Plan, PlanOptions
from shardwrite.runs.array_plan import plan_array
from shardwrite.runs.given import take


@taking(PlanArguments)
def plan(given: PlanArguments) -> Plan:
    """Plan how an array would be written.

    Nothing is computed or written, and nothing is read but what stands in `store`, if that is in a
    bucket.

    Returns
    -------
    Plan
        The plan. It can be printed, and has `shards_for`, `part`, `to_json` and `digest`.

    Raises
    ------
    SpecError
        If an argument is not valid. The error has the field, its value and a remedy.
    PlanError
        If the plan exceeds the memory, the number of tasks, or `max_source_reruns`. The error
        says what to change.
    StoreError
        If a bucket cannot be reached.
    TypeError
        If a keyword is unknown.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 100), chunks=(10, 100), dtype="uint8")
    >>> p = shardwrite.plan(x, shards=(50, 50), chunks=(10, 10))
    >>> p.n_shards, [ref.key for ref in p.shards_for((slice(0, 10), slice(40, 60)))]
    (4, ['c/0/0', 'c/0/1'])
    """
    options, source = taken_from(given, PlanOptions), take(given.x)
    array, engine = source.described(taken_from(given, ArrayOptions)), active_engine()
    if given.store is None:
        return plan_array(source.array, engine, array, options)
    into = target_via(resolve_new(given.store, given.name, given.run_dir, array.format), given.via)
    return with_traffic(plan_array(source.array, engine, array, options, into.store), into)
