# SPDX-License-Identifier: Apache-2.0
"""Sums of LightGBM's histograms of quantised gradients.

A bin is one word: the gradients' sum in the upper half, the Hessians' in the lower half. LightGBM
adds whole words, of 32 bits (`Int16HistogramSumReducer`) or 64 (`Int32HistogramSumReducer`, both in
its `include/LightGBM/bin.h`). N samples of all ranks are in a leaf, and gradients have B bins
(`num_grad_quant_bins`). Then a lower half is from 0 to N B, and an upper one at most N B / 2 either
way.

- **32 bits** are used where N B < 2^16 (`GradientDiscretizer::SetNumBitsInHistogramBin`). A sum of
  any samples' words is then within int32, so int32 lanes hold the words themselves.
- **64 bits** otherwise. A word travels as two int32 lanes, which hold every sum up to N B < 2^31.

A sum beyond a lane's range is never silent: all ranks get `LaneOverflowError`. `served` then adds
the words in the ranks, by LightGBM's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.communicator import Communicator

Words = npt.NDArray[np.signedinteger[Any]]
Reduce = Callable[[int, int, int, int], None]
"""LightGBM's `ReduceFunction`: addresses of what is added and of the sum, bytes per item, bytes."""

_NAME = "lightgbm: histograms"
_WORDS: dict[int, type[np.signedinteger[Any]]] = {2: np.int32, 4: np.int64}  # by bytes of a half


def packed_word(reduce: Reduce, half: int) -> type[np.signedinteger[Any]] | None:
    """Return the dtype of the words that a reducer adds, or None where it does something else.

    The reducer is tried on words whose sums carry from one half to the other, with both signs. A
    sum of halves by themselves, of floats, a maximum or a copy gives other bits.

    Args:
        reduce: LightGBM's function.
        half: its bytes per item (`type_size`), which are half a word in histograms of integers.
    """
    if half not in _WORDS:
        return None
    dtype = _WORDS[half]
    top = 1 << 8 * half
    ours = np.array([top - 1, -top - 1, 5 * top + 7, -3], dtype)
    sums = np.array([2 * top + 1, 3 * top - 9, -8 * top, 2], dtype)
    wanted = ours + sums
    reduce(ours.ctypes.data, sums.ctypes.data, half, ours.nbytes)
    return dtype if (sums == wanted).all() else None


def sum_words(
    comm: Communicator, words: Words, counts: Sequence[int], timeout: float | None
) -> Words:
    """Return this rank's part of the sum over all ranks, as LightGBM's reducer would add it.

    A word of 64 bits is high * 2^32 + low with both of them in int32, so that the lanes' sums give
    the word's sum whatever carries there are.

    Args:
        comm: the ranks.
        words: of all ranks' parts, one after the other; int32 or int64, shape (words,).
        counts: how many words each rank's part has.
        timeout: seconds; None: that of `init`.

    Raises:
        LaneOverflowError: a lane's sum left int32, on all ranks.
        P4ReduceError: as `reduce_scatter`.
    """
    if words.dtype == np.int32:
        return comm.reduce_scatter(words, name=_NAME, counts=counts, timeout=timeout)
    low = words.astype(np.int32)  # the lower 32 bits, as a signed number
    high = ((words - low) >> 32).astype(np.int32)
    lanes = np.stack([low, high], axis=1)
    sums = comm.reduce_scatter(lanes, name=_NAME, counts=counts, timeout=timeout).astype(np.int64)
    return np.asarray((sums[:, 1] << 32) + sums[:, 0])
