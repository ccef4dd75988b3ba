# SPDX-License-Identifier: Apache-2.0
"""Whole communicators in milliseconds: the real P4 program in a thread, and no controller.

What takes the controller's place knows who has left, and tells it by heartbeats.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, cast

from connected import Connected, pair_of_ends
from one_process import CONFIG, FULL_GROUP, HALVES_GROUP, SWITCH, endpoint
from p4reduce.communicator import Communicator
from p4reduce.control import control_pb2 as pb
from p4reduce.options import CommunicatorOptions
from p4reduce.session.job_client import JobClient, JoinedJob, Member
from p4reduce.session.port import PortShare, WorkerPort
from p4reduce.session.session import Session, SessionSettings
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline_choice import load_pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry
from readable import readable

LEASE = 0.4  # seconds
SLOTS = 4
TIMEOUT = 60.0


class Switch:
    """One for all jobs; each has as many ports as ranks.

    Args:
        world_size: ranks of each job.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._pipeline = load_pipeline(CONFIG.read_bytes())
        own = parse_mac(SWITCH.mac)
        self._insert("own_address", (parse_ip(SWITCH.ip),), "is_own", (own,))
        ranks = range(world_size)
        self._endpoints = [endpoint(rank) for rank in ranks]
        for rank, here in enumerate(self._endpoints):
            mac = parse_mac(here.mac)
            address = (mac, parse_ip(here.ip), here.udp_port, rank)
            for part, action in enumerate(("whole", "first_half", "second_half")):
                self._insert("delivery", (3 * rank + part + 1,), action, address)
        wholes = [Replica(rank + 1, 3 * rank + 1) for rank in ranks]
        halves = [Replica(rank + 1, 3 * rank + part) for rank in ranks for part in (2, 3)]
        self._pipeline.multicast.insert(FULL_GROUP, wholes)
        self._pipeline.multicast.insert(HALVES_GROUP, halves)
        self._lock = threading.Lock()
        self._ports: list[socket.socket] = []
        self._woken, self._wake = socket.socketpair()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _insert(self, table: str, key: Any, action: str, params: Any) -> None:
        self._pipeline.tables[table].insert(TableEntry(key, 0, action, params))

    def connect(self, job: int) -> list[PortShare]:
        """Take off the job before, if any; return the ports of the ranks of this one."""
        world = self.world_size
        pairs = [pair_of_ends() for _ in range(world)]
        for _, mine in pairs:
            mine.setblocking(False)
        with self._lock:
            for port in self._ports:
                port.close()
            self._ports = [mine for _, mine in pairs]
            for rank, here in enumerate(self._endpoints):
                key = (rank + 1, parse_ip(here.ip), job, rank)
                grant = (1 << rank, (1 << world) - 1, 0, SLOTS, FULL_GROUP, HALVES_GROUP)
                self._insert("admission", key, "grant", grant)
        self._wake.send(b"x")
        ends = enumerate(theirs for theirs, _ in pairs)
        return [WorkerPort.alone(Connected(end), rank) for rank, end in ends]

    def close(self) -> None:
        self._closed = True
        self._wake.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                there = [port for port in self._ports if port.fileno() >= 0]
            ready = readable([self._woken, *there], 1.0)
            if self._woken in ready:
                self._woken.recv(64)
            with self._lock:
                for number, port in enumerate(self._ports, start=1):
                    if port in ready:
                        self._serve(number, port)

    def _serve(self, number: int, port: socket.socket) -> None:
        try:
            frame = port.recv(4096)
        except OSError:
            frame = b""
        if not frame:
            port.close()
            return
        for out, copy in self._pipeline.process(number, frame):
            with contextlib.suppress(OSError):  # that rank is gone, or slow: it asks again
                self._ports[out - 1].send(copy)


class Office:
    """Who of a job's ranks is there, as `JobClient` tells and asks."""

    def __init__(self, world_size: int) -> None:
        self.left: set[int] = set()
        self.world_size = world_size

    def member(self, rank: int) -> JobClient:
        return cast(JobClient, _Member(self, rank))


class _PresenceCall:
    def is_active(self) -> bool:
        return True

    def cancel(self) -> None:
        pass


class _Member:
    def __init__(self, office: Office, rank: int) -> None:
        self._office = office
        self._rank = rank
        self.job = "small"
        self.who = f"rank {rank}"

    def heartbeat(
        self, member: Member, timeout: float, *, completed: int = 0, **_: Any
    ) -> pb.HeartbeatReply:
        return pb.HeartbeatReply(
            state=pb.RUNNING, left=sorted(self._office.left), completed_by_all=completed
        )

    def open_presence(self, member: Member) -> _PresenceCall:
        return _PresenceCall()

    def leave(self, member: Member, statistics: pb.WorkerStatistics | None = None) -> None:
        self._office.left.add(self._rank)

    def close(self) -> None:
        pass


class SmallWorld:
    """Jobs one after the other, on one switch."""

    def __init__(self, world_size: int = 2) -> None:
        self._switch = Switch(world_size)
        self._job = 0

    def job(self) -> tuple[Office, list[Communicator]]:
        """Begin the next one: its ranks in order."""
        self._job += 1
        world = self._switch.world_size
        office = Office(world)
        transports = self._switch.connect(self._job)
        comms = []
        for rank, transport in enumerate(transports):
            member = Member(self._job, rank, world, 0, endpoint(rank), SWITCH)
            ready = pb.Ready(world_size=world, slot_count=SLOTS, lease=LEASE)
            options = CommunicatorOptions(TIMEOUT)
            settings = SessionSettings(lambda port: transport, options, True)  # noqa: B023
            session = Session(
                office.member(rank), JoinedJob(member, transport, ready), settings, None
            )
            comms.append(Communicator(session, options))
        return office, comms

    def close(self) -> None:
        self._switch.close()
