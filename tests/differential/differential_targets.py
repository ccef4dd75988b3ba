# SPDX-License-Identifier: Apache-2.0
"""Plays the same to both switches and takes down all that comes of it.

Both switches work through what one port gets in order, but what several ports get at a time in
any. So after the frames of one port comes an ARP request by the same port, and only when that is
answered come those of the next one.

One order is nobody's to promise: that of a multicast's copies out of the same port. In BMv2 it is
the order of a hash table (PI's pre_mc_mgr.h), and P4Runtime leaves it open (section 9.5.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

from p4reduce.wire.format import AGG_OFFSET, AGGREGATION_PORT, PAYLOAD_OFFSET, Flag, FrameKind
from p4reduce_controller.fabric.outcome import FrameOutcome
from p4reduce_controller.fabric.p4client import PacketIn
from p4reduce_controller.fabric.schema import MulticastGroup, TableRow, Update
from p4reduce_controller.values.counts import CounterValue
from p4reduce_lab.networks.veth import VethPorts
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import SwitchLauncher
from packet_testbed import PORTS, Seen, Testbed, describe

KINDS: Mapping[str, type[SwitchLauncher]] = {"bmv2": Bmv2Switch, "embedded": EmbeddedSwitch}
TABLES = (
    "admission",
    "delivery",
    "uplink",
    "bridge",
    "own_address",
    "own_source",
    "own_sender_ip",
    "own_sender_mac",
)
# What one frame makes a port send is at most four frames, and BMv2 queues 64 a port.
UNSWEPT = 12


@dataclass(frozen=True)
class Sent:
    """A frame into a port."""

    port: int
    frame: bytes

    def __str__(self) -> str:
        return f"into port {self.port}: {_readable(self.frame)}"


@dataclass(frozen=True)
class SentOut:
    """A frame from the controller, out of a port."""

    port: int
    frame: bytes

    def __str__(self) -> str:
        return f"packet-out of port {self.port}: {_readable(self.frame)}"


@dataclass(frozen=True)
class Written:
    """A change by the controller."""

    update: Update

    def __str__(self) -> str:
        return str(self.update)


Event = Sent | SentOut | Written


def _readable(frame: bytes) -> str:
    try:
        what = describe(frame)
    except Exception as error:  # scapy may fail at anything; what matters is the bytes
        what = f"<{len(frame)} bytes, {type(error).__name__} in scapy>"
    return f"{what}\n      {frame.hex()}"


@dataclass
class Account:
    """All that a switch made of a sequence.

    Attributes:
        received: the frames that came out of each port, in order.
        packet_ins: those that came to the controller, in order.
        outcomes: how often each outcome was counted, and the bytes of those frames.
        rows: the entries that there are in the end, with their counts.
        groups: the multicast groups that there are in the end.
    """

    received: dict[int, list[bytes]] = field(default_factory=lambda: {port: [] for port in PORTS})
    packet_ins: list[PacketIn] = field(default_factory=list)
    outcomes: dict[FrameOutcome, CounterValue] = field(default_factory=dict)
    rows: dict[str, CounterValue | None] = field(default_factory=dict)
    groups: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def take(self, seen: Seen) -> None:
        """Add what came."""
        for port, frames in seen.received.items():
            self.received[port] += frames
        self.packet_ins += seen.packet_ins


class Target(Testbed):
    """A switch that sequences are played to."""

    def play(self, before: Sequence[TableRow | MulticastGroup], events: Sequence[Event]) -> Account:
        """Insert `before`, do all of `events` in order, and remove what entries there are."""
        self.insert(before)
        account = Account()
        start = self._counts()
        unswept = 0
        for how, group in groupby(events, lambda one: (type(one), getattr(one, "port", 0))):
            for part in _parts(list(group), UNSWEPT):
                if unswept + len(part) > UNSWEPT or how[0] is not Sent:
                    account.take(self.exchange([]))
                    unswept = 0
                self._do(part, account)
                unswept += len(part)
        account.take(self.exchange([]))
        account.outcomes = {
            outcome: CounterValue(now.frames - then.frames, now.bytes - then.bytes)
            for outcome, then, now in zip(FrameOutcome, start, self._counts(), strict=True)
            if now != then
        }
        rows = [row for table in TABLES for row in self.client.read_table(table)]
        account.rows = {f"{row} {dict(row.params)}": row.counts for row in rows}
        groups = self.client.read_groups()
        account.groups = {group.group: tuple(sorted(group.replicas)) for group in groups}
        self.remove(reversed(remaining(before, events)))
        return account

    def _do(self, part: Sequence[Event], account: Account) -> None:
        seen = Seen()
        match part[0]:
            case Sent(port):
                for one in part:
                    assert isinstance(one, Sent)
                    self.links[port].send(one.frame)
                self.pass_ingress(port, seen)
            case SentOut():
                seen = self.inject(
                    (one.port, one.frame) for one in part if isinstance(one, SentOut)
                )
            case Written():
                for one in part:
                    assert isinstance(one, Written)
                    self.client.write([one.update])
        account.take(seen)

    def _counts(self) -> list[CounterValue]:
        cells = self.client.read_counter("outcomes")
        return [cells[outcome] for outcome in FrameOutcome]


def _parts(events: list[Event], size: int) -> Iterator[list[Event]]:
    for start in range(0, len(events), size):
        yield events[start : start + size]


def remaining(
    before: Iterable[TableRow | MulticastGroup], events: Iterable[Event]
) -> list[TableRow | MulticastGroup]:
    """The entries that are left after a sequence, in an order in which none needs a later one."""
    left = {_key(entity): entity for entity in before}
    for event in events:
        if isinstance(event, Written):
            if event.update.op.name == "DELETE":
                del left[_key(event.update.entity)]
            else:
                left[_key(event.update.entity)] = event.update.entity
    return sorted(
        left.values(), key=lambda one: isinstance(one, TableRow) and one.table == "admission"
    )


def _key(entity: TableRow | MulticastGroup) -> object:
    if isinstance(entity, MulticastGroup):
        return entity.group
    return entity.table, tuple(sorted(entity.match.items()))


class Pair:
    """Both switches."""

    def __init__(self, wires: Mapping[str, VethPorts]) -> None:
        self._wires = wires
        self._targets: dict[str, Target] = {}
        self._cleanup = ExitStack()

    def play(
        self, before: Sequence[TableRow | MulticastGroup], events: Sequence[Event]
    ) -> dict[str, Account]:
        """Play a sequence to both. If one goes down or mute, both begin again the next time."""
        try:
            self._start()
            with ThreadPoolExecutor(len(self._targets)) as pool:
                played = {
                    kind: pool.submit(target.play, before, events)
                    for kind, target in self._targets.items()
                }
            return {kind: account.result() for kind, account in played.items()}
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        if self._targets:
            return
        for kind, make in KINDS.items():
            directory = self._cleanup.enter_context(run_directory())
            veths = self._wires[kind]
            switch = self._cleanup.enter_context(make(directory, veths.switch_side))
            target = Target(switch, veths.interface)
            self._cleanup.callback(target.close)
            self._targets[kind] = target

    def close(self) -> None:
        """Stop both."""
        self._targets = {}
        self._cleanup.close()


def differences(accounts: Mapping[str, Account]) -> list[str]:
    """Say in what the accounts differ, for people."""
    (one, a), (other, b) = accounts.items()
    found = []
    for port in PORTS:
        frames = [_copies_sorted(account.received[port]) for account in (a, b)]
        found += _first_difference(f"port {port}", one, frames[0], other, frames[1])
    ins = [[f"port {p.port}: {_readable(p.frame)}" for p in x.packet_ins] for x in (a, b)]
    found += _first_difference("packet-in", one, ins[0], other, ins[1])
    for what in ("outcomes", "rows", "groups"):
        of_a, of_b = getattr(a, what), getattr(b, what)
        found += [
            f"{what}: {getattr(key, 'name', key)}: {one} {of_a.get(key)}, {other} {of_b.get(key)}"
            for key in {**of_a, **of_b}
            if of_a.get(key) != of_b.get(key)
        ]
    return found


def _copies_sorted(frames: Sequence[bytes]) -> list[bytes]:
    """The same, with neighbours that may be copies of one multicast result or status in an order
    of their own: frames that differ in nothing but whom they are for and their flags. A multicast
    sends each rank one frame, or two halves, so those for one rank stay in the order they have."""
    out: list[bytes] = []
    for answer, neighbours in groupby(frames, _answer):
        run = list(neighbours)
        out += run if answer is None else sorted(run, key=_receiver)
    return out


def _answer(frame: bytes) -> bytes | None:
    """What all copies of a result or a status have in common; None for other frames."""
    is_answer = len(frame) >= PAYLOAD_OFFSET and (
        frame[AGG_OFFSET] & 0xF in (FrameKind.RESULT, FrameKind.STATUS)
        and frame[AGG_OFFSET - 8 : AGG_OFFSET - 6] == AGGREGATION_PORT.to_bytes(2, "big")
    )
    return frame[AGG_OFFSET:][:1] + frame[AGG_OFFSET + 4 : PAYLOAD_OFFSET] if is_answer else None


def _receiver(frame: bytes) -> tuple[bytes, int]:
    """The rank that an answer is for, and which half it is."""
    halves = Flag.FIRST_HALF | Flag.SECOND_HALF
    return frame[AGG_OFFSET + 2 : AGG_OFFSET + 4], frame[AGG_OFFSET + 1] & halves


def _first_difference(
    where: str, one: str, a: Sequence[bytes | str], other: str, b: Sequence[bytes | str]
) -> list[str]:
    for number, (x, y) in enumerate(zip_longest(a, b), start=1):
        if x != y:
            texts = [
                "nothing" if z is None else z if isinstance(z, str) else _readable(z)
                for z in (x, y)
            ]
            same = " (the same frames in another order)" if Counter(a) == Counter(b) else ""
            return [
                f"{where}, frame {number} of {len(a)} and {len(b)}{same}:\n"
                f"    {one}: {texts[0]}\n    {other}: {texts[1]}"
            ]
    return []
