# SPDX-License-Identifier: Apache-2.0
"""One round of many slots by the ring: the ranks do the switch's work.

Each rank has a contribution for each of these slots, as it would send it to the switch. Two of
them become one by the rules of docs/protocol.md, "What the switch does". So the results are the
switch's, bit for bit. Overflow is detected at each addition, but in the ring's order instead of
that of arrival. Where the switch adds words of 32 bits alone, sums wrap round, as there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from p4reduce_native.frame_lanes import SUMS_WORDS

from p4reduce.ring.links import RingLinks
from p4reduce.ring.rounds import Bytes, reduce
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.continuing import MESSAGE_BYTES, Messages
from p4reduce.wire.format import AGG_OFFSET, COLUMNS, PAYLOAD_OFFSET, Flag, Format
from p4reduce.wire.lanes import lane_type, pack, unpack

_LANES = slice(PAYLOAD_OFFSET - AGG_OFFSET, MESSAGE_BYTES)
_FIELDS = ("flags", "format", "next_exponent", "block", "next_block", "tag")
_PLACES = {name: (offset - AGG_OFFSET, size) for name, offset, size in COLUMNS if name in _FIELDS}
_MESSAGE = np.dtype(
    {
        "names": list(_PLACES),
        "formats": [f">u{size}" for _, size in _PLACES.values()],
        "offsets": [offset for offset, _ in _PLACES.values()],
        "itemsize": MESSAGE_BYTES,
    }
)
_SUMMED = Flag.PAYLOAD | Flag.OVERFLOW | Flag.NONFINITE | Flag.MISMATCH


async def sum_up(links: RingLinks, contributions: Messages) -> Messages:
    """Return the results of rounds that all ranks contribute to. Raises as `rounds.reduce` does."""
    results: Messages = contributions.copy()
    results.reshape(-1).view(_MESSAGE)["flags"] &= int(_SUMMED)
    await reduce(links, results, _combine)
    return results


async def hand_over(links: RingLinks, given: Messages) -> Messages:
    """Return what ranks hand over, where each gives what no other one does. Raises as `sum_up`."""
    results: Messages = given.copy()
    await reduce(links, results, lambda to, came: np.bitwise_or(to, came, out=to))
    return results


def _combine(to: Bytes, came: Bytes) -> None:
    to, came = to.reshape(-1, MESSAGE_BYTES), came.reshape(-1, MESSAGE_BYTES)
    ours, theirs = to.view(_MESSAGE)[:, 0], came.view(_MESSAGE)[:, 0]
    differ = np.zeros(len(ours), np.bool_)
    for name in ("tag", "block", "format"):
        differ |= ours[name] != theirs[name]
    ours["flags"] |= theirs["flags"]
    ours["flags"][differ] |= int(Flag.MISMATCH)
    nearer = theirs["next_block"] < ours["next_block"]
    same = theirs["next_block"] == ours["next_block"]
    larger = np.maximum(ours["next_exponent"], theirs["next_exponent"])
    ours["next_exponent"][same] = larger[same]
    ours["next_exponent"][nearer] = theirs["next_exponent"][nearer]
    ours["next_block"][nearer] = theirs["next_block"][nearer]
    formats = ours["format"]
    for lane_format in map(Format, np.unique(formats).tolist()):
        rows = np.flatnonzero(formats == lane_format)
        wrapped = _add_lanes(to, came, rows, lane_format)
        ours["flags"][rows[wrapped]] |= int(Flag.OVERFLOW)


def _add_lanes(to: Bytes, came: Bytes, rows: Indices, lane_format: Format) -> npt.NDArray[np.bool_]:
    """Add lanes as the switch does: sums wrap round. Return which rows did, unless they may."""
    if SUMS_WORDS:
        lane_format = Format.WRAP32
    ours = np.ascontiguousarray(to[rows, _LANES])
    theirs = np.ascontiguousarray(came[rows, _LANES])
    one, other = unpack(ours, lane_format), unpack(theirs, lane_format)
    packed = pack((one + other).astype(lane_type(lane_format)), lane_format)
    to[rows, _LANES] = packed
    if lane_format is Format.WRAP32:
        return np.zeros(len(rows), np.bool_)
    kept = unpack(packed, lane_format)
    wrapped: npt.NDArray[np.bool_] = np.any((one ^ kept) & (other ^ kept) < 0, axis=1)
    return wrapped
