# SPDX-License-Identifier: Apache-2.0
"""The ring all-reduce over TCP, which Gloo, NCCL and Horovod run without a switch that sums.

n - 1 steps of reduce-scatter and n - 1 of all-gather each send 1/n of the tensor from every rank to
the next one. That takes 2 (n - 1) / n · S / B, and 2 (n - 1) latencies (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). All ranks do the same
at the same time, and no link has two flows in one direction. So this is exact and needs no events.
"""

from __future__ import annotations

import math

from p4reduce_lab.planning.network import PlannedLink

SEGMENT = 1448
"""Bytes of a TCP segment at an MTU of 1,500 bytes, with timestamps."""

SEGMENT_FRAME = 1514
ACK_FRAME = 66
_SEGMENTS_FOR_AN_ACK = 2  # RFC 5681, 4.2: at least every second full segment is acknowledged


def ring_octets(ranks: int, octets: float) -> float:
    """Return what each rank sends, in bytes of whole frames: segments, and ACKs of what it gets."""
    if ranks < 1:
        raise ValueError(f"a ring of {ranks} ranks")
    data = 2 * (ranks - 1) / ranks * octets
    segments = data / SEGMENT
    return data + segments * (SEGMENT_FRAME - SEGMENT + ACK_FRAME / _SEGMENTS_FOR_AN_ACK)


def ring_seconds(
    ranks: int, octets: float, link: PlannedLink, *, delay: float | None = None, step: float = 0.0
) -> float:
    """Return the seconds of an all-reduce of `octets` bytes.

    Args:
        ranks: on the ring.
        octets: of the tensor.
        link: of each rank.
        delay: seconds from a rank to the next one, the mean on the ring; by default two links'.
        step: seconds of software for each of the 2 (n - 1) steps.
    """
    if ranks < 2:
        return 0.0
    frames = 2 * (ranks - 1) / ranks * octets / SEGMENT * (1 + 1 / _SEGMENTS_FOR_AN_ACK)
    busy = 8 * (ring_octets(ranks, octets) + frames * link.overhead) / link.rate
    between = 2 * link.delay if delay is None else delay
    return busy + 2 * (ranks - 1) * (between + step)


def mean_delay(ranks: int, delays: tuple[float, ...], fanouts: tuple[int, ...]) -> float:
    """Return the mean delay from a rank to the next one in a tree of links, in order of ranks.

    Args:
        ranks: on the ring.
        delays: of a link of each level, from the ranks up.
        fanouts: children of a switch at each level.
    """
    if ranks < 2:
        return 0.0
    total, below = 2 * delays[0] * ranks, 1
    for delay, fanout in zip(delays[1:], fanouts, strict=False):
        below *= fanout
        subtrees = math.ceil(ranks / below)
        if subtrees > 1:  # that many neighbours are on two switches of this level
            total += 2 * delay * subtrees
    return total / ranks
