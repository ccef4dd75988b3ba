# SPDX-License-Identifier: Apache-2.0
"""Each rank's inputs and results of all-reduces, kept to be checked after the run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce
from p4reduce.tensors.precision import PRECISIONS

from p4reduce_lab.demo.training.model import Floats

Doubles = npt.NDArray[np.float64]

RECORDED_STEPS = 400  # at most; a longer training is sampled evenly
FLOAT32_ROUNDING = 2.0**-24  # relative


def recorded_every(steps: int) -> int:
    """Return the distance of recorded steps: 1 for a training of up to RECORDED_STEPS."""
    return -(-steps // RECORDED_STEPS)


class TensorRecorder:
    """Writes a rank's tensors of the recorded steps to memory-mapped files in ``directory``.

    All ranks' results must be the same, so only rank 0 keeps them; every rank hashes its own.
    """

    def __init__(self, directory: Path, rank: int, steps: int, size: int) -> None:
        self._every = recorded_every(steps)
        shape = (-(-steps // self._every), size)
        self._contributions = _create(contributions_path(directory, rank), shape)
        self._results = _create(results_path(directory), shape) if rank == 0 else None
        self._hashes: dict[int, Any] = {}

    def contribution(self, step: int, start: int, tensor: Floats) -> None:
        """Keeps what this rank gives to the all-reduce of the elements from ``start`` on."""
        if step % self._every == 0:
            row = self._contributions[step // self._every]
            row[start : start + len(tensor)] = tensor

    def result(self, step: int, start: int, tensor: Floats) -> None:
        """Keep the result of the all-reduce.

        Call it in the same order on all ranks. A step that starts again at ``start`` 0 replaces its
        earlier record.
        """
        if start == 0:
            self._hashes[step] = hashlib.sha256()
        self._hashes[step].update(tensor.data)
        if self._results is not None and step % self._every == 0:
            self._results[step // self._every][start : start + len(tensor)] = tensor

    def digest(self, since: int = 0) -> str:
        """SHA-256 of all results of all steps from ``since`` on."""
        whole = hashlib.sha256()
        for step in sorted(self._hashes):
            if step >= since:
                whole.update(self._hashes[step].digest())
        return whole.hexdigest()


@dataclass(frozen=True)
class Accuracy:
    """How far the switch's sums are from exact ones.

    Attributes:
        maximum: The largest error of an element, relative to the largest magnitude among the
            exact sums of its block.
        of_bound: The largest error of an element, as a share of what
            :func:`p4reduce.error_bound` and the rounding to float32 allow there.
        elements: How many elements were compared.
    """

    maximum: float
    of_bound: float
    elements: int

    def joined(self, other: Accuracy) -> Accuracy:
        """Return the accuracy over the sums of both."""
        # Not max(): it would lose a NaN.
        return Accuracy(
            float(np.max([self.maximum, other.maximum])),
            float(np.max([self.of_bound, other.of_bound])),
            self.elements + other.elements,
        )


def measure(
    directory: Path,
    workers: int,
    sizes: Sequence[int],
    narrow: Mapping[int, str] | None = None,
    until: Mapping[int, int] | None = None,
) -> Accuracy:
    """Compares rank 0's recorded results with the float64 sums of all ranks' contributions.

    Args:
        directory: The directory of the records.
        workers: The number of workers.
        sizes: Of the all-reduced tensors that follow each other in a recorded row; blocks start
            again in each.
        narrow: By the position of a tensor, its precision if that is not "int32".
        until: By rank, the step from which on its contributions do not count, as it was lost.
    """
    results = np.load(results_path(directory), mmap_mode="r")
    contributions = [
        np.load(contributions_path(directory, rank), mmap_mode="c") for rank in range(workers)
    ]
    for rank, row in (until or {}).items():
        contributions[rank][row:] = 0  # a private copy
    exact = np.zeros(results.shape, np.float64)
    for rows in contributions:
        exact += rows
    errors = np.abs(results - exact)
    magnitudes = np.abs(exact)
    accuracy = Accuracy(0.0, 0.0, 0)
    for place, (start, size) in enumerate(zip(np.cumsum([0, *sizes]), sizes, strict=False)):
        tensor = slice(start, start + size)
        precision = (narrow or {}).get(place, "int32")
        starts = np.arange(0, size, PRECISIONS[precision].lanes)  # a block has one exponent
        worst = np.maximum.reduceat(errors[:, tensor], starts, axis=1)
        largest = np.maximum.reduceat(magnitudes[:, tensor], starts, axis=1)
        given = np.zeros(worst.shape)
        for rows in contributions:
            mine = np.maximum.reduceat(np.abs(rows[:, tensor]), starts, axis=1)
            np.maximum(given, mine, out=given)
        finite = np.where(np.isfinite(given), given, 0.0)  # what is not makes the error so too
        allowed = p4reduce.error_bound(finite, workers, precision) + largest * FLOAT32_ROUNDING
        share = Accuracy(_largest(worst, largest), _largest(worst, allowed), worst.size)
        accuracy = accuracy.joined(share)
    return replace(accuracy, elements=results.size)


def _largest(errors: Doubles, scales: Doubles) -> float:
    """The largest ratio. Where the scale is 0, any error is infinite."""
    ratios = np.divide(errors, scales, out=np.where(errors > 0, np.inf, 0.0), where=scales > 0)
    # A NaN is neither above 0 nor must it be lost.
    ratios[np.isnan(errors)] = np.nan
    return float(ratios.max())


def contributions_path(directory: Path, rank: int) -> Path:
    """The file of a rank's contributions, float32 (recorded steps, elements)."""
    return directory / f"contributions-{rank}.npy"


def results_path(directory: Path) -> Path:
    """The file of the results, float32 (recorded steps, elements)."""
    return directory / "results.npy"


def _create(path: Path, shape: tuple[int, int]) -> Floats:
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
