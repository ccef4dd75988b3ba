# SPDX-License-Identifier: Apache-2.0
"""What it costs to send a compressed gradient: the C(T) of CAT, for several links.

An `Encoding` says how many bits, or how many of our blocks, a message of T units has; a
`CostModel` says what a link charges for it. Both take arrays of levels, so that the search over
all T is one vectorised expression.

The payload, affine and packet models are those of Khirirat, Magnusson, Aytekin and Johansson,
"Communication Efficient Sparsification for Large Scale Machine Learning" (arXiv 2003.06377, CAT).
`SwitchLink` is this system's own: the frames, bytes and rounds of docs/protocol.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.wire.format import EMPTY_FRAME_BYTES, PAYLOAD_BYTES, stripes_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Preamble 7, start delimiter 1, FCS 4, gap 12: what Ethernet adds to the frames above.
ETHERNET_OVERHEAD_BYTES = 24


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a message of T units is written down.

    Attributes:
        dimension: elements of the gradient, d.
        unit: elements that are chosen together: 1, or the lanes of a block.
        value_bits: bits of one element's value (FPP, or 1 for a sign).
        header_bits: bits once per message (S+Q: the FPP bits of the norm).
    """

    dimension: int
    unit: int = 1
    value_bits: int = 32
    header_bits: int = 0

    def __post_init__(self) -> None:
        if self.dimension < 1 or self.unit < 1 or self.value_bits < 1 or self.header_bits < 0:
            raise ValueError(
                f"{self}: dimension, unit and value_bits must be positive, header_bits not negative"
            )

    @property
    def units(self) -> int:
        """Return the number of units in the gradient. The last one may be shorter."""
        return -(-self.dimension // self.unit)

    @property
    def index_bits(self) -> int:
        """Return ⌈log2 units⌉, the bits that name a unit."""
        return math.ceil(math.log2(self.units)) if self.units > 1 else 0

    def bits(self, levels: npt.ArrayLike) -> FloatArray:
        """Payload bits of messages of `levels` units: P_S and P_SQ of arXiv 2003.06377."""
        per_unit = self.index_bits + self.unit * self.value_bits
        return self.header_bits + np.asarray(levels, dtype=np.float64) * per_unit

    @property
    def dense_bits(self) -> int:
        """Payload bits of all values without any index."""
        return self.header_bits + self.dimension * self.value_bits


class CostModel(Protocol):
    """What a link charges."""

    def cost(self, levels: npt.ArrayLike, encoding: Encoding) -> FloatArray:
        """Cost of messages of `levels` units each; positive for levels of 1 and more."""
        ...

    def dense_cost(self, encoding: Encoding) -> float:
        """Cost of the whole gradient, without indices."""
        ...


class BitCost:
    """A cost that depends on a message's number of bits alone."""

    def of_bits(self, bits: FloatArray) -> FloatArray:
        """Return the cost of messages with this number of payload bits."""
        raise NotImplementedError

    def cost(self, levels: npt.ArrayLike, encoding: Encoding) -> FloatArray:
        """Cost of messages of `levels` units each."""
        return self.of_bits(encoding.bits(levels))

    def dense_cost(self, encoding: Encoding) -> float:
        """Cost of the whole gradient, without indices."""
        return float(self.of_bits(np.array([encoding.dense_bits], dtype=np.float64))[0])


@dataclass(frozen=True, slots=True)
class Payload(BitCost):
    """C = P: only the payload's bits cost."""

    def of_bits(self, bits: FloatArray) -> FloatArray:
        """Return the cost of messages with this number of payload bits."""
        return bits


@dataclass(frozen=True, slots=True)
class Affine(BitCost):
    """C = c1 P + c0: a price per bit and a price per message."""

    per_bit: float = 1.0
    per_message: float = 8000.0

    def __post_init__(self) -> None:
        if self.per_bit <= 0 or self.per_message < 0:
            raise ValueError(f"{self}: per_bit must be positive and per_message not negative")

    def of_bits(self, bits: FloatArray) -> FloatArray:
        """Return the cost of messages with this number of payload bits."""
        return self.per_bit * bits + self.per_message


@dataclass(frozen=True, slots=True)
class Packets(BitCost):
    """C = c1 ⌈P / Pmax⌉ + c0: packets cost the same, full or not.

    With the defaults of the two constructors below, the unit is a bit on the link.
    """

    payload_bytes: int
    per_packet: float
    per_message: float = 0.0

    def __post_init__(self) -> None:
        if self.payload_bytes < 1 or self.per_packet <= 0 or self.per_message < 0:
            raise ValueError(
                f"{self}: payload_bytes and per_packet must be positive, per_message not negative"
            )

    @classmethod
    def ethernet(cls, payload_bytes: int = 1472, overhead_bytes: int = 54) -> Packets:
        """UDP in Ethernet frames, the bits of full frames on the link (arXiv 2003.06377)."""
        return cls(payload_bytes, 8.0 * (payload_bytes + overhead_bytes))

    @classmethod
    def ieee802154(cls, payload_bytes: int = 51, overhead_bytes: int = 82) -> Packets:
        """IEEE 802.15.4, the radio of many sensors: 133 bytes per frame with synchronisation.

        With long addresses and security, 82 bytes are overhead and 51 payload. In the leanest
        set-up they are 23 and 110 (arXiv 2003.06377).
        """
        return cls(payload_bytes, 8.0 * (payload_bytes + overhead_bytes))

    def of_bits(self, bits: FloatArray) -> FloatArray:
        """Return the cost of messages with this number of payload bits."""
        count = np.ceil(bits / (8.0 * self.payload_bytes))
        return self.per_packet * count + self.per_message


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one collective moves over a rank's link, and how many round trips it waits for.

    Frames of results are the expected numbers: a result comes in two halves when the contribution
    that completes its round has no lanes, and any rank may be the last.

    Attributes:
        frames_up, frames_down: number of frames.
        bytes_up, bytes_down: their bytes, FCS and gaps not counted.
        rounds: of the longest stripe, including the opening round.
    """

    frames_up: float
    frames_down: float
    bytes_up: float
    bytes_down: float
    rounds: float


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """A rank's full-duplex link to the switch, priced in seconds by docs/protocol.md.

    A collective's stripes advance side by side, one round trip per round. Each direction of the
    link has its own rate. So a collective takes the longest of: the bytes up, the bytes down, the
    handling of all frames, and the rounds of the longest stripe. One round trip before that opens
    the stripes.

    Attributes:
        workers: world size n.
        bandwidth: bits per second in each direction.
        rtt: seconds from a contribution to its result on an idle link.
        slots: stripes that may be in flight.
        lane_bits: 32, 16, 8 or 4; a block has 1,024 bytes of lanes whatever their width.
        overlap: how far the ranks' choices agree, 0 (independent) to 1 (the same blocks); the
            union of their blocks, which comes down, is between the two.
        frame_seconds: what one frame costs the slowest part (a software switch is limited by
            frames more than by bytes).
    """

    workers: int
    bandwidth: float
    rtt: float = 0.0
    slots: int = 32
    lane_bits: int = 32
    overlap: float = 0.0
    frame_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.slots < 1 or self.bandwidth <= 0:
            raise ValueError(f"{self}: workers, slots and bandwidth must be positive")
        if self.rtt < 0 or self.frame_seconds < 0 or not 0 <= self.overlap <= 1:
            raise ValueError(
                f"{self}: rtt and frame_seconds must not be negative, overlap within 0 to 1"
            )
        if self.lane_bits not in (4, 8, 16, 32):
            raise ValueError(f"{self}: lane_bits must be 32, 16, 8 or 4")

    @property
    def lanes(self) -> int:
        """The number of elements in a block."""
        return 8 * PAYLOAD_BYTES // self.lane_bits

    def union(self, own: npt.ArrayLike, total: int) -> FloatArray:
        """Expected number of blocks that any rank sends, if each sends `own` of `total`.

        N (1 - (1 - k/N)^n) for independent choices (SparCML, Renggli et al., SC 2019, section
        5.3), and `own` for equal ones.
        """
        mine = np.asarray(own, dtype=np.float64)
        independent = total * (1.0 - (1.0 - mine / total) ** self.workers)
        return self.overlap * mine + (1.0 - self.overlap) * independent

    def traffic(self, own: npt.ArrayLike, union: npt.ArrayLike, total: int) -> Traffic:
        """Expected traffic of collectives; every field has the arguments' broadcast shape.

        Args:
            own: blocks that each rank sends on average.
            union: blocks that at least one rank sends.
            total: blocks of the tensor.
        """
        mine = np.asarray(own, dtype=np.float64)
        every = np.asarray(union, dtype=np.float64)
        stripes = float(stripes_of(total, self.slots, self.lane_bits))
        # The share of the union's rounds that a contribution without lanes completes.
        halved = 1.0 - np.divide(mine, every, out=np.ones_like(every * mine), where=every > 0)
        frames_up = stripes + every
        bytes_up = frames_up * EMPTY_FRAME_BYTES + mine * PAYLOAD_BYTES
        frames_down = stripes + every * (1.0 + halved)
        bytes_down = frames_down * EMPTY_FRAME_BYTES + every * PAYLOAD_BYTES
        rounds = 1.0 + np.ceil(every / stripes)
        return _traffic(frames_up, frames_down, bytes_up, bytes_down, rounds)

    def traffic_of(self, masks: BoolArray, rank: int | None = None) -> Traffic:
        """Traffic of one collective in which rank i sends the blocks of masks[i].

        Args:
            masks: shape (world size, blocks).
            rank: whose link; None: the mean over the ranks.
        """
        ranks, total = masks.shape
        if ranks != self.workers:
            raise ValueError(f"masks of {ranks} ranks for a link of {self.workers} workers")
        senders = masks.sum(axis=0)
        union = senders > 0
        stripes = stripes_of(total, self.slots, self.lane_bits)
        # Only the mask says how long the longest stripe is.
        padded = np.zeros(-(-total // stripes) * stripes, dtype=np.bool_)
        padded[:total] = union
        rounds = 1.0 + float(padded.reshape(-1, stripes).sum(axis=0).max())
        own = float(masks.sum() / ranks) if rank is None else float(masks[rank].sum())
        every = float(union.sum())
        halves = float((1.0 - senders[union] / ranks).sum())
        frames_up = stripes + every
        frames_down = stripes + every + halves
        return Traffic(
            frames_up,
            frames_down,
            frames_up * EMPTY_FRAME_BYTES + own * PAYLOAD_BYTES,
            frames_down * EMPTY_FRAME_BYTES + every * PAYLOAD_BYTES,
            rounds,
        )

    def seconds(self, traffic: Traffic) -> Any:
        """Time of collectives with such traffic on this link (floats or arrays)."""
        frames_up, frames_down = np.asarray(traffic.frames_up), np.asarray(traffic.frames_down)
        up = 8.0 * (traffic.bytes_up + ETHERNET_OVERHEAD_BYTES * frames_up) / self.bandwidth
        down = 8.0 * (traffic.bytes_down + ETHERNET_OVERHEAD_BYTES * frames_down) / self.bandwidth
        busiest = np.maximum(up, down)
        handling = self.frame_seconds * (frames_up + frames_down)
        waiting = self.rtt * (np.asarray(traffic.rounds) - 1.0)
        return self.rtt + np.maximum(np.maximum(busiest, handling), waiting)

    def cost(self, levels: npt.ArrayLike, encoding: Encoding) -> FloatArray:
        """Seconds of an all-reduce in which every rank sends `levels` blocks.

        Raises:
            ValueError: the encoding's unit is not this link's block. (On this wire an element costs
                its whole block.)
        """
        if encoding.unit != self.lanes:
            raise ValueError(
                f"units of {encoding.unit} elements have no price here: the switch sums blocks of "
                f"{self.lanes} lanes of {self.lane_bits} bits"
            )
        own = np.asarray(levels, dtype=np.float64)
        total = encoding.units
        result: FloatArray = self.seconds(self.traffic(own, self.union(own, total), total))
        return result

    def dense_cost(self, encoding: Encoding) -> float:
        """Seconds of an all-reduce of all blocks."""
        total = -(-encoding.dimension // self.lanes)
        return float(self.seconds(self.traffic(total, total, total)))


def _traffic(*values: Any) -> Traffic:
    arrays = np.broadcast_arrays(*values)
    if arrays[0].ndim:
        return Traffic(*arrays)  # type: ignore[arg-type]
    return Traffic(*(float(value) for value in arrays))
