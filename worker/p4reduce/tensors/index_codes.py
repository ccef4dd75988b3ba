# SPDX-License-Identifier: Apache-2.0
"""Sets of indices as few bytes: codes of one rank's, and marks, which are summed over all ranks.

Codes are those of Elias, "Efficient Storage and Retrieval by Content and Address of Static Files",
JACM 1974, and Fano, MIT Project MAC memorandum 61, 1971. Of each index the low bits stand as they
are. The rest r of the j-th index, from 0, sets bit r + j of a bitmap. With k of N indices that is
at most 2 + log2(N / k) bits per index. The code's length follows from N and k alone.

Marks are a few bits for each of N, in which all ranks that have an index add up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
Code = npt.NDArray[np.uint8]
Marks = npt.NDArray[np.int32]


def code_bytes(size: int, count: int) -> int:
    """Return how many bytes `count` distinct indices below `size` take."""
    if not count:
        return 0
    low = _low_bits(size, count)
    # The bitmap has one bit more than is ever set: its length is part of the format.
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


def mark_bytes(size: int, ranks: int) -> int:
    """Return how many bytes the marks of `size` indices take."""
    return 4 * -(-size // _marks_per_word(ranks))


def marks_of(indices: Indices, size: int, ranks: int) -> Marks:
    """Return words whose sum over all ranks says which indices any of them has.

    Args:
        indices: of this rank, distinct.
        size: N.
        ranks: up to 2^31 - 1.
    """
    each = _marks_per_word(ranks)
    word, place = np.divmod(indices, each)
    bits = np.ldexp(1.0, place * ranks.bit_length())  # sums of these are exact below 2^53
    return np.bincount(word, bits, -(-size // each)).astype(np.int32)


def marked(words: Marks, ranks: int) -> Indices:
    """Return the marked indices in a sum of `marks_of`, ascending."""
    each = _marks_per_word(ranks)
    some = np.flatnonzero(words)
    width = ranks.bit_length()
    counts = (words[some, None] >> (np.arange(each) * width)) & ((1 << width) - 1)
    which, place = np.nonzero(counts)
    return some[which] * each + place


def _marks_per_word(ranks: int) -> int:
    return 31 // ranks.bit_length()  # each counts up to `ranks`; words stay below 2^31


def _low_bits(size: int, count: int) -> int:
    return max((size // count).bit_length() - 1, 0)


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)
