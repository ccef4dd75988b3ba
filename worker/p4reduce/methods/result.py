# SPDX-License-Identifier: Apache-2.0
"""What every solver returns: the model, how it came about, and what that took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Array, Comm, Watch

Reason = Literal["steps", "watch"]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Result:
    """A solver's end on this rank.

    Arrays have an entry for each call of `watch`: each iteration, and each average of `local_sgd`.

    Attributes:
        model: as the solver's docstring says.
        steps: the number of the last iteration, as `watch` has it.
        reason: "watch" if the caller's `watch` has ended it, else "steps": all were made.
        history: how far `model` has moved since the last entry, as the Euclidean norm.
        sums_by: how many sums this rank has taken part in until then. The solver's first sums
            count, in which ranks compare settings; those of `watch` do not.
        uploads_by: those of them to which it has given anything but zeros.
    """

    model: Array
    steps: int
    reason: Reason
    history: Array
    sums_by: Counts
    uploads_by: Counts

    @property
    def sums(self) -> int:
        """All sums that this rank has taken part in."""
        return int(self.sums_by[-1])

    @property
    def uploads(self) -> int:
        """Those of them to which it has given anything but zeros."""
        return int(self.uploads_by[-1])


class CountedComm:
    """A rank's communicator that counts sums and uploads, also in groups that are split from it."""

    def __init__(self, comm: Comm, whole: CountedComm | None = None) -> None:
        self._comm = comm
        self._whole = whole if whole is not None else self
        self.sums = self.uploads = 0

    @property
    def rank(self) -> int:
        """As of the communicator."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """As of the communicator."""
        return self._comm.size

    def allreduce(
        self, array: npt.NDArray[Any], *, name: str | None = None, precision: str | None = None
    ) -> npt.NDArray[Any]:
        """As of the communicator."""
        self._whole.sums += 1
        self._whole.uploads += int(np.any(array))
        return self._comm.allreduce(array, name=name, precision=precision)

    def split(
        self, color: int | None, key: int = 0, *, slots: int | None = None
    ) -> CountedComm | None:
        """As of the communicator."""
        group = self._comm.split(color, key, slots=slots)
        return None if group is None else CountedComm(group, self._whole)

    def close(self) -> None:
        """As of the communicator."""
        self._comm.close()


class SolverProgress:
    """A solver's iterations so far.

    Args:
        comm: which the solver has used from its begin.
        model: before the first iteration.
        watch: the caller's.
    """

    def __init__(self, comm: CountedComm, model: Array, watch: Watch) -> None:
        self._comm, self._model, self._watch = comm, model, watch
        self._steps = 0
        self._reason: Reason = "steps"
        self._history: list[float] = []
        self._sums: list[int] = []
        self._uploads: list[int] = []

    def ends(self, step: int, model: Array) -> bool:
        """Note an iteration and call `watch`; return whether it ends the method."""
        self._history.append(float(np.linalg.norm(model - self._model)))
        self._sums.append(self._comm.sums)
        self._uploads.append(self._comm.uploads)
        self._steps, self._model = step, model
        if self._watch(step, model):
            self._reason = "watch"
        return self._reason == "watch"

    def result(self) -> Result:
        """Return what the iterations have come to."""
        return Result(
            self._model,
            self._steps,
            self._reason,
            np.array(self._history),
            np.array(self._sums, np.int64),
            np.array(self._uploads, np.int64),
        )
