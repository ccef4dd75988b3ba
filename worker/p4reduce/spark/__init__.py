# SPDX-License-Identifier: Apache-2.0
"""Spark: barrier stages whose gradients the switch sums.

    from p4reduce.spark import barrier_run

    results = barrier_run(rdd, lambda comm, rows: comm.allreduce(gradient(rows)))

The tasks start the network. PyTorch needs nothing of this package: PySpark's `TorchDistributor`
runs functions that call `init_process_group("p4reduce")`. Imports the communicator.
"""

from p4reduce.spark.barrier import barrier_run

__all__ = ["barrier_run"]
