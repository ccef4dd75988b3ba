# SPDX-License-Identifier: Apache-2.0
"""In-network all-reduce: gradients of many workers summed by a P4 switch.

    import numpy as np
    import p4reduce

    with p4reduce.init() as comm:
        gradient = np.full(1000, comm.rank, np.float32)
        total = comm.allreduce(gradient)

See `init` for how a process finds its rank, its controller and its switch, and
`Communicator.allreduce` for what may be reduced, how exactly, and what can go wrong.

Scripts call `initialize` for a `communicator`, with `options`, `handle`, `statistics` and `errors`;
`dispatch` brings its calls into an order. `environment` finds rank and world size. `launched`
starts a network with the other ranks of a launcher, by `job_network`. Below, from a tensor to the
wire: `tensors` (blocks, exponents, zeros, rounding), `protocol` (slots, timers, window), `wire`
(the header, frames), `transport` (sockets). `session` joins a job and repairs it, `switches`
spreads it over several switches, `ring` sums without a switch, `late` without late ranks; `control`
talks to the controller. `compression` sends less, `methods` are algorithms over it, `torch` is
PyTorch's backend. Each of these folders says which of the others it imports.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p4reduce.communicator import Communicator
    from p4reduce.errors import (
        AdmissionError,
        ClosedError,
        ConfigurationError,
        ControllerUnreachableError,
        InterruptedCallError,
        JobEndedError,
        LaneOverflowError,
        LaunchError,
        MismatchError,
        P4ReduceError,
        P4ReduceTimeoutError,
        SwitchUnreachableError,
        ValueRangeError,
        WorkerLostError,
    )
    from p4reduce.handle import Handle
    from p4reduce.initialize import init
    from p4reduce.statistics import Statistics
    from p4reduce.tensors.precision import error_bound
    from p4reduce.tensors.sparse import SparseBlocks, SparseElements, SparseRows
    from p4reduce.wire.calls import MEAN, SUM, Operation, Priority

    __version__: str

__all__ = [
    "MEAN",
    "SUM",
    "AdmissionError",
    "ClosedError",
    "Communicator",
    "ConfigurationError",
    "ControllerUnreachableError",
    "Handle",
    "InterruptedCallError",
    "JobEndedError",
    "LaneOverflowError",
    "LaunchError",
    "MismatchError",
    "Operation",
    "P4ReduceError",
    "P4ReduceTimeoutError",
    "Priority",
    "SparseBlocks",
    "SparseElements",
    "SparseRows",
    "Statistics",
    "SwitchUnreachableError",
    "ValueRangeError",
    "WorkerLostError",
    "__version__",
    "error_bound",
    "init",
]

# gRPC reads these when it is imported: not ours to change where the program has done that.
if "grpc" not in sys.modules:
    # In a forked child, such as a DataLoader's, gRPC would start threads that go on with what the
    # parent's were doing, and abort: "Check failed: next_worker->state == KICKED".
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Its own log repeats at length on the terminal what our errors say.
    if "GRPC_TRACE" not in os.environ:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# Loaded when they are asked for: with numpy they take a third of a second, which a program that
# only talks to the controller, like its command line, should not have to wait.
_WHERE = {
    "AdmissionError": "errors",
    "ClosedError": "errors",
    "Communicator": "communicator",
    "ConfigurationError": "errors",
    "ControllerUnreachableError": "errors",
    "Handle": "handle",
    "InterruptedCallError": "errors",
    "JobEndedError": "errors",
    "LaneOverflowError": "errors",
    "LaunchError": "errors",
    "MEAN": "wire.calls",
    "MismatchError": "errors",
    "Operation": "wire.calls",
    "P4ReduceError": "errors",
    "P4ReduceTimeoutError": "errors",
    "Priority": "wire.calls",
    "SUM": "wire.calls",
    "SparseBlocks": "tensors.sparse",
    "SparseElements": "tensors.sparse",
    "SparseRows": "tensors.sparse",
    "Statistics": "statistics",
    "SwitchUnreachableError": "errors",
    "ValueRangeError": "errors",
    "WorkerLostError": "errors",
    "error_bound": "tensors.precision",
    "init": "initialize",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("p4reduce")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"p4reduce.{_WHERE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
