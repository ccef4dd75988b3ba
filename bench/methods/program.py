# SPDX-License-Identifier: Apache-2.0
"""Sums by the P4 program itself, frame by frame in one process, with the switch's own counters.

The compiled program of the embedded switch gets the frames that workers send (docs/protocol.md):
for each stripe one that opens it, then one per block that some rank has, with lanes where the rank
has it. Frames arrive in an order that is drawn for each round. None is lost, so none is repeated.
That gives the bytes of a run of tens of thousands of sums in a minute; `bench.methods.check`
compares with ranks that are processes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.tensors.measure import BlockTables, block_exponents
from p4reduce.tensors.precision import lane_format
from p4reduce.tensors.quantise import factors_to_nearest
from p4reduce.wire import format as wire
from p4reduce.wire.format import NO_BLOCK, Flag, Format, FrameKind
from p4reduce.wire.lanes import lane_type, pack, unpack
from p4reduce_switch.native_pipeline import NativePipeline

from bench.switch.job import CONFIG, SWITCH, endpoint, insert, job_entities, switch_entities

SLOTS = 8  # of a job
_HEADER = struct.Struct(">BBHIHBBIIIIQ")

Array = npt.NDArray[Any]


@dataclass
class _Job:
    """A group of ranks on the switch: its incarnation id, and the next round of each slot.

    `given` are its stripes so far, which decide where the next one goes.
    """

    number: int
    slots: list[int]
    given: int = 0


def _before(rank: int, payload: bytes) -> bytes:
    """What is before the aggregation header of a frame."""
    whole = wire.template(endpoint(rank), SWITCH, wire.header_bytes(), payload)
    return whole[: wire.AGG_OFFSET]


class Program:
    """A switch; called with the arrays of some ranks, as `in_process.Adder`."""

    def __init__(self, ranks: int, seed: int = 0) -> None:
        self._ranks = ranks
        self._random = np.random.default_rng(seed)
        self._pipeline = NativePipeline(CONFIG.read_bytes())
        for entity in switch_entities():
            insert(self._pipeline, entity)
        self._jobs: dict[tuple[int, ...], _Job] = {}
        self._replicas = 1
        payloads = (b"", bytes(wire.PAYLOAD_BYTES))
        self._below = [[_before(rank, one) for one in payloads] for rank in range(ranks)]

    @property
    def bytes_up(self) -> list[int]:
        """Bytes of the frames that each rank was admitted with: the program's counters."""
        counts = [0] * self._ranks
        for entry in self._pipeline.tables["admission"].entries():
            counts[int(entry.match[0]) - 1] += entry.bytes  # type: ignore[arg-type]
        return counts

    @property
    def bytes_down(self) -> list[int]:
        """Bytes of the frames that each rank was sent.

        A switch counts a copy with the length of the frame that it was made of. Halves are made of
        a contribution without lanes, so what counts is how many they are, as in the controller.
        """
        counts = [0] * self._ranks
        for entry in self._pipeline.tables["delivery"].entries():
            halves = entry.packets * wire.HALF_FRAME_BYTES
            counts[entry.args[2] - 49152] += entry.bytes if entry.action == "whole" else halves
        return counts

    def _job(self, members: tuple[int, ...]) -> _Job:
        """Give a group of ranks what the controller would: admission, delivery, multicast."""
        if members not in self._jobs:
            number = len(self._jobs) + 1
            base = (number - 1) * SLOTS
            if base + SLOTS > wire.MAX_SLOTS:
                raise RuntimeError(f"{number} groups: the switch has {wire.MAX_SLOTS} slots")
            for entity in job_entities(
                members, SLOTS, job=number, slot_base=base, first_replica=self._replicas
            ):
                insert(self._pipeline, entity)
            self._replicas += 3 * len(members)
            self._jobs[members] = _Job(number, [0] * SLOTS)
        return self._jobs[members]

    def __call__(
        self, members: tuple[int, ...], arrays: list[Array], precision: str | None
    ) -> Array:
        """Sum arrays of one shape and dtype; see `in_process.Adder`.

        Raises:
            OverflowError: a lane overflowed.
            ValueError: floats in narrow lanes, which no method of the scorecard has.
        """
        first = arrays[0]
        lanes = lane_format(first.dtype, precision, len(members))
        if first.dtype.kind == "f" and lanes is not Format.INT32:
            raise ValueError(f"precision={precision!r}: only int32 lanes are made here for floats")
        if len(members) == 1 or not first.size:
            return np.array(first)
        blocks = -(-first.size // lanes.lanes)
        rows = np.zeros((len(members), blocks * lanes.lanes), first.dtype)
        rows[:, : first.size] = [array.reshape(-1) for array in arrays]
        total = _Sum(self, self._job(members), members, rows, lanes).run()
        result: Array = total.reshape(-1)[: first.size].reshape(first.shape)
        return result

    def exchange(
        self, members: Sequence[int], frames: Sequence[tuple[bytes, bytes]]
    ) -> list[bytes]:
        """Send one frame of each member, header and lanes; return what the first one gets."""
        answers: list[tuple[int, bytes]] = []
        for place in self._random.permutation(len(members)).tolist():
            header, payload = frames[place]
            member = members[place]
            below = self._below[member][1 if payload else 0]
            answers = self._pipeline.process(member + 1, below + header + payload)
        return [bytes(frame) for port, frame in answers if port == members[0] + 1]


class _Sum:
    """One collective: all ranks' parts of it at once."""

    def __init__(
        self, program: Program, job: _Job, members: tuple[int, ...], rows: Array, lanes: Format
    ) -> None:
        self._program, self._job, self._members, self._format = program, job, members, lanes
        self._blocks = rows.reshape(len(members), -1, lanes.lanes)
        shape = self._blocks.shape[:2]
        tables = BlockTables(rows.size // lanes.lanes)
        block_exponents(rows.reshape(-1, lanes.lanes), tables)
        self._exponents = tables.exponents[:-1].reshape(shape)
        self._nonzero = tables.nonzero.reshape(shape)
        self._total = np.zeros((shape[1], lanes.lanes), rows.dtype)

    def run(self) -> Array:
        count = self._blocks.shape[1]
        stripes = min(SLOTS, count)
        for stripe in range(stripes):
            slot = (self._job.given + stripe) % SLOTS
            block, exponent = self._round(slot, NO_BLOCK, 0, range(stripe, count, stripes))
            while block != NO_BLOCK:
                rest = range(block + stripes, count, stripes)
                block, exponent = self._round(slot, block, exponent, rest)
        self._job.given += stripes
        return self._total

    def _round(self, slot: int, block: int, exponent: int, rest: range) -> tuple[int, int]:
        """Sum a block, or none; return which is next, and its exponent."""
        number = self._job.slots[slot]
        self._job.slots[slot] = number + 1 & 0xFFFFFFFF
        payloads = [b""] * len(self._members)
        if block != NO_BLOCK:
            having = np.flatnonzero(self._nonzero[:, block])
            for place, lanes in zip(having, self._lanes(having, block, exponent), strict=True):
                payloads[place] = lanes
        frames = []
        for rank, payload in enumerate(payloads):
            following = next((b for b in rest if self._nonzero[rank, b]), None)
            header = _HEADER.pack(
                wire.AGGREGATION_VERSION << 4 | FrameKind.CONTRIBUTE,
                Flag.PAYLOAD if payload else 0,
                rank,
                self._job.number,
                slot,
                self._format,
                0 if following is None else int(self._exponents[rank, following]),
                number,
                block,
                NO_BLOCK if following is None else following,
                1,
                0,
            )
            frames.append((header, payload))
        answers = self._program.exchange(self._members, frames)
        head = _HEADER.unpack(answers[0][wire.AGG_OFFSET : wire.PAYLOAD_OFFSET])
        if head[1] & Flag.OVERFLOW:
            raise OverflowError(f"a lane of block {block} overflows")
        if block != NO_BLOCK:
            data = b"".join(answer[wire.PAYLOAD_OFFSET :] for answer in answers)
            self._keep(block, exponent, unpack(np.frombuffer(data, np.uint8), self._format))
        return head[9], head[6]

    def _lanes(self, having: Array, block: int, exponent: int) -> list[bytes]:
        values = self._blocks[having, block]
        lanes = np.empty(values.shape, lane_type(self._format))
        if values.dtype.kind == "f":
            factors = factors_to_nearest(len(self._members), mean=False)
            scaled = np.rint(values.astype(np.float64) * factors.scales[exponent])
            lanes[...] = np.clip(scaled, -factors.limit, factors.limit)
        else:
            lanes[...] = values
        return [row.tobytes() for row in pack(lanes, self._format)]

    def _keep(self, block: int, exponent: int, lanes: Array) -> None:
        if self._total.dtype.kind == "f":
            factors = factors_to_nearest(len(self._members), mean=False)
            lanes = lanes / factors.scales[exponent]
        self._total[block] = lanes
