# SPDX-License-Identifier: Apache-2.0
"""How a rank reduces with each contender; `rank` measures the time."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from p4reduce_lab.compare.cells import GLOO, MPI, P4REDUCE, CompareCase
from p4reduce_lab.compare.tensors import Floats

TIMEOUT = 300.0  # seconds; for one collective, and for all ranks to be there
STORE_VARIABLE = "P4REDUCE_COMPARE_STORE"
"""Names the file by which Gloo's ranks find each other."""


class ReduceBackend(ABC):
    """A group of ranks that can reduce.

    Attributes:
        rank, ranks: which one this is, of how many.
    """

    rank: int
    ranks: int

    @abstractmethod
    def prepare(self, case: CompareCase, tensor: Floats) -> None:
        """Take the tensor, and do all work that `reduce` need not do."""

    @abstractmethod
    def reduce(self) -> None:
        """Reduce the tensor, and return when the sum is there."""

    @abstractmethod
    def result(self) -> Floats:
        """Return the sum."""

    def repeated(self) -> int:
        """Return how many frames were repeated so far, if known."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""


class P4Reduce(ReduceBackend):
    """Reduces by the switch."""

    def __init__(self) -> None:
        import p4reduce

        self._comm = p4reduce.init(timeout=TIMEOUT)
        self.rank, self.ranks = self._comm.rank, self._comm.size
        self._tensor = self._out = np.zeros(0, np.float32)
        self._precision = "int32"

    def prepare(self, case: CompareCase, tensor: Floats) -> None:
        self._tensor, self._precision = tensor, case.wire
        if len(self._out) != len(tensor):
            self._out = np.zeros_like(tensor)
        self._out[:] = 0  # its pages are there

    def reduce(self) -> None:
        self._comm.allreduce(self._tensor, out=self._out, precision=self._precision)

    def result(self) -> Floats:
        return self._out

    def repeated(self) -> int:
        return self._comm.stats.retransmissions

    def close(self) -> None:
        self._comm.close()


class GlooBackend(ReduceBackend):
    """Reduces by PyTorch's `all_reduce` over Gloo, which chooses its algorithm."""

    def __init__(self, rank: int, ranks: int) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.rank, self.ranks = rank, ranks
        self._torch, self._dist = torch, dist
        dist.init_process_group(
            "gloo",
            f"file://{os.environ[STORE_VARIABLE]}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=TIMEOUT),
        )
        self._tensor: Any = None
        self._half = False

    def prepare(self, case: CompareCase, tensor: Floats) -> None:
        self._tensor = self._torch.from_numpy(tensor)
        self._half = case.wire == "float16"

    def reduce(self) -> None:
        if not self._half:
            self._dist.all_reduce(self._tensor)
            return
        # As torch's fp16_compress_hook does it.
        half = self._tensor.to(self._torch.float16)
        self._dist.all_reduce(half)
        self._tensor.copy_(half)

    def result(self) -> Floats:
        array: Floats = self._tensor.numpy()
        return array

    def close(self) -> None:
        self._dist.destroy_process_group()


class Mpi(ReduceBackend):
    """Reduces by `MPI_Allreduce`, through mpi4py."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.rank, self.ranks = self._comm.Get_rank(), self._comm.Get_size()
        self._tensor = self._out = np.zeros(0, np.float32)

    def prepare(self, case: CompareCase, tensor: Floats) -> None:
        self._tensor = tensor
        if len(self._out) != len(tensor):
            self._out = np.zeros_like(tensor)
        self._out[:] = 0

    def reduce(self) -> None:
        self._comm.Allreduce(self._tensor, self._out)

    def result(self) -> Floats:
        return self._out

    def close(self) -> None:
        """Do nothing: mpi4py leaves at the interpreter's end."""


def backend_of(contender: str, rank: int, ranks: int) -> ReduceBackend:
    """Join a contender's group. MPI and p4reduce find their rank in the environment."""
    if contender == P4REDUCE:
        return P4Reduce()
    if contender == GLOO:
        return GlooBackend(rank, ranks)
    assert contender == MPI
    return Mpi()
