# SPDX-License-Identifier: Apache-2.0
"""A collective as C sees it: where its blocks lie, and how they become lanes."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.machine_code import (
    BlocksStructure,
    CodecStructure,
    PieceStructure,
    StreamStructure,
)
from p4reduce.tensors.blocks import BlockRows, Memory, Target
from p4reduce.tensors.measure import INTEGERS, numbers_of
from p4reduce.tensors.quantise import Quantiser
from p4reduce.tensors.stochastic import StochasticQuantiser
from p4reduce.tensors.stream import BEFORE_LOWER, Collective
from p4reduce.wire.format import Format


@dataclass(frozen=True)
class _Tables:
    """Factors by exponent, and what else there is to a format of lanes."""

    scales: npt.NDArray[np.float64]
    scales32: npt.NDArray[np.float32]
    factors: npt.NDArray[np.float64]
    factors32: npt.NDArray[np.float32]
    limit: float
    divisor: float
    inexact: bool


@functools.cache
def _tables(lane_format: Format, world_size: int, mean: bool) -> _Tables:
    if lane_format is Format.INT32:
        nearest = Quantiser(world_size)
        divisor = world_size if mean else 1
        return _Tables(
            *(nearest.scales, nearest.scales32),
            *(nearest.factors[divisor], nearest.factors32[divisor]),
            limit=float(nearest.limit),
            divisor=1.0,
            inexact=mean and not nearest.mean_is_exact,
        )
    narrow = StochasticQuantiser(world_size, lane_format)
    return _Tables(
        *(narrow.scales, narrow.scales32, narrow.halves, narrow.halves32),
        limit=float(narrow.limit),
        divisor=narrow.divisor(mean=mean),
        inexact=False,
    )


class NativeBlocks:
    """`struct p4r_blocks` and what it points to."""

    def __init__(self, memory: Memory) -> None:
        structures, first = [], 0
        for piece in memory.pieces:
            structures.append(PieceStructure(first, piece.full, piece.tail_bytes, piece.address))
            first += piece.blocks
        self._pieces = (PieceStructure * len(structures))(*structures)
        self._places = memory.places
        self.structure = BlocksStructure(
            ctypes.addressof(self._pieces),
            None if memory.places is None else memory.places.ctypes.data,
            len(structures),
        )

    @classmethod
    def of(cls, blocks: BlockRows | Target) -> NativeBlocks | None:
        """Return those of a source or target; None: they do not lie in memory as C needs them."""
        memory = getattr(blocks, "memory", None)
        found: Memory | None = memory() if memory is not None else None
        return None if found is None else cls(found)


class Stream:
    """`struct p4r_stream` of a collective, and what it points to.

    Attributes:
        source, target: None where C cannot reach the blocks.
        codec: `struct p4r_codec`.
        address: of the structure.
    """

    def __init__(self, collective: Collective, world_size: int) -> None:
        self.source = source = NativeBlocks.of(collective.source)
        self.target = target = NativeBlocks.of(collective.target)
        self.codec = codec_structure(collective, world_size)
        trace = collective.trace
        kept = collective.next_nonzero, collective.exponents
        self._kept = collective.source, collective.target, collective.left, trace, kept
        if not all(array.flags.c_contiguous for array in kept):
            raise ValueError("a collective's arrays have to be contiguous")
        nothing = BlocksStructure()
        self._structure = StreamStructure(
            self.codec,
            nothing if source is None else source.structure,
            nothing if target is None else target.structure,
            collective.next_nonzero.ctypes.data,
            collective.exponents.ctypes.data,
            collective.count,
            collective.stripes,
            collective.sequence,
            collective.first_slot,
            collective.offset,
            collective.slots,
            BEFORE_LOWER * collective.priority,
            collective.left.ctypes.data,
            collective.deadline,
            collective.tag,
            collective.format,
            None if trace is None else trace.address,
            source is not None,
            target is not None,
        )
        self.address = ctypes.addressof(self._structure)

    @classmethod
    def of(cls, collective: Collective, world_size: int) -> Stream:
        """Return that of a collective, made when it is first asked for."""
        stream: Stream | None = collective.stream
        if (
            stream is None
            or stream._kept[0] is not collective.source
            or stream._kept[1] is not collective.target
        ):
            stream = collective.stream = cls(collective, world_size)
        return stream

    def postpone(self, deadline: float) -> None:
        """The collective has another deadline."""
        self._structure.deadline = deadline


def codec_structure(collective: Collective, world_size: int) -> CodecStructure:
    """Return `struct p4r_codec` for a collective."""
    kind = collective.dtype, collective.format, world_size, collective.is_mean
    structure = CodecStructure.from_buffer_copy(_codec(*kind))
    if collective.noise is not None:
        structure.key = collective.noise.key
    return structure


@functools.cache
def _codec(
    dtype: np.dtype[Any], lane_format: Format, world_size: int, mean: bool
) -> CodecStructure:
    """All of it but for the noise. The tables that it points to stay for good."""
    numbers = numbers_of(dtype)
    structure = CodecStructure(numbers=numbers, lane_bits=lane_format.lane_bits)
    if numbers != INTEGERS:
        tables = _tables(lane_format, world_size, mean)
        structure.inexact = tables.inexact
        structure.limit = tables.limit
        structure.divisor = tables.divisor
        structure.scales = tables.scales.ctypes.data
        structure.scales32 = tables.scales32.ctypes.data
        structure.factors = tables.factors.ctypes.data
        structure.factors32 = tables.factors32.ctypes.data
    return structure
