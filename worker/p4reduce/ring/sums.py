# SPDX-License-Identifier: Apache-2.0
"""One collective by the ring: the ranks do the switch's work.

First the ranks agree on the exponents of all blocks at once. Then they add the lanes of all blocks
that any rank has. The lanes are those for the switch, so the sums are equal, bit for bit. Overflow
is detected at each addition, as by the switch, but in the ring's order instead of that of arrival.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.ring.lane_codec import AnyCodec, codec_for
from p4reduce.ring.links import RingLinks
from p4reduce.ring.rounds import Bytes, reduce
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.endings import overflow_error
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import NONFINITE_EXPONENT, PAYLOAD_BYTES, Format
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack, unpack

_BLOCKS_AT_A_TIME = 2048

_ABSENT = 0  # in what the ranks agree on: nobody has the block; otherwise exponent + 1
_MARK = np.dtype("<u2")
_RECORD = np.dtype([("payload", "u1", PAYLOAD_BYTES), ("overflow", "?")])  # a block's sums


class Adder:
    """Reduces collectives of a job, one at a time.

    Args:
        world_size: of the job.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._frames = FrameBuffer(_BLOCKS_AT_A_TIME)

    async def reduce(self, links: RingLinks, collective: Collective) -> None:
        """Run a collective to its end. Raises as `rounds.reduce` does."""
        numbers = np.arange(collective.count)
        mine = collective.next_nonzero[: collective.count] == numbers
        marks = np.where(mine, collective.exponents[:-1].astype(_MARK) + 1, _ABSENT).astype(_MARK)
        await reduce(links, self._parts(marks), _larger)
        exponents = (marks - 1).astype(np.uint8)
        summed = (marks != _ABSENT) & (exponents != NONFINITE_EXPONENT)
        nonfinite = np.flatnonzero((marks != _ABSENT) & ~summed)
        codec = codec_for(collective, self._world_size, self._frames)
        if len(nonfinite):
            codec.withhold(nonfinite[mine[nonfinite]])
            collective.target.fill(nonfinite, np.nan)
        blocks = np.flatnonzero(summed)
        overflowed = collective.count
        for start in range(0, len(blocks), _BLOCKS_AT_A_TIME):
            some = blocks[start : start + _BLOCKS_AT_A_TIME]
            wrong = await self._add(
                links, collective.format, codec, some, exponents[some], mine[some]
            )
            overflowed = min([overflowed, *wrong.tolist()])
        if overflowed < collective.count:
            collective.finish(overflow_error(collective, overflowed))
        else:
            collective.finish()

    async def _add(
        self,
        links: RingLinks,
        lane_format: Format,
        codec: AnyCodec,
        blocks: Indices,
        exponents: npt.NDArray[np.uint8],
        mine: npt.NDArray[np.bool_],
    ) -> Indices:
        """Sum some blocks into the target; return those with a lane that overflowed."""
        rows = np.arange(len(blocks))
        payload = self._frames.payload
        payload[rows] = 0
        if mine.any():
            codec.encode(blocks[mine], exponents[mine], rows[mine])
        sums: npt.NDArray[Any] = np.zeros(len(blocks), _RECORD)
        sums["payload"] = payload[rows]
        await reduce(links, self._parts(sums), functools.partial(_add_lanes, lane_format))
        payload[rows] = sums["payload"]
        codec.decode(blocks, exponents, rows)
        wrong: Indices = blocks[sums["overflow"]]
        return wrong

    def _parts(self, array: npt.NDArray[Any]) -> list[Bytes]:
        """Cut a flat array into as many parts as there are ranks, as bytes."""
        size = self._world_size
        cuts = [len(array) * number // size for number in range(size + 1)]
        return [array[first:end].view(np.uint8) for first, end in itertools.pairwise(cuts)]


def _larger(ours: Bytes, theirs: Bytes) -> None:
    np.maximum(ours.view(_MARK), theirs.view(_MARK), out=ours.view(_MARK))


def _add_lanes(lane_format: Format, to: Bytes, came: Bytes) -> None:
    """Add lanes as the switch does: sums wrap round, and it is remembered unless they may."""
    ours, theirs = to.view(_RECORD), came.view(_RECORD)
    one, other = (unpack(side["payload"], lane_format) for side in (ours, theirs))
    total = (one + other).astype(lane_type(lane_format))
    packed = pack(total, lane_format)
    if lane_format is not Format.WRAP32:
        kept = unpack(packed, lane_format)
        wrapped = ((one ^ kept) & (other ^ kept) < 0).any(axis=1)
        ours["overflow"] |= theirs["overflow"] | wrapped
    ours["payload"] = packed
