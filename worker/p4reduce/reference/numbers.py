# SPDX-License-Identifier: Apache-2.0
"""A call's numbers as blocks of lanes, and back: docs/protocol.md, "Numbers".

Plain Python, a block at a time, with two exceptions. The caller's arrays decide where the numbers
lie, and `tensors.stochastic` rounds at random to lanes of 16, 8 and 4 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from p4reduce.tensors.stochastic import StochasticQuantiser
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import NONFINITE_EXPONENT, Format

_BIAS = 126  # of float32: with exponent E, all magnitudes are below 2^(E - 126)


def exponent_of(numbers: Sequence[float]) -> int:
    """Return float32's biased exponent of the largest magnitude; 255 for NaN or infinity."""
    if not all(math.isfinite(number) for number in numbers):
        return NONFINITE_EXPONENT
    largest = max(abs(number) for number in numbers)
    return max(0, math.frexp(largest)[1] + _BIAS) if largest else 0


def scale(exponent: int, lane_maximum: int, ranks: int) -> float:
    """Return lanes' units per 1.0: 2^(k-e) with the largest k such that 2^k <= (L + 1) / n.

    "NaN and infinity are announced by exponent 255": there is no number then.
    """
    if exponent == NONFINITE_EXPONENT:
        return math.nan
    k = ((lane_maximum + 1) // ranks).bit_length() - 1
    return math.ldexp(1.0, k - (exponent - _BIAS))


def bytes_of(lanes: Sequence[int], lane_format: Format) -> bytes:
    """Return lanes as they are on the wire: one long big-endian number in two's complement."""
    bits = lane_format.lane_bits
    number = 0
    for lane in lanes:
        number = number << bits | lane & ((1 << bits) - 1)
    return number.to_bytes(len(lanes) * bits // 8, "big")


def numbers_in(payload: bytes, lane_format: Format) -> list[int]:
    """Return the lanes in a payload or a half of one."""
    bits = lane_format.lane_bits
    number, negative = int.from_bytes(payload, "big"), 1 << bits - 1
    lanes = []
    for place in range(8 * len(payload) - bits, -1, -bits):
        lane = number >> place & ((1 << bits) - 1)
        lanes.append(lane - 2 * negative if lane & negative else lane)
    return lanes


class Call:
    """One collective's input, as blocks, and the place for its sums.

    Attributes:
        collective: what was called.
        count: blocks.
        exponents: of each block.
        is_zero: of each block, whether all of it is zeros: it stays at home.
        stripes_left: how many are not over.
    """

    def __init__(self, collective: Collective, ranks: int) -> None:
        self.collective = collective
        self.count = collective.count
        self.stripes_left = collective.stripes
        self._ranks = ranks
        self._format = collective.format
        self._floats = collective.dtype.kind == "f"
        blocks = [self.numbers(block) for block in range(self.count)]
        self.exponents = [exponent_of(block) if self._floats else 0 for block in blocks]
        self.is_zero = [not any(block) for block in blocks]

    def numbers(self, block: int) -> list[float]:
        """Return a block's numbers; the last block goes on with zeros."""
        rows = np.empty((1, self._format.lanes), self.collective.dtype)
        self.collective.source.gather(np.array([block]), rows)
        numbers: list[float] = rows[0].tolist()
        return numbers

    def next_nonzero(self, block: int) -> int | None:
        """Return the first block from `block` on, in its stripe, that is not all zeros."""
        stripe = range(block, self.count, self.collective.stripes)
        return next((one for one in stripe if not self.is_zero[one]), None)

    def exponent(self, block: int | None) -> int:
        """Return what a frame says about the block that it announces; 0 where there is none."""
        return 0 if block is None else self.exponents[block]

    # -- Numbers to lanes ------------------------------------------------------------------------

    def lanes(self, block: int, exponent: int) -> bytes:
        """Return a block's 1,024 bytes, with the exponent that the ranks agreed on."""
        return bytes_of(self._quantised(block, exponent), self._format)

    def _quantised(self, block: int, exponent: int) -> list[int]:
        numbers = self.numbers(block)
        if not self._floats:
            return [int(number) for number in numbers]  # lanes as they are
        if self._format is not Format.INT32:
            return self._rounded_at_random(block, numbers, exponent)
        # q = round(x * scale), held within what n ranks can add up without overflow.
        limit = self._format.lane_maximum // self._ranks
        units = scale(exponent, self._format.lane_maximum, self._ranks)
        return [max(-limit, min(limit, round(number * units))) for number in numbers]

    def _rounded_at_random(self, block: int, numbers: list[float], exponent: int) -> list[int]:
        width, noise = self._format.lanes, self.collective.noise
        assert noise is not None
        lanes = np.empty((1, width), np.int64)
        self._narrow.quantise(
            np.array([numbers], self.collective.working_dtype),
            np.array([exponent], np.uint8),
            lanes,
            noise.rows(np.array([block]), width),
        )
        rounded: list[int] = lanes[0].tolist()
        return rounded

    # -- Sums of lanes to numbers ----------------------------------------------------------------

    def write(self, block: int, exponent: int, lanes: bytes, *, second_half: bool) -> None:
        """Put sums where they belong: those of a block, or of one half of it."""
        sums = numbers_in(lanes, self._format)
        count = len(sums)
        first = count if second_half else 0
        with np.errstate(over="ignore"):  # a sum beyond the dtype becomes infinite
            rows = np.array([self._numbers(sums, exponent)], self.collective.working_dtype)
            columns = slice(first, first + count)
            self.collective.target.scatter(np.array([block]), rows, columns)

    def _numbers(self, sums: Sequence[int], exponent: int) -> Sequence[float]:
        collective = self.collective
        if not self._floats:
            return sums
        if self._format is not Format.INT32:
            rows = np.empty((1, len(sums)), collective.working_dtype)
            self._narrow.dequantise(
                np.array([sums]), np.array([exponent], np.uint8), rows, mean=collective.is_mean
            )
            numbers: list[float] = rows[0].tolist()
            return numbers
        unit = 1.0 / scale(exponent, self._format.lane_maximum, self._ranks)
        if collective.is_mean:
            unit /= self._ranks
        return [lane * unit for lane in sums]

    def fill(self, block: int, value: float) -> None:
        """Set a whole block to one number: zero, or not a number."""
        if self._floats or value == 0:
            self.collective.target.fill(np.array([block]), value)

    @property
    def _narrow(self) -> StochasticQuantiser:
        return StochasticQuantiser(self._ranks, self._format)
