"""The accessor ``shardwrite`` of objects of xarray."""

from __future__ import annotations

from typing import Any

from dask.delayed import Delayed

from shardwrite.datasets.keywords import PlanMethodArguments, WriteMethodArguments
from shardwrite.datasets.planned import DatasetPlan
from shardwrite.datasets.write import DatasetResult, plan_dataset, write_dataset
from shardwrite.entry.public import method_taking


class Accessor:
    """Methods that write and plan an object of xarray."""

    def __init__(self, given: Any) -> None:
        self._given = given

    @method_taking(WriteMethodArguments)
    def to_zarr(self, call: WriteMethodArguments) -> DatasetResult | Delayed:
        """Write the object into a store; see :func:`shardwrite.write_dataset`.

        Returns
        -------
        DatasetResult or dask.delayed.Delayed
            What was written; with ``compute=False``, a `Delayed` of that.
        """
        made: DatasetResult | Delayed = write_dataset(self._given, **vars(call))
        return made

    @method_taking(PlanMethodArguments)
    def plan(self, call: PlanMethodArguments) -> DatasetPlan:
        """Plan how the object would be written; see :func:`shardwrite.plan_dataset`.

        Returns
        -------
        DatasetPlan
            The plan of each variable, and totals.
        """
        return plan_dataset(self._given, **vars(call))
