# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's digits (1,797 real images of 8 x 8 pixels), split, batched and sharded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

TEST_SHARE = 0.2
CLASSES = 10
PIXEL_MAXIMUM = 16.0


@dataclass(frozen=True)
class Digits:
    """Images as float32 (samples, 64) in [0, 1], labels as int64 (samples,) in 0…9."""

    train_images: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write the split to an .npz file, so that workers need not import scikit-learn."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Digits:
        """Read what :meth:`save` wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)


def load_digits(seed: int) -> Digits:
    """Loads the data set and splits it at random, four fifths for training."""
    rows = _rows()
    images = (rows[:, :-1] / PIXEL_MAXIMUM).astype(np.float32)
    labels = rows[:, -1].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(images))
    test, train = np.split(order, [round(TEST_SHARE * len(images))])
    return Digits(images[train], labels[train], images[test], labels[test])


def _rows() -> npt.NDArray[np.float64]:
    """Return an image a row, float64 (samples, 65): 64 pixels in 0…16, and the label.

    So scikit-learn has them on disk. Its own loader is used only where that file is elsewhere, as
    importing it takes longer than the demo trains.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return np.loadtxt(file, delimiter=",")
    from sklearn import datasets

    bunch = datasets.load_digits()
    return np.column_stack((bunch.data, bunch.target))


def global_batches(samples: int, batch: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields for ever the sample indices of one global batch a step, shape (batch,).

    Each epoch is a new permutation; what is left over at its end, too little for a batch, is
    dropped. The sequence depends on the arguments alone, so all ranks see the same one.
    """
    batch = min(batch, samples)
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(samples)
        for start in range(0, samples - batch + 1, batch):
            yield order[start : start + batch]


def shard(batch: npt.NDArray[np.int64], rank: int, workers: int) -> npt.NDArray[np.int64]:
    """Rank's part of a global batch: every ``workers``-th sample, so sizes differ by at most 1."""
    return batch[rank::workers]
