# SPDX-License-Identifier: Apache-2.0
"""A communicator that counts what a method asks of it: sums in a row, and uploads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.methods._communicator import Comm


class Counted:
    """A rank's communicator, and those that are split from it.

    Groups stay open until `end`, as the switch's counters of a group end with it.

    Attributes:
        rounds: sums that this rank took part in, one after the other.
        uploads: those of them to which it gave anything but zeros.
    """

    def __init__(self, comm: Comm, whole: Counted | None = None) -> None:
        self._comm = comm
        self._whole = whole if whole is not None else self
        self.rank, self.size = comm.rank, comm.size
        self.rounds = self.uploads = 0
        self.groups: list[Comm] = []

    def allreduce(
        self, array: npt.NDArray[Any], *, name: str | None = None, precision: str | None = None
    ) -> npt.NDArray[Any]:
        """As of the communicator."""
        self._whole.rounds += 1
        self._whole.uploads += int(np.any(array))
        return self._comm.allreduce(array, name=name, precision=precision)

    def split(self, color: int | None, key: int = 0, *, slots: int | None = None) -> Counted | None:
        """As of the communicator."""
        group = self._comm.split(color, key, slots=slots)
        if group is None:
            return None
        self._whole.groups.append(group)
        return Counted(group, self._whole)

    def close(self) -> None:
        """Not yet; see `end`."""

    def end(self) -> None:
        """Close all groups."""
        for group in self.groups:
            group.close()
        self.groups.clear()
