# SPDX-License-Identifier: Apache-2.0
"""A call's numbers as blocks of lanes, and back: docs/protocol.md, "Numbers".

Plain Python, a block at a time; only the places of the numbers come from the caller's arrays.
`tensors.quantise` and `tensors.stochastic` have the bounds, and say why no sum overflows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from p4reduce_native.frame_lanes import SUMS_WORDS

from p4reduce.tensors.measure import exponent_of
from p4reduce.tensors.noise import NOISE_BITS
from p4reduce.tensors.quantise import FLOAT32_SCALES_FROM
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import NONFINITE_EXPONENT, Format


def power(exponent: int) -> float:
    """Return 2^e with e = `exponent` - 126. All magnitudes of the block are below it.

    "NaN and infinity are announced by exponent 255": there is no number then.
    """
    return math.nan if exponent == NONFINITE_EXPONENT else math.ldexp(1.0, exponent - 126)


def scale(exponent: int, lane_maximum: int, ranks: int) -> float:
    """Return lanes' units per 1.0: 2^(k-e) with the largest k such that 2^k <= (L + 1) / n."""
    k = ((lane_maximum + 1) // ranks).bit_length() - 1
    return math.ldexp(1.0, k) / power(exponent)


def as_float32(number: float) -> float:
    """Return the nearest float32."""
    return float(np.float32(number))


def rounded_at_random(
    number: float, exponent: int, limit: int, noise: int, *, double: bool = False
) -> int:
    """Return a number as a lane of 16, 8 or 4 bits: q = floor(x * M / 2^e + noise).

    Args:
        number: below 2^e.
        exponent: the agreed one.
        limit: M, the largest magnitude of a lane.
        noise: 16 bits after the point.
        double: whether the numbers are float64.
    """
    fixed = number * ((limit << NOISE_BITS) / power(exponent))
    if not double and exponent >= FLOAT32_SCALES_FROM:
        fixed = as_float32(fixed)
    return (round(fixed) + noise) >> NOISE_BITS


def bytes_of(lanes: Sequence[int], lane_format: Format) -> bytes:
    """Return lanes as on the wire: one long big-endian number in two's complement, or words."""
    bits = lane_format.lane_bits
    if SUMS_WORDS:
        return b"".join(
            word_of(lanes[first : first + 32 // bits], bits)
            for first in range(0, len(lanes), 32 // bits)
        )
    number = 0
    for lane in lanes:
        number = number << bits | lane & ((1 << bits) - 1)
    return number.to_bytes(len(lanes) * bits // 8, "big")


def word_of(lanes: Sequence[int], bits: int) -> bytes:
    """Return the signed sum of a word's lanes, of which a switch that adds words needs no masks.

    The sum of q * 2^(bits * place): a negative lane borrows from the one before it.
    """
    word = 0
    for lane in lanes:
        word = (word << bits) + lane
    return (word % 2**32).to_bytes(4, "big")


def lanes_of_word(word: int, bits: int) -> list[int]:
    """Return what `word_of` has made, or a sum of such words."""
    lanes = []
    for _ in range(32 // bits):
        lane = (word + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        lanes.append(lane)
        word = (word - lane) >> bits
    return lanes[::-1]


def numbers_in(payload: bytes, lane_format: Format) -> list[int]:
    """Return the lanes in a payload, or in half of one."""
    bits = lane_format.lane_bits
    if SUMS_WORDS:
        words = (int.from_bytes(payload[at : at + 4], "big") for at in range(0, len(payload), 4))
        return [lane for word in words for lane in lanes_of_word(word, bits)]
    number, negative = int.from_bytes(payload, "big"), 1 << bits - 1
    lanes = []
    for place in range(8 * len(payload) - bits, -1, -bits):
        lane = number >> place & ((1 << bits) - 1)
        lanes.append(lane - 2 * negative if lane & negative else lane)
    return lanes


class Numbers:
    """A collective's input, as blocks of lanes, and the place for its sums.

    Args:
        collective: what was called.
        ranks: of the job.
    """

    def __init__(self, collective: Collective, ranks: int) -> None:
        self.collective = collective
        self._ranks = ranks
        self._format = collective.format
        self._floats = collective.dtype.kind == "f"
        self._double = collective.dtype == np.float64
        # M, the largest magnitude of one rank's lane: n of them cannot overflow.
        self._limit = collective.format.lane_maximum // ranks

    def numbers(self, block: int) -> list[float]:
        """Return a block's numbers. The last block is filled with zeros."""
        rows = np.empty((1, self._format.lanes), self.collective.dtype)
        self.collective.source.gather(np.array([block]), rows)
        numbers: list[float] = rows[0].tolist()
        return numbers

    # -- Numbers to lanes ------------------------------------------------------------------------

    def lanes(self, block: int, exponent: int) -> bytes:
        """Return a block's 1,024 bytes, with the exponent that the ranks agreed on."""
        lanes = self._quantised(block, exponent)
        if self.collective.residual is not None:
            unit = power(exponent) / self._limit
            self._leave(
                block, [x - q * unit for x, q in zip(self.numbers(block), lanes, strict=True)]
            )
        return bytes_of(lanes, self._format)

    def is_too_large(self, block: int) -> bool:
        """Whether the rank has to say OVERFLOW, as the switch cannot: an integer is beyond M."""
        checks = SUMS_WORDS and not self._floats and self._format is not Format.WRAP32
        return checks and any(abs(number) > self._limit for number in self.numbers(block))

    def withhold(self, block: int) -> None:
        """Keep a block's finite numbers for the next call: on some rank it is not finite."""
        if self.collective.residual is not None:
            numbers = self.numbers(block)
            self._leave(block, [x if math.isfinite(x) else 0.0 for x in numbers])

    def _leave(self, block: int, errors: Sequence[float]) -> None:
        """Store rounding errors, which the next call of the same name adds to its numbers."""
        assert self.collective.residual is not None
        rows = np.array([errors], self.collective.working_dtype)
        self.collective.residual.scatter(np.array([block]), rows, slice(None))

    def _quantised(self, block: int, exponent: int) -> list[int]:
        numbers, limit = self.numbers(block), self._limit
        if not self._floats:
            return [int(number) for number in numbers]  # lanes as they are
        if self._format is Format.INT32:
            # q = round(x * scale), held within the limit.
            units = scale(exponent, self._format.lane_maximum, self._ranks)
            return [max(-limit, min(limit, round(number * units))) for number in numbers]
        noise = self.collective.noise
        assert noise is not None
        return [
            rounded_at_random(number, exponent, limit, some, double=self._double)
            for number, some in zip(
                numbers, noise.rows(np.array([block]), len(numbers))[0].tolist(), strict=True
            )
        ]

    # -- Sums of lanes to numbers ----------------------------------------------------------------

    def write(self, block: int, exponent: int, lanes: bytes, *, second_half: bool) -> None:
        """Store the sums of a block, or of half of it."""
        sums = numbers_in(lanes, self._format)
        count = len(sums)
        first = count if second_half else 0
        with np.errstate(over="ignore"):  # a sum beyond the dtype becomes infinite
            rows = np.array([self._dequantised(sums, exponent)], self.collective.working_dtype)
            columns = slice(first, first + count)
            self.collective.target.scatter(np.array([block]), rows, columns)

    def _dequantised(self, sums: Sequence[int], exponent: int) -> Sequence[float]:
        if not self._floats:
            return sums
        ranks = self._ranks if self.collective.is_mean else 1
        if self._format is Format.INT32:
            unit = 1.0 / scale(exponent, self._format.lane_maximum, self._ranks) / ranks
            # A link may have rounded a sum to float32 already (docs/links.md, "Lanes").
            return [(lane if self._double else as_float32(lane)) * unit for lane in sums]
        # x = q * 2^e / M, in halves, as 2^128 is no float32.
        half, divisor = power(exponent) / 2, self._limit * ranks / 2
        if self._double:
            return [lane / divisor * half for lane in sums]
        if exponent < FLOAT32_SCALES_FROM:
            return [lane * (half / divisor) for lane in sums]
        return [as_float32(lane / divisor) * half for lane in sums]

    def fill(self, block: int, value: float) -> None:
        """Set a whole block to zero or NaN. Integers have no NaN: their block stays as it is."""
        if self._floats or value == 0:
            self.collective.target.fill(np.array([block]), value)


class ReferenceCall(Numbers):
    """One collective, and what its rank has measured of its blocks.

    Attributes:
        count: blocks.
        exponents: of each block.
        is_zero: whether each block is all zeros, which is not sent.
        stripes_left: how many are not over.
    """

    def __init__(self, collective: Collective, ranks: int) -> None:
        super().__init__(collective, ranks)
        self.count = collective.count
        self.stripes_left = collective.stripes
        blocks = [self.numbers(block) for block in range(self.count)]
        self.exponents = [exponent_of(block) if self._floats else 0 for block in blocks]
        self.is_zero = [not any(block) for block in blocks]

    def next_nonzero(self, block: int) -> int | None:
        """Return the first block from `block` on, in its stripe, that is not all zeros."""
        stripe = range(block, self.count, self.collective.stripes)
        return next((one for one in stripe if not self.is_zero[one]), None)

    def exponent(self, block: int | None) -> int:
        """Return the exponent that a frame announces with its next block; 0 without one."""
        return 0 if block is None else self.exponents[block]
