# SPDX-License-Identifier: Apache-2.0
"""Random numbers for stochastic rounding: each block always gets the same ones.

Blocks are rounded when their turn comes, which is never twice in the same order, and once more
where a collective has to be run again. A generator with a running state would give each of them
other numbers in each run. So the numbers are a hash of a key and a place, as in Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The hash is that of SplitMix64 (Steele, Lea
and Flood, OOPSLA 2014), whose n-th output is mix(key + n * gamma).
"""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from p4reduce.checks import whole_number

NOISE_BITS = 16
"""Of each number."""

_NUMBERS_A_WORD = 64 // NOISE_BITS
_GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class Noise:
    """Numbers evenly from 0 to 2^16 - 1, for each lane of each block of one collective.

    Attributes:
        key: 64 bits, of all that they depend on besides the place.

    Args:
        seed: not negative. None: other numbers each time.
        rank: ranks get numbers that are independent of each other's, with the same seed as well.
        sequence: the collective's; so do collectives.
    """

    def __init__(self, seed: int | None, rank: int, sequence: int) -> None:
        places = np.random.SeedSequence(seed, spawn_key=(rank, sequence))
        self.key = int(places.generate_state(1, np.uint64)[0])

    def since(self, first: int, lanes: int) -> Noise:
        """Return the same for a collective whose block 0 is block `first` of this one."""
        words = lanes // _NUMBERS_A_WORD
        other = copy.copy(self)
        other.key = self.key + first * words * _GAMMA & _WORD
        return other

    def rows(self, blocks: npt.NDArray[np.int64], lanes: int) -> npt.NDArray[np.uint16]:
        """Return the numbers of some blocks.

        Args:
            blocks: by number.
            lanes: of each, a multiple of 4.

        Returns:
            Shape (blocks, lanes).
        """
        words = lanes // _NUMBERS_A_WORD
        first = blocks.astype(np.uint64)
        first *= np.uint64(words * _GAMMA & _WORD)
        first += np.uint64(self.key)
        within = np.arange(words, dtype=np.uint64)
        within *= np.uint64(_GAMMA)
        numbers = np.add(first[:, None], within)
        shifted = np.empty_like(numbers)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            np.right_shift(numbers, np.uint64(shift), out=shifted)
            np.bitwise_xor(numbers, shifted, out=numbers)
            np.multiply(numbers, np.uint64(factor), out=numbers)
        np.right_shift(numbers, np.uint64(31), out=shifted)
        np.bitwise_xor(numbers, shifted, out=numbers)
        return numbers.view(np.uint16)


def check_seed(seed: int | None) -> int | None:
    """Return a seed from an argument.

    Raises:
        TypeError, ValueError: it is not an integer, or negative.
    """
    if seed is None:
        return None
    number = whole_number("seed", seed, "an integer is needed, or None")
    if number < 0:
        raise ValueError(f"seed={seed}: an integer of 0 or more is needed")
    return number
