# SPDX-License-Identifier: Apache-2.0
"""Results that do not come from the switch: somebody at a port of his own, who knows all that the
worker compares, sends them to a rank that waits."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import p4reduce
import pytest
from p4reduce.wire import format as wire
from p4reduce.wire.dissect import Aggregation
from p4reduce.wire.format import NO_BLOCK, Endpoint, Flag, FrameKind
from p4reduce_lab.networks.veth import open_interface
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from worker_system import PORTS, System, wait_for

INTRUDER = Endpoint("02:66:66:66:66:66", "10.77.66.66", wire.AGGREGATION_PORT)
PRIORITY_TAG = b"\x81\x00\x00\x00"  # 802.1Q, VLAN 0


def at_port(system: System, port: int) -> socket.socket:
    interface = system.interface(port)
    if not interface.startswith("unix:"):
        return open_interface(interface)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(interface.removeprefix("unix:"))
    return peer


@pytest.mark.parametrize("tagged", [False, True], ids=["untagged", "priority-tagged"])
def test_only_the_switch_answers(system: System, tagged: bool) -> None:
    """The sum is that of both ranks, whoever told one of them something else before. The kernel
    takes a tag of VLAN 0 off again, so that the worker's socket does not see it."""
    late = threading.Event()
    before = system.count("forged-source")

    def work(comm: p4reduce.Communicator) -> tuple[np.ndarray, int]:
        if comm.rank == 1:
            assert late.wait(120)
            return comm.allreduce(np.ones(256, np.int32)), 0
        handle = comm.allreduce_async(np.ones(256, np.int32))
        try:
            forge(system, comm, tagged)
            assert not handle.done()
        finally:
            late.set()
        return handle.wait(120), comm.stats.invalid

    (first, invalid), (second, _) = system.run(2, work, slots=1)
    assert (first == 2).all()
    assert (second == 2).all()
    assert system.count("forged-source") > before
    # What passes the switch is from an address that is not the switch's: the worker's affair.
    assert invalid > 0


def forge(system: System, comm: p4reduce.Communicator, tagged: bool) -> None:
    """Send what would end the call with 1337s, from all sorts of addresses."""
    # private: what a sniffer on the rank's own cable would see, the frame that it repeats.
    machine = comm._session._engine.machine
    wait_for(lambda: machine.next_due < time.monotonic() + 60, "the rank waits for an answer")
    asked = Ether(machine.outgoing.get(0))
    victim = Endpoint(asked.src, asked[IP].src, asked[UDP].sport)
    switch = Endpoint(asked.dst, asked[IP].dst, asked[UDP].dport)
    opening = Aggregation(
        kind=FrameKind.RESULT,
        job=asked[Aggregation].job,
        round=asked[Aggregation].round,
        block=NO_BLOCK,
        next_block=0,
        tag=asked[Aggregation].tag,
        contributors=3,
    )
    last = opening.copy()
    last.round, last.block, last.next_block = opening.round + 1, 0, NO_BLOCK
    last.flags = Flag.PAYLOAD
    sums = np.full(256, 1337, ">i4").tobytes()
    intruder = at_port(system, PORTS)
    try:
        for mac in (switch.mac, INTRUDER.mac):
            for ip in (switch.ip, INTRUDER.ip):
                source = Endpoint(mac, ip, switch.udp_port)
                for header, payload in ((opening, b""), (last, sums)):
                    frame = wire.template(source, victim, header, payload)
                    if tagged:
                        frame = frame[:12] + PRIORITY_TAG + frame[12:]
                    intruder.send(frame)
                    time.sleep(0.1)
    finally:
        intruder.close()
