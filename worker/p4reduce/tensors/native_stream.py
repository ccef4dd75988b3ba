# SPDX-License-Identifier: Apache-2.0
"""A collective as C sees it: where its blocks lie, and how they become lanes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from p4reduce_native.frame_lanes import SUMS_WORDS

from p4reduce.machine_code import (
    BlocksStructure,
    CodecStructure,
    PieceStructure,
    ProgressStructure,
    StreamStructure,
)
from p4reduce.tensors.blocks import BlockMemory, BlockRows, BlockTarget
from p4reduce.tensors.measure import INTEGERS, numbers_of
from p4reduce.tensors.progress import PartPlace
from p4reduce.tensors.quantise import LaneFactors, factors_to_nearest
from p4reduce.tensors.stochastic import factors_at_random
from p4reduce.tensors.stream import BEFORE_LOWER, Collective
from p4reduce.wire.format import Format

_NOTHING = BlocksStructure()
_ALONE = ProgressStructure()


class NativeBlocks:
    """`struct p4r_blocks` and what it points to."""

    def __init__(self, memory: BlockMemory) -> None:
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
    def of(cls, blocks: BlockRows | BlockTarget) -> NativeBlocks | None:
        """Return the structure of a source or target; None if C cannot access its blocks."""
        memory = getattr(blocks, "memory", None)
        found: BlockMemory | None = memory() if memory is not None else None
        return None if found is None else cls(found)


class NativeStream:
    """`struct p4r_stream` of a collective, and what it points to.

    Attributes:
        source, target: None if C cannot access the blocks.
        codec: `struct p4r_codec`.
        address: of the structure.
    """

    def __init__(self, collective: Collective, world_size: int) -> None:
        self.source = source = NativeBlocks.of(collective.source)
        residual = None if collective.residual is None else NativeBlocks.of(collective.residual)
        into: object = collective.target  # else mypy takes it for never the same as a source
        in_place = into is collective.source
        self.target = target = source if in_place else NativeBlocks.of(collective.target)
        self.codec = codec_structure(collective, world_size)
        trace, tables = collective.trace, collective.tables
        feedback = collective.residual, residual
        place = collective.place
        self._kept = collective.source, collective.target, tables, trace, feedback, place
        self._structure = StreamStructure(
            self.codec,
            _NOTHING if source is None else source.structure,
            _NOTHING if target is None else target.structure,
            _NOTHING if residual is None else residual.structure,
            tables.next_nonzero_at,
            tables.exponents_at,
            collective.count,
            collective.stripes,
            collective.sequence,
            collective.first_slot,
            collective.offset,
            collective.slots,
            BEFORE_LOWER * collective.priority,
            tables.left_at,
            collective.deadline,
            collective.started,
            collective.tag,
            collective.format,
            None if trace is None else trace.address,
            _progress(place),
            source is not None,
            target is not None,
        )
        self.address = ctypes.addressof(self._structure)

    @property
    def residual(self) -> ctypes.Structure:
        """Where rounding errors go; without pieces if they are dropped."""
        residual: ctypes.Structure = self._structure.residual
        return residual

    def taken_over(self, now: float) -> None:
        """Note that nobody had to look after it until now."""
        self._structure.unattended_since = now

    def postpone(self, deadline: float) -> None:
        """Set another deadline."""
        self._structure.deadline = deadline


def _progress(place: PartPlace | None) -> ctypes.Structure:
    if place is None:
        return _ALONE
    progress = place.progress
    return ProgressStructure(
        progress.places_at, progress.held_back_at, place.switch, progress.switches, place.before
    )


_Codec = tuple[ctypes.Structure, LaneFactors | None]  # with the tables that it points to
_codecs: dict[tuple[np.dtype[Any], Format, int, bool], _Codec] = {}


def codec_structure(collective: Collective, world_size: int) -> ctypes.Structure:
    """Return `struct p4r_codec` for a collective. Any thread may call it."""
    kind = collective.dtype, collective.format, world_size, collective.is_mean
    made = _codecs.get(kind)
    if made is None:
        # Of threads that come here together, all get the first one's: functools.cache would give
        # each its own, and free the tables of all but the last.
        made = _codecs.setdefault(kind, _codec(*kind))
    structure = CodecStructure.from_buffer_copy(made[0])
    if collective.noise is not None:
        structure.key = collective.noise.key
    return structure


def _codec(dtype: np.dtype[Any], lane_format: Format, world_size: int, mean: bool) -> _Codec:
    """All of it but for the noise, and the tables that it points to."""
    numbers = numbers_of(dtype)
    structure = CodecStructure(numbers=numbers, lane_bits=lane_format.lane_bits)
    if numbers == INTEGERS:
        is_checked = SUMS_WORDS and lane_format is not Format.WRAP32
        structure.limit = lane_format.lane_maximum // world_size if is_checked else -1
        return structure, None
    if lane_format is Format.INT32:
        factors = factors_to_nearest(world_size, mean)
    else:
        factors = factors_at_random(lane_format, world_size, mean)
    structure.inexact = factors.inexact
    structure.limit = factors.limit
    structure.divisor = factors.divisor
    for table in ("scales", "scales32", "factors", "factors32"):
        setattr(structure, table, getattr(factors, table).ctypes.data)
    return structure, factors
