# SPDX-License-Identifier: Apache-2.0
"""Floats to narrow lanes and back, by torch's operations, so on the device that has them.

The same numbers as machine code makes of the same noise (native/p4reduce_native/csrc/worker/
lanes.c): `tensors.stochastic` has the formulas and bounds, `tensors.noise` the random numbers. Rows
are blocks; the last one is filled with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p4reduce.tensors.noise import NOISE_BITS, Noise
from p4reduce.tensors.quantise import FLOAT32_SCALES_FROM, LaneFactors
from p4reduce.tensors.stochastic import factors_at_random
from p4reduce.torch.accelerators import to_device
from p4reduce.wire.format import NONFINITE_EXPONENT, Format

LANES = {Format.INT16: torch.int16, Format.INT8: torch.int8, Format.INT4: torch.int8}
"""What lanes are to torch. Those of 4 bits have a byte each until they are sent."""

_ALL = slice(None)  # blocks
_MANTISSA_BITS = 23  # of float32
_GAMMA = 0x9E3779B97F4A7C15  # of SplitMix64, as the factors below
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


def to_rows(numbers: torch.Tensor, lane_format: Format) -> torch.Tensor:
    """Return numbers as float32, shape (blocks, lanes of a block)."""
    flat = numbers.detach().reshape(-1).float()
    missing = -flat.numel() % lane_format.lanes
    if missing:
        flat = torch.nn.functional.pad(flat, (0, missing))
    return flat.view(-1, lane_format.lanes)


def block_exponents(rows: torch.Tensor) -> torch.Tensor:
    """Return the biased exponent of each block's largest magnitude; 255: not finite.

    Returns:
        uint8, shape (blocks,).
    """
    largest = rows.abs().amax(dim=1)
    return (largest.view(torch.int32) >> _MANTISSA_BITS).to(torch.uint8)


class NarrowLanes:
    """Lanes of a call, whose exponents all ranks have agreed on.

    Args:
        lane_format: of 16, 8 or 4 bits.
        ranks: of the job.
        exponents: uint8, shape (blocks,); on the host.
        noise: of this rank's call.
        device: that has the numbers.
    """

    def __init__(
        self,
        lane_format: Format,
        ranks: int,
        exponents: npt.NDArray[np.uint8],
        noise: Noise,
        device: torch.device,
    ) -> None:
        self._format = lane_format
        self._factors: LaneFactors = factors_at_random(lane_format, ranks, mean=True)
        self._key = noise.key
        self._device = device
        self._exponents = exponents
        self._finite = exponents != NONFINITE_EXPONENT
        self._wide = exponents < FLOAT32_SCALES_FROM  # float32 does not do for these

    def encode(self, rows: torch.Tensor, blocks: slice = _ALL) -> torch.Tensor:
        """Return the lanes of float32 numbers, of the dtype that `LANES` has.

        Blocks that are not finite on some rank have zeros.

        Args:
            rows: those of `blocks`.
            blocks: of the call.
        """
        rows = self._cleared(rows, blocks)
        scales = self._column(self._factors.scales32, blocks)
        fixed = (rows * scales).round_().to(torch.int32)
        if self._wide[blocks].any():
            scales = self._column(self._factors.scales, blocks)
            wide = (rows.double() * scales).round_().to(torch.int32)
            fixed = torch.where(self._mask(self._wide[blocks]), wide, fixed)
        fixed += self._noise(rows.shape, blocks.start or 0)
        return (fixed >> NOISE_BITS).to(LANES[self._format])

    def left(self, rows: torch.Tensor, lanes: torch.Tensor, blocks: slice = _ALL) -> torch.Tensor:
        """Return what lanes leave of the numbers, for the next call, as float32.

        Blocks that are not finite on some rank leave their finite numbers. `rows` and `blocks` are
        as for `encode`.
        """
        units = self._column(self._factors.factors * 2 / self._factors.limit, blocks)
        left = (rows.double() - lanes.double() * units).float()
        finite = self._finite[blocks].all()
        return left if finite else torch.nan_to_num(left, 0.0, 0.0, 0.0)

    def decode(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the mean of the ranks' numbers, as float32; NaN for blocks that are not finite."""
        factors, divisor = self._factors, self._factors.divisor
        means = sums.float().div_(divisor).mul_(self._column(factors.factors32, _ALL))
        if self._wide.any():
            wide = (sums.double() * self._column(factors.factors / divisor, _ALL)).float()
            means = torch.where(self._mask(self._wide), wide, means)
        if not self._finite.all():
            means.masked_fill_(self._mask(~self._finite), torch.nan)
        return means

    def _column(self, table: npt.NDArray[Any], blocks: slice) -> torch.Tensor:
        """Return each block's entry of a table, 0 where it is not finite; shape (blocks, 1)."""
        found = table[self._exponents[blocks]]
        entries = np.where(self._finite[blocks], found, table.dtype.type(0))
        return to_device(entries, self._device)[:, None]

    def _mask(self, blocks: npt.NDArray[np.bool_]) -> torch.Tensor:
        return to_device(blocks, self._device)[:, None]

    def _cleared(self, rows: torch.Tensor, blocks: slice) -> torch.Tensor:
        finite = self._finite[blocks]
        return rows if finite.all() else rows.masked_fill(self._mask(~finite), 0.0)

    def _noise(self, shape: torch.Size, first: int) -> torch.Tensor:
        """Return the random numbers of `Noise.rows` as int32. torch has no unsigned words.

        Args:
            shape: of the rows.
            first: the number of the first row's block.
        """
        words = shape.numel() * NOISE_BITS // 64
        before = first * self._format.lanes * NOISE_BITS // 64
        numbers = torch.arange(before, before + words, device=self._device)
        numbers.mul_(_signed(_GAMMA)).add_(_signed(self._key))
        for shift, factor in _FACTORS:
            numbers.bitwise_xor_(_shifted(numbers, shift)).mul_(_signed(factor))
        numbers.bitwise_xor_(_shifted(numbers, _LAST_SHIFT))
        return numbers.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF).view(shape)


def _shifted(words: torch.Tensor, by: int) -> torch.Tensor:
    """Shift words of 64 bits to the right, with zeros from the left."""
    return (words >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
