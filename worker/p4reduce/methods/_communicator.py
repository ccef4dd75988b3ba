# SPDX-License-Identifier: Apache-2.0
"""What a method needs of a communicator, over a switch or in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

Watch = Callable[[int, Array], object]
"""Called by each rank after each iteration, with the iteration's number from 1 on and this rank's
model. A true value ends the method; all ranks have to return the same."""


class Comm(Protocol):
    """The part of `p4reduce.Communicator` that methods use. `in_process` has another one."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def allreduce(
        self, array: npt.NDArray[Any], *, name: str | None = None, precision: str | None = None
    ) -> npt.NDArray[Any]:
        """Return the sum over all ranks."""
        ...

    def split(self, color: int | None, key: int = 0, *, slots: int | None = None) -> Comm | None:
        """Return a communicator of the ranks with the same colour; None for no colour.

        `slots`: its slots of the switch; None: as many as this one has.
        """
        ...

    def close(self) -> None:
        """Leave."""
        ...


def nobody(_iteration: int, _model: Array) -> bool:
    """A `Watch` that does nothing."""
    return False
