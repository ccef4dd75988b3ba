# SPDX-License-Identifier: Apache-2.0
"""What a user works with: `init` gives a `Communicator`, whose all-reduce the switch computes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import Any, TypeVar

import numpy.typing as npt

from p4reduce import plans
from p4reduce.arguments import SupportsArray, check_timeout
from p4reduce.calls import Operation
from p4reduce.collective import Collective
from p4reduce.environment import job_name, placement
from p4reduce.errors import ClosedError
from p4reduce.handle import Handle
from p4reduce.plans import Plan
from p4reduce.session import Session
from p4reduce.statistics import Statistics
from p4reduce.transport import open_transport

T = TypeVar("T")

SUM = Operation.SUM
MEAN = Operation.MEAN


def init(
    rank: int | None = None,
    world_size: int | None = None,
    controller: str | None = None,
    job: str | None = None,
    timeout: float = 30.0,
    *,
    interface: str | None = None,
    slots: int | None = None,
) -> Communicator:
    """Join a job, and return when all of its ranks are there.

    Args:
        rank: of this process, 0 to world_size - 1. None: from the environment of torchrun, Open
            MPI, MPICH or Slurm, or `P4REDUCE_RANK`.
        world_size: number of ranks, 1 to 64. None: from there as well, or `P4REDUCE_WORLD_SIZE`.
        controller: gRPC address, "host:port" or "unix:/path". None: `P4REDUCE_CONTROLLER`, or
            the socket at which a controller of this user listens by default.
        job: name; ranks with the same one reduce together. None: `P4REDUCE_JOB`, or the id of
            the torchrun or Slurm job, or "default".
        timeout: seconds to wait for the other ranks; also the default of all collectives.
        interface: how to reach the switch: a network interface ("eth0", needs CAP_NET_RAW), or a
            Unix socket of the embedded switch ("unix:/path/port{port}.sock"; `{rank}`,
            `{local_rank}` and `{port}` = rank + 1 are filled in). None: `P4REDUCE_INTERFACE`.
        slots: aggregators of the switch to ask for, 1 to 1,024: how many blocks of 1,024 bytes
            are under way at once. The same for all ranks. None: the controller's default.

    Returns:
        A communicator, to be closed or used as a context manager.

    Raises:
        ConfigurationError: a setting is missing or out of range; names the variables.
        ControllerUnreachableError: nobody answers at the controller's address.
        AdmissionError: the rank is taken, the numbers do not fit the job, no slots are free.
        SwitchUnreachableError: the interface cannot be opened.
        P4ReduceTimeoutError: ranks are missing; names them and what they lack.

    Example:
        >>> import numpy as np
        >>> import p4reduce
        >>> with p4reduce.init() as comm:                              # doctest: +SKIP
        ...     gradient = np.full(1000, comm.rank, np.float32)
        ...     comm.allreduce(gradient, op=p4reduce.MEAN, out=gradient)
    """
    check_timeout(timeout)
    if slots is not None and slots < 1:
        raise ValueError(f"slots={slots}: at least 1 is needed, or None for the default")
    deadline = time.monotonic() + timeout
    place = placement(rank, world_size)
    transport = open_transport(interface, place.rank, place.local_rank)
    session = Session(
        place,
        job_name(job),
        controller=controller,
        transport=transport,
        slots=slots or 0,
        timeout=max(deadline - time.monotonic(), 0.1),
    )
    return Communicator(session, timeout)


class Communicator:
    """The ranks of a job, who reduce together. Made by `init`.

    All ranks have to make the same calls in the same order, with the same operation, number of
    elements, dtype and name: that is checked, and `MismatchError` raised on all of them if it is
    not so. Calls from several threads are safe, but only useful where their order is the same
    on all ranks.

    After an error that leaves the ranks out of step (timeout, mismatch, lost worker, lost switch)
    the communicator is broken: all collectives under way end with that error, and so does each
    later one. `LaneOverflowError` breaks nothing.

    A child made by `os.fork` cannot use its parent's communicator, as threads do not survive a
    fork: `ClosedError`.
    """

    def __init__(self, session: Session, timeout: float) -> None:
        self._session = session
        self._timeout = timeout
        self._lock = threading.Lock()
        self._sequence = 0
        self._under_way: deque[Collective] = deque()
        self._closed = False
        self._process = os.getpid()
        # At exit, or when the last reference is gone: the others must not wait for us.
        self._finalizer = weakref.finalize(self, _abandon, session, self._process)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._session.engine.broken else "open"
        return f"<Communicator of job {self.job!r}: rank {self.rank} of {self.size}, {state}>"

    @property
    def rank(self) -> int:
        """Which of the ranks this process is, from 0."""
        return self._session.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._session.world_size

    @property
    def job(self) -> str:
        """The job's name."""
        return self._session.job

    @property
    def slots(self) -> int:
        """How many slots of the switch the job has: so many blocks are under way at once."""
        return self._session.slots

    @property
    def stats(self) -> Statistics:
        """Bytes, frames, retransmissions, duplicates, round-trip times … so far."""
        return self._session.engine.statistics()

    # -- Collectives -----------------------------------------------------------------------------

    def allreduce(
        self,
        array: SupportsArray,
        op: Operation = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> npt.NDArray[Any]:
        """Sum an array over all ranks, or take its mean.

        The result is the same on all ranks, bit for bit. Sums of floats have the error bound
        stated in `p4reduce.quantise`: with 4 ranks at most 2^-27 of the power of two above the
        largest magnitude in a block of 256 elements, before rounding to the dtype. Blocks that
        are zero on all ranks are not sent. NaN or infinity in a block of any rank makes the
        whole block NaN on all ranks. int32 sums are exact; where a sum, or a partial sum in the
        order in which the ranks' contributions arrive, leaves int32, that is an error.

        Args:
            array: float16, float32, float64 or int32 in the machine's byte order, of any shape;
                the same number of elements and dtype on all ranks. An array that is not
                C-contiguous is copied first. Finite float64 magnitudes have to be below 2^128.
                PyTorch tensors on the CPU can be given as they are, or as `tensor.numpy()`.
                Arrays without elements are allowed: the ranks then only meet.
            op: `SUM`, or `MEAN` for floats.
            name: for messages; the same on all ranks.
            out: a C-contiguous array of the same shape and dtype for the result; `array` itself
                to work in place. None: a new one.
            timeout: seconds; None: what `init` was given.

        Returns:
            `out`, or a new array.

        Raises:
            TypeError: no array, or another dtype; MEAN of integers.
            ValueError: `out` does not fit or overlaps `array` without being the same.
            ValueRangeError: a float64 number of 2^128 or more. Only this rank notices.
            LaneOverflowError: an int32 sum left the range, on all ranks.
            MismatchError: the ranks called different things.
            P4ReduceTimeoutError: not complete in time; names the ranks that are missing.
            WorkerLostError: a rank died or left.
            SwitchUnreachableError: the switch does not answer.
            JobEndedError: the job was deleted.
            ClosedError: this communicator is closed.
        """
        return self.allreduce_async(array, op, name, out, timeout).wait()

    def allreduce_async(
        self,
        array: SupportsArray,
        op: Operation = SUM,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> Handle[npt.NDArray[Any]]:
        """Start an all-reduce and return a handle to wait for it.

        As `allreduce`. Several may be under way; they share the slots, so that small ones cost
        hardly more than their bytes. Until one is over, `array` must not be written to and `out`
        not be used.
        """
        return self._start(plans.allreduce(array, op, name, out), timeout)

    def broadcast(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> npt.NDArray[Any]:
        """Give all ranks the root's array, bit for bit.

        Only the root sends data, once: the switch copies it. Blocks of 1,024 zero bytes are not
        sent.

        Args:
            array: of any dtype without Python objects and any shape. On all ranks but the root
                its contents do not matter, only its number of elements and dtype, which have to
                be the same on all.
            root: the rank whose array it is; the same on all ranks.
            name: for messages; the same on all ranks.
            out: a C-contiguous array of the same shape and dtype for the result; `array` itself
                to work in place, as mpi4py's `Bcast` and Horovod's `broadcast_` do. None: a new
                one, on the root as well.
            timeout: seconds; None: what `init` was given.

        Returns:
            `out`, or a new array.

        Raises:
            TypeError: no array, or one of Python objects.
            ValueError: there is no such rank; `out` does not fit.
            P4ReduceError: as `allreduce`.
        """
        return self.broadcast_async(array, root, name, out, timeout).wait()

    def broadcast_async(
        self,
        array: SupportsArray,
        root: int = 0,
        name: str | None = None,
        out: npt.NDArray[Any] | None = None,
        timeout: float | None = None,
    ) -> Handle[npt.NDArray[Any]]:
        """Start a broadcast and return a handle to wait for it; see `allreduce_async`."""
        plan = plans.broadcast(array, root, name, out, rank=self.rank, world_size=self.size)
        return self._start(plan, timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Return when all ranks have called this. Raises what `allreduce` raises."""
        self._start(plans.barrier(), timeout).wait()

    def _start(self, plan: Plan[T], timeout: float | None) -> Handle[T]:
        if timeout is None:
            timeout = self._timeout
        check_timeout(timeout)
        if self._process != os.getpid():
            raise ClosedError(
                f"this communicator belongs to process {self._process}, from which this one was "
                "forked; call init in the child"
            )
        with self._lock:
            if self._closed:
                raise ClosedError("the communicator is closed")
            collective = Collective(
                plan.call,
                plan.source,
                plan.target,
                sequence=self._sequence,
                slots=self._session.slots,
                timeout=timeout,
            )
            self._session.engine.submit(collective)
            self._sequence += 1
            self._under_way.append(collective)
            while self._under_way[0].done() and len(self._under_way) > 1:
                self._under_way.popleft()
        return Handle([collective], plan.result)

    # -- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the collectives under way, within their deadlines, and leave the job.

        To close twice is no error. Collectives that fail meanwhile tell so by their handles only.
        """
        self._end(wait=True)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error this rank will not take part in what the others do next: leave at once.
        self._end(wait=kind is None)

    def _end(self, *, wait: bool) -> None:
        with self._lock:
            self._closed = True
        if wait and self._process == os.getpid():
            for collective in self._under_way:
                collective.join()
        self._finalizer()


def _abandon(session: Session, process: int) -> None:
    if os.getpid() == process:
        session.close()
