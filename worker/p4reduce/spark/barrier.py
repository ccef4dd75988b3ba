# SPDX-License-Identifier: Apache-2.0
"""`barrier_run`: calls a function on each partition of an RDD, with a communicator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

from p4reduce_common.host_port import split_host_port

from p4reduce.checks import check_seconds, check_timeout
from p4reduce.communicator import Communicator
from p4reduce.started_job import cause_of, join_all

T = TypeVar("T")

_ENGINE = "spark"


def barrier_run(
    rdd: Any,
    fn: Callable[[Communicator, Iterator[Any]], T],
    *,
    timeout: float = 60.0,
    lease: float = 0.0,
) -> list[T]:
    """Call a function on each partition at the same time, and return the results.

    The partitions are the tasks of one barrier stage: the rank is the partition's number. The tasks
    start a network on their hosts, for which they need the extra "lab", unless the environment of
    the first task names a network that runs. It ends with the stage. If a task fails, Spark ends
    the others and runs the stage again, with a new network.

    Args:
        rdd: of PySpark, with 1 to 4,096 partitions and as many free cores in the cluster; or a
            DataFrame, whose `rdd` is taken.
        fn: takes the communicator and the partition's rows; its result is pickled for the driver.
            The communicator is closed when it returns.
        timeout: seconds to wait for ranks, at the start and in each collective.
        lease: seconds that a rank may be silent before it is lost. 0: those of `P4REDUCE_LEASE` in
            the first task's environment, or 10. A network that runs has its own.

    Returns:
        The results, by rank.

    Raises:
        TypeError, ValueError: `timeout` or `lease` is not a number of seconds.
        py4j.protocol.Py4JJavaError, pyspark.errors.PySparkException: the stage failed as often as
            Spark repeats it; has the error of a task, such as `LaunchError`.
    """
    check_timeout(timeout)
    check_seconds("lease", lease)
    rows = getattr(rdd, "rdd", rdd)

    def task(partition: Iterator[Any]) -> Iterable[tuple[int, T]]:
        # Imported by the worker under its name, so that the package is pickled by reference.
        return [run_task(fn, partition, timeout, lease)]

    # The shuffle makes it a stage that Spark runs again: it aborts a job whose last stage, which
    # hands results to the driver, is a barrier stage that fails.
    ended = rows.barrier().mapPartitions(task).coalesce(1, shuffle=True).collect()
    return [result for _, result in sorted(ended, key=itemgetter(0))]


def run_task(
    fn: Callable[[Communicator, Iterator[Any]], T],
    rows: Iterator[Any],
    timeout: float,
    lease: float,
) -> tuple[int, T]:
    """Run one task; return its rank and `fn`'s result. See `barrier_run`."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    hosts = [split_host_port(info.address)[0] for info in context.getTaskInfos()]
    others = [host for host in hosts if host != hosts[rank]]
    comm, network = join_all(
        rank, context.allGather, _ENGINE, timeout=timeout, lease=lease, towards=others
    )
    try:
        with comm:
            result = fn(comm, rows)
        context.barrier()  # the stage is over when all have left
    except Exception as error:
        cause = cause_of(error, network)
        if cause is not error:
            raise cause from error
        raise
    finally:
        if network is not None:
            network.close()
    return rank, result
