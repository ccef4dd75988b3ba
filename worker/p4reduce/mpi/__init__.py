# SPDX-License-Identifier: Apache-2.0
"""MPI programs whose all-reduces the switch computes: `wrap` for mpi4py, and a library to preload.

    from mpi4py import MPI
    import p4reduce.mpi

    comm = p4reduce.mpi.wrap(MPI.COMM_WORLD)
    comm.Allreduce(send, receive)

`wrapped` is the communicator, `messages` reads its buffers, and `sums` decides what the switch
adds. `proxy` is the process beside each rank of a program in another language, which talks to
`csrc/pmpi.c`; `building` compiles that.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce.mpi.wrapped import SwitchedComm, wrap

__all__ = ["SwitchedComm", "wrap"]


def __getattr__(name: str) -> object:
    # `proxy` and `building` run without mpi4py.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from p4reduce.mpi import wrapped

    return getattr(wrapped, name)
