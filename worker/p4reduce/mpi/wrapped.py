# SPDX-License-Identifier: Apache-2.0
"""`wrap`: an mpi4py communicator whose `Allreduce` goes through the switch."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from p4reduce.checks import check_seconds, check_timeout
from p4reduce.communicator import Communicator
from p4reduce.errors import ClosedError, ConfigurationError
from p4reduce.job_network import JobNetwork
from p4reduce.meeting import agreed
from p4reduce.mpi.messages import array_of
from p4reduce.mpi.sums import ENGINE, sum_in_place, summed_types
from p4reduce.started_job import join_all

if TYPE_CHECKING:
    _Intracomm = Any
else:
    _Intracomm = MPI.Intracomm

_open: list[SwitchedComm] = []


class SwitchedComm(_Intracomm):  # type: ignore[misc]
    """An intracommunicator whose `Allreduce` with `MPI.SUM` goes through the switch. See `wrap`.

    Attributes:
        switched: how many calls went through the switch.
    """

    switched: int
    _job: Communicator | None
    _network: JobNetwork | None
    _types: frozenset[str]

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:  # noqa: N802
        """Sum arrays over all ranks, with mpi4py's arguments.

        `MPI.SUM` of `MPI.FLOAT`, `MPI.DOUBLE` and `MPI.INT` goes through the switch; others use
        MPI. Floats are summed as `p4reduce.Communicator.allreduce` says: off by at most n * 2^(e-k)
        for n ranks. Integers are summed modulo 2^32.

        Args:
            sendbuf: this rank's numbers, in any form that mpi4py accepts, or `MPI.IN_PLACE`.
            recvbuf: receives the sum; of the same type and count.
            op: the operation.

        Raises:
            ValueError: `sendbuf` and `recvbuf` have different counts, or are not contiguous.
            P4ReduceError: as `p4reduce.Communicator.allreduce`.
        """
        target = array_of(recvbuf) if op == MPI.SUM and self._job is not None else None
        if target is None or target.dtype.name not in self._types or not target.size:
            super().Allreduce(sendbuf, recvbuf, op)
            return
        assert self._job is not None
        if not (type(sendbuf) is type(MPI.IN_PLACE) and sendbuf == MPI.IN_PLACE):
            source = array_of(sendbuf)
            if source is None or source.dtype != target.dtype or source.size != target.size:
                raise ValueError(
                    f"sendbuf has {_described(source)}, and recvbuf {_described(target)}: they "
                    "must match"
                )
            np.copyto(target, source)
        sum_in_place(self._job, target)
        self.switched += 1

    def Dup(self, info: Any = MPI.INFO_NULL) -> SwitchedComm:  # noqa: N802
        """Return a duplicate whose `Allreduce` also goes through the switch."""
        if self._job is None and self.size > 1:
            raise ClosedError("this communicator has left the switch")
        job = None if self._job is None else self._job.dup()
        made = SwitchedComm(super().Dup(info))
        if job is None:
            made._run_alone()
        else:
            made._begin(job, None, self._types)
        return made

    def Free(self) -> None:  # noqa: N802
        """Leave the switch, and free the communicator."""
        self.close()
        super().Free()

    def close(self) -> None:
        """Leave the switch; all ranks call it. From then on `Allreduce` uses MPI."""
        if self._job is None:
            return
        try:
            self._leave()
            self.Barrier()  # the network ends when all have left
        finally:
            self._end_network()

    def _begin(self, job: Communicator, network: JobNetwork | None, types: frozenset[str]) -> None:
        self.switched = 0
        self._job, self._network, self._types = job, network, types
        _open.append(self)

    def _run_alone(self) -> None:
        """Of a single rank, which needs no switch."""
        self.switched, self._types = 0, frozenset()
        self._job = self._network = None

    def _leave(self) -> None:
        job, self._job = self._job, None
        if self in _open:
            _open.remove(self)
        if job is not None:
            job.close()

    def _end_network(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            network.close()

    def __enter__(self) -> SwitchedComm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:  # the others may never come to a barrier
            self._leave()
            self._end_network()


def wrap(
    comm: Any, *, types: Sequence[str] | None = None, timeout: float = 60.0, lease: float = 0.0
) -> SwitchedComm:
    """Return a communicator like `comm`, whose `Allreduce` goes through the switch.

    All ranks of `comm` call it, and start a network on their hosts, for which they need the extra
    "lab", unless the environment of rank 0 names a network that runs.

    Args:
        comm: of mpi4py, with 2 to 4,096 ranks; a single rank uses MPI. Only once
            in a process; `Dup` makes further ones.
        types: the types for the switch: some of "float", "double" and "int". None: those of
            `P4REDUCE_MPI_TYPES`, or all. Rank 0's value counts.
        timeout: seconds to wait for ranks, here and in `Allreduce`.
        lease: seconds that a rank may be silent before it is lost. 0: those of `P4REDUCE_LEASE`,
            or 10. Rank 0's value counts. A network that runs has its own.

    Raises:
        TypeError, ValueError: `comm` is an intercommunicator, or another argument is wrong. All
            arguments are checked before anything starts.
        ConfigurationError: hosts, types or lease are wrong; a communicator is wrapped already; an
            argument of another rank is wrong.
        LaunchError: the network does not start; on all ranks.
        P4ReduceError: as `p4reduce.init`; on all ranks.
    """
    made = SwitchedComm(comm)

    def arguments() -> list[str]:
        check_timeout(timeout)
        check_seconds("lease", lease)
        if _open:
            raise ConfigurationError(
                "a communicator of this process is wrapped already: take its Dup(), or close() it"
            )
        return sorted(summed_types(types) if types is not None or comm.rank == 0 else ())

    if comm.size == 1:
        arguments()
        made._run_alone()
        return made
    chosen = agreed(comm.rank, comm.allgather, arguments)[0]
    job, network = join_all(comm.rank, comm.allgather, ENGINE, timeout=timeout, lease=lease)
    made._begin(job, network, frozenset(chosen))
    return made


def _described(numbers: Any) -> str:
    return "another type" if numbers is None else f"{numbers.size} {numbers.dtype}"


def _at_exit() -> None:
    """Leave without a barrier: others may have ended by an error."""
    for comm in _open:
        comm._leave()
        comm._end_network()


atexit.register(_at_exit)
