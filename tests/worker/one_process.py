# SPDX-License-Identifier: Apache-2.0
"""The real P4 program and all ranks' slot machines in one thread, in any interleaving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce.protocol.slots import SlotMachine
from p4reduce.reference.machine import ReferenceMachine
from p4reduce.tensors.continuing import MESSAGE_BYTES, Continuation, words_of
from p4reduce.wire import format as wire
from p4reduce.wire.frames import FrameBuffer
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline_choice import load_pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry

CONFIG = Path(__file__).parents[2] / "p4src" / "compiled" / "p4reduce.json"
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
FULL_GROUP, HALVES_GROUP = 2, 3


def endpoint(rank: int) -> wire.Endpoint:
    return wire.Endpoint(f"02:00:00:00:00:{rank + 1:02x}", f"10.77.0.{rank + 1}", 49152 + rank)


class OneProcess:
    """A job of some ranks on a switch that is used by it alone.

    The clock stands still but for `tick`, which lets all timers run out.

    Args:
        world_size: ranks, at the ports from 1 on.
        slots: of the job.
        rng: decides on the order of frames, and which are lost.
        loss: the share of frames that are, each way.
        urgent: how many of the slots are for classes 1, 2 and so on.
        reference: the ranks that run `p4reduce.reference`.
    """

    def __init__(
        self,
        world_size: int,
        slots: int,
        rng: np.random.Generator,
        loss: float = 0.0,
        urgent: Sequence[int] = (),
        reference: Sequence[int] = (),
    ) -> None:
        self.reference = reference
        self.world_size = world_size
        self.slots = slots
        self.urgent = urgent
        self._rng = rng
        self._loss = loss
        self._now = 0.0
        self._job = 6
        self.new_switch()

    def continue_elsewhere(self, ranks: Iterable[int]) -> None:
        """Lose the switch, and let ranks continue on the next one, if that is there long enough.

        Args:
            ranks: those that hear the end of the agreement. The others are as before, and have to
                be among those of the next call. All: the job runs.
        """
        before = self.machines
        self.new_switch()
        for rank in ranks:
            machine, old = self.machines[rank], before[rank]
            # What a fresh machine has run before, as the collectives of the agreement.
            rounds = 9 * self._job + np.arange(self.slots)
            if isinstance(machine, _Reference):
                for slot, number in zip(machine.slots, rounds.tolist(), strict=True):
                    slot.round = number
            else:
                machine.state.next_round[:] = rounds
            words = [words_of(one.finished) for one in before]
            found = Continuation.of(old.finished, words)
            results = np.zeros((len(found.slots), MESSAGE_BYTES), np.uint8)
            for giver, holder in enumerate(before):
                results |= found.given_by(giver, holder.results(found.slots))
            machine.continue_from(old, found.newest, self._now)
            lacking = found.lacking
            machine.take_results(found.slots[lacking], results[lacking], self._now)
            before[rank] = machine
        self.machines = before

    def new_switch(self) -> None:
        """Start again, with an incarnation id that was never used."""
        self._job += 1
        self._pipeline = load_pipeline(CONFIG.read_bytes())
        tables = self._pipeline.tables
        switch_mac = parse_mac(SWITCH.mac)
        tables["own_address"].insert(TableEntry((parse_ip(SWITCH.ip),), 0, "is_own", (switch_mac,)))
        for rank in range(self.world_size):
            here = endpoint(rank)
            mac, ip = parse_mac(here.mac), parse_ip(here.ip)
            key = (rank + 1, ip, self._job, rank)
            grant = (1 << rank, (1 << self.world_size) - 1, 0, self.slots)
            groups = (FULL_GROUP, HALVES_GROUP)
            tables["admission"].insert(TableEntry(key, 0, "grant", (*grant, *groups)))
            address = (mac, ip, here.udp_port, rank)
            for part, action in enumerate(("whole", "first_half", "second_half")):
                entry = TableEntry((3 * rank + part + 1,), 0, action, address)
                tables["delivery"].insert(entry)
        ranks = range(self.world_size)
        wholes = [Replica(rank + 1, 3 * rank + 1) for rank in ranks]
        halves = [Replica(rank + 1, 3 * rank + part) for rank in ranks for part in (2, 3)]
        self._pipeline.multicast.insert(FULL_GROUP, wholes)
        self._pipeline.multicast.insert(HALVES_GROUP, halves)
        self._flying: list[tuple[int, bytes]] = []  # port, or minus the port on the way back
        self.machines: list[Any] = [
            (_Reference if rank in self.reference else SlotMachine)(
                slots=self.slots,
                job=self._job,
                rank=rank,
                world_size=self.world_size,
                here=endpoint(rank),
                switch=SWITCH,
                urgent=self.urgent,
            )
            for rank in ranks
        ]

    def step(self) -> bool:
        """Let one frame arrive, any of those under way; return whether there was one."""
        for rank, machine in enumerate(self.machines):
            rows = machine.take_sendable()
            machine.sent(rows, self._now)
            self.fly((rank + 1, machine.outgoing.get(row)) for row in rows)
        if not self._flying:
            return False
        port, frame = self._flying.pop(int(self._rng.integers(len(self._flying))))
        if port > 0:
            self.fly((-out, copy) for out, copy in self._pipeline.process(port, frame))
        else:
            buffer = FrameBuffer(1)
            buffer.put(0, frame)
            self.machines[-port - 1].receive(buffer, 1, self._now)
        return True

    def tick(self) -> None:
        """Let the timers run out."""
        self._now += 1.0
        for machine in self.machines:
            machine.expire(self._now)

    def fly(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Send frames, each to a port, or from one back where that is below zero."""
        for port, frame in frames:
            if self._rng.random() >= self._loss:
                self._flying.append((port, bytes(frame)))


class _Reference(ReferenceMachine):
    """The reference worker with the methods of `SlotMachine` that are called here."""

    @property
    def outgoing(self) -> _Reference:
        return self

    def get(self, slot: int) -> bytes:
        return self._taken[slot]

    def take_sendable(self) -> list[int]:
        self._taken = {slot: bytes(frame) for slot, frame in self.outbox.items()}
        self.outbox.clear()
        return list(self._taken)

    def sent(self, slots: Any, now: float) -> None:
        for slot in slots:
            super().sent(slot, now)

    def receive(self, buffer: Any, _count: int, now: float) -> None:
        super().receive(buffer.get(0), now)

    def expire(self, now: float) -> None:
        self.tick(now)
