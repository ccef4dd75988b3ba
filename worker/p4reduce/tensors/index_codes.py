# SPDX-License-Identifier: Apache-2.0
"""Sets of indices as few bytes: Elias–Fano codes.

Elias, "Efficient Storage and Retrieval by Content and Address of Static Files", JACM 1974; Fano,
MIT Project MAC memorandum 61, 1971. Of each index the low bits stand as they are. The rest of
the k-th index sets bit (rest + k) of a bitmap. That is at most 2 + log2(N / k) bits per index,
and their number follows from N and k alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Code = npt.NDArray[np.uint8]


def code_bytes(size: int, count: int) -> int:
    """Return how many bytes `count` distinct indices below `size` take."""
    if not count:
        return 0
    low = _low_bits(size, count)
    return _whole_bytes(count * low) + _whole_bytes(count + ((size - 1) >> low) + 1)


def encode(indices: Indices, size: int) -> Code:
    """Return the code of ascending, distinct indices from 0 to `size` - 1.

    Args:
        indices: shape (k,).
        size: N.

    Returns:
        Shape (`code_bytes(size, k)`,).
    """
    count = len(indices)
    if not count:
        return np.empty(0, np.uint8)
    low = _low_bits(size, count)
    lows = ((indices[:, None] >> np.arange(low)) & 1).astype(np.uint8)
    highs = np.zeros(count + ((size - 1) >> low) + 1, np.uint8)
    highs[(indices >> low) + np.arange(count)] = 1
    return np.concatenate((np.packbits(lows), np.packbits(highs)))


def decode(code: Code, size: int, count: int) -> Indices:
    """Return the indices of a code.

    Args:
        code: what `encode` returned.
        size: N.
        count: k.
    """
    if not count:
        return np.empty(0, np.int64)
    low = _low_bits(size, count)
    border = _whole_bytes(count * low)
    lows = np.unpackbits(code[:border], count=count * low).reshape(count, low)
    indices = (np.flatnonzero(np.unpackbits(code[border:])) - np.arange(count)) << low
    for bit in range(low):
        indices |= lows[:, bit].astype(np.int64) << bit
    return indices


def _low_bits(size: int, count: int) -> int:
    return max((size // count).bit_length() - 1, 0)


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)
