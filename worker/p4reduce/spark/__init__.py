# SPDX-License-Identifier: Apache-2.0
"""Spark: barrier stages and `TorchDistributor` whose gradients the switch sums.

    from p4reduce.spark import barrier_run

    results = barrier_run(rdd, lambda comm, rows: comm.allreduce(gradient(rows)))

`barrier` is for numpy, `distributor` for PyTorch. In both the first task's host starts the
network. Imports `torch` and the communicator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce.spark.barrier import barrier_run
    from p4reduce.spark.distributor import TorchDistributor

__all__ = ["TorchDistributor", "barrier_run"]


def __getattr__(name: str) -> object:
    # Tasks import `barrier` without PyTorch's part of PySpark, and the other way round.
    if name == "barrier_run":
        from p4reduce.spark.barrier import barrier_run

        return barrier_run
    if name == "TorchDistributor":
        from p4reduce.spark.distributor import TorchDistributor

        return TorchDistributor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
