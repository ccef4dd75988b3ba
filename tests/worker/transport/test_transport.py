# SPDX-License-Identifier: Apache-2.0
"""Frames in batches through real sockets, and faults that can be had again."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from connected import Connected, connected_pair, pair_of_ends
from p4reduce.errors import ConfigurationError, SwitchUnreachableError
from p4reduce.transport import (
    FaultPlan,
    FaultyTransport,
    LinkTransport,
    PacketTransport,
    open_port,
    port_name,
    unix,
)
from p4reduce.transport.base import RECEIVE_BATCH, Transport
from p4reduce.transport.faulty import Fault
from p4reduce.wire import format as wire
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.layer import Aggregation
from veth_pairs import until_up
from worker_system import DEADLINE

needs_root = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for packet sockets"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs the ip command (iproute2)"),
]


@pytest.fixture
def pair() -> Iterator[tuple[Connected, Connected]]:
    transports = connected_pair()
    yield transports
    for transport in transports:
        transport.close()


def numbered(count: int, length: int = 78) -> FrameBuffer:
    buffer = FrameBuffer(count)
    for row in range(count):
        buffer.put(row, row.to_bytes(2, "big") + bytes(length - 2 + row % 3))
    return buffer


def receive_all(transport: Transport, seconds: float = 0.0) -> list[int]:
    """Numbers of the frames that come; waits on until `seconds` pass without any."""
    numbers: list[int] = []
    while True:
        count = transport.receive()
        numbers += [int.from_bytes(transport.received.get(row)[:2], "big") for row in range(count)]
        if not count:
            end = time.monotonic() + seconds
            while not (count := transport.receive()) and time.monotonic() < end:
                transport.wait(0.01)
            if not count:
                return numbers
            numbers += [
                int.from_bytes(transport.received.get(row)[:2], "big") for row in range(count)
            ]


# -- Unix sockets --------------------------------------------------------------------------------


def test_rows_go_out_in_the_order_asked_for(pair: tuple[Connected, Connected]) -> None:
    near, far = pair
    buffer = numbered(10)
    assert near.send(buffer, np.array([7, 2, 2, 9])) == 4
    assert far.receive() == 4
    assert [far.received.get(row) for row in range(4)] == [buffer.get(n) for n in (7, 2, 2, 9)]
    assert far.receive() == 0


def test_more_than_a_batch(pair: tuple[Connected, Connected]) -> None:
    near, far = pair
    count = RECEIVE_BATCH + 5
    assert near.send(numbered(count), np.arange(count)) == count
    assert far.receive() == RECEIVE_BATCH
    assert far.receive() == 5


def test_full_queue_is_neither_loss_nor_error(pair: tuple[Connected, Connected]) -> None:
    near, far = pair
    buffer = numbered(1000, 1102)
    rows = np.arange(1000)
    sent = near.send(buffer, rows)
    assert 0 < sent < 1000
    assert near.send(buffer, rows[sent:]) == 0
    start = time.monotonic()
    near.wait(0.05, writable=True)
    assert time.monotonic() - start >= 0.045
    received: list[int] = []
    while sent < 1000:
        received += receive_all(far)
        near.wait(5.0, writable=True)
        sent += near.send(buffer, rows[sent:])
    received += receive_all(far)
    assert received == list(range(1000))


def test_wake_ends_a_wait(pair: tuple[Connected, Connected]) -> None:
    threading.Timer(0.05, pair[0].wake).start()
    start = time.monotonic()
    pair[0].wait(2 * DEADLINE)
    assert time.monotonic() - start < DEADLINE


def test_frames_longer_than_a_row_do_not_spill() -> None:
    near, end = pair_of_ends()
    far = Connected(end)
    near.send(b"\xff" * 9000)
    near.send(b"\x01" * 20)
    assert far.receive() == 2
    assert far.received.lengths[:2].tolist() == [2046, 20]
    assert far.received.get(1) == b"\x01" * 20
    near.close()
    far.close()


def test_hanging_up_is_told(pair: tuple[Connected, Connected]) -> None:
    pair[1].close()
    with pytest.raises(SwitchUnreachableError, match="hung up"):
        pair[0].receive()
    with pytest.raises(SwitchUnreachableError, match="hung up"):
        pair[0].send(numbered(1), np.arange(1))


def test_connecting_waits_while_the_backlog_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "CONNECT_TIMEOUT", DEADLINE)
    path = tmp_path / "port1.sock"
    kind = socket.AF_UNIX, socket.SOCK_SEQPACKET
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(socket.socket(*kind))
        listener.bind(str(path))
        listener.listen(0)
        others: list[socket.socket] = []
        code = 0
        while code == 0:
            others.append(closing.enter_context(socket.socket(*kind)))
            others[-1].setblocking(False)
            code = others[-1].connect_ex(str(path))
        assert code == errno.EAGAIN
        accepting = threading.Timer(0.05, lambda: [listener.accept() for _ in others])
        accepting.start()
        closing.enter_context(unix.connect(path))
        accepting.join()


def test_reasons_for_no_connection(tmp_path: Path) -> None:
    with pytest.raises(SwitchUnreachableError, match=r"no directory .*/nowhere"):
        LinkTransport(tmp_path / "nowhere" / "port1.sock")
    with pytest.raises(SwitchUnreachableError, match=r"port1\.sock: there is no such socket"):
        LinkTransport(tmp_path / "port1.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
        left_behind.bind(str(tmp_path / "port2.sock"))
    with pytest.raises(SwitchUnreachableError, match="nobody listens"):
        LinkTransport(tmp_path / "port2.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other_type:
        other_type.bind(str(tmp_path / "port3.sock"))
        other_type.listen()
        with pytest.raises(SwitchUnreachableError, match="another type"):
            LinkTransport(tmp_path / "port3.sock")
    with pytest.raises(SwitchUnreachableError, match="107 bytes"):
        LinkTransport("/tmp/" + 120 * "x")


@pytest.mark.parametrize("interface", ["unix:/nowhere/port1.sock", "udp:127.0.0.1:7001", "lo"])
def test_too_many_open_files_are_no_way_to_the_switch(interface: str) -> None:
    """An error that recovery takes for one that passes, and not one of Python's own."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(SwitchUnreachableError, match=r"Too many open files: .*fs\.file-max"):
            open_port(interface, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_faults_that_do_not_read_are_told_before_a_port_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P4REDUCE_FAULTS", "drop=often")
    with pytest.raises(ConfigurationError, match="'often' is not a number"):
        open_port(f"unix:{tmp_path}/nobody-listens.sock", 0)


# -- Which transport -----------------------------------------------------------------------------


def test_interface_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LINK", "single")  # nobody answers a hello
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "p4-3-1.sock"))
        listener.listen()
        where = f"unix:{tmp_path}/p{{port}}-{{rank}}-{{local_rank}}.sock"
        transport = open_port(port_name(where, rank=3, local_rank=1), 3)
        listener.accept()[0].close()
        assert transport.endpoint is None
        transport.close()


def test_ports_are_counted_from_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for first, port in (("", "3"), ("5", "7")):
        monkeypatch.setenv("P4REDUCE_FIRST_PORT", first)
        assert port_name("udp:switch:7000+{port}", 2, 0) == f"udp:switch:7000+{port}"
    monkeypatch.setenv("P4REDUCE_FIRST_PORT", "eth0")
    with pytest.raises(ConfigurationError, match="P4REDUCE_FIRST_PORT='eth0' is not the number"):
        port_name("unix:port{port}", 2, 0)


def test_wrong_interfaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_INTERFACE", raising=False)
    with pytest.raises(ConfigurationError, match="P4REDUCE_INTERFACE"):
        port_name(None, 0, 0)
    for wrong in ("prot", "rank.number", "rank[0]"):
        with pytest.raises(ConfigurationError, match=re.escape(wrong)):
            port_name(f"unix:/tmp/{{{wrong}}}.sock", 0, 0)
    with pytest.raises(SwitchUnreachableError, match="'nosuch0'"):
        open_port("nosuch0", 0)


# -- Packet sockets ------------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param(None, marks=needs_root)])
def veth() -> Iterator[tuple[str, str]]:
    number = os.getpid() % 10000
    near, far = f"p4w{number}a", f"p4w{number}b"
    for command in (
        f"link add {near} type veth peer name {far}",
        f"address add 10.99.7.1/24 dev {near}",
        f"link set {near} up",
        f"link set {far} up",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    until_up(near, far)
    yield near, far
    subprocess.run(["ip", "link", "delete", near], check=True)


@pytest.fixture
def packet(veth: tuple[str, str]) -> Iterator[tuple[PacketTransport, socket.socket]]:
    transport = PacketTransport(veth[0])
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as far:
        far.bind((veth[1], 0x0800))
        far.settimeout(120.0)
        yield transport, far
    transport.close()


SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.99.7.254", wire.AGGREGATION_PORT)


def test_packet_socket_has_the_interfaces_addresses(
    packet: tuple[PacketTransport, socket.socket], veth: tuple[str, str]
) -> None:
    endpoint = packet[0].endpoint
    assert endpoint.mac == Path(f"/sys/class/net/{veth[0]}/address").read_text().strip()
    assert endpoint.ip == "10.99.7.1"
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind((endpoint.ip, endpoint.udp_port))


def test_packet_socket_takes_the_switchs_answers_only(
    packet: tuple[PacketTransport, socket.socket],
) -> None:
    transport, far = packet
    here = transport.endpoint

    def answer(rank: int, source: wire.Endpoint = SWITCH, target: wire.Endpoint = here) -> bytes:
        return wire.template(source, target, Aggregation(kind=1, rank=rank))

    good = answer(1), answer(2)
    far.send(good[0])
    far.send(answer(9, source=wire.Endpoint(SWITCH.mac, SWITCH.ip, 53)))
    far.send(answer(9, target=wire.Endpoint(here.mac, here.ip, here.udp_port ^ 1)))
    far.send(answer(9, target=wire.Endpoint("02:00:00:00:09:09", here.ip, here.udp_port)))
    far.send(bytes(12) + b"\x08\x06" + bytes(64))
    far.send(good[1])
    received: list[bytes] = []
    end = time.monotonic() + DEADLINE
    while len(received) < 2 and time.monotonic() < end:
        transport.wait(0.1)
        received += [transport.received.get(row) for row in range(transport.receive())]
    assert received == list(good)
    assert transport.dropped == 0


def test_packet_socket_sends_and_does_not_hear_itself(
    packet: tuple[PacketTransport, socket.socket],
) -> None:
    transport, far = packet
    buffer = FrameBuffer(2)
    for row in range(2):
        header = Aggregation(rank=row)
        buffer.put(row, wire.template(transport.endpoint, SWITCH, header))
    assert transport.send(buffer, np.array([1, 0])) == 2
    sent = [far.recv(4096) for _ in range(2)]
    assert sent == [buffer.get(1), buffer.get(0)]
    transport.wait(0.05)
    assert transport.receive() == 0


def test_packet_socket_without_an_address() -> None:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the ip command (iproute2)")
    name = f"p4n{os.getpid() % 10000}"
    subprocess.run(["ip", "link", "add", name, "type", "veth"], check=True)
    try:
        with pytest.raises(SwitchUnreachableError, match=f"{name}.*no IPv4 address"):
            PacketTransport(name)
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


def test_packet_socket_whose_interface_goes_away(
    packet: tuple[PacketTransport, socket.socket], veth: tuple[str, str]
) -> None:
    transport, _ = packet
    subprocess.run(["ip", "link", "set", veth[0], "down"], check=True)
    with pytest.raises(SwitchUnreachableError, match=f"by {veth[0]}: Network is down"):
        transport.receive()


def test_packet_socket_on_an_interface_that_is_down(veth: tuple[str, str]) -> None:
    subprocess.run(["ip", "link", "set", veth[0], "down"], check=True)
    with pytest.raises(SwitchUnreachableError, match=f"'{veth[0]}' is down: ip link set"):
        PacketTransport(veth[0])


# -- Faults --------------------------------------------------------------------------------------


def through_faults(plan: FaultPlan, count: int, *, up: bool) -> tuple[list[int], dict[Fault, int]]:
    """What comes of `count` frames sent one way, and what happened to them."""
    near, far = connected_pair()
    faulty = FaultyTransport(near, plan)
    buffer = numbered(50)
    received: list[int] = []
    try:
        for start in range(0, count, 50):
            rows = np.arange(min(50, count - start))
            if up:
                faulty.send(buffer, rows)
                received += [start + n for n in receive_all(far)]
            else:
                far.send(buffer, rows)
                received += [start + n for n in receive_all(faulty)]
        return received, faulty.counts
    finally:
        near.close()
        far.close()


@pytest.mark.parametrize("up", [False, True])
def test_loss_can_be_had_again(up: bool) -> None:
    plan = FaultPlan(drop=0.1, duplicate=0.1, reorder_seconds=0.0, seed=11)
    once, counts = through_faults(plan, 2000, up=up)
    again, _ = through_faults(plan, 2000, up=up)
    other, _ = through_faults(FaultPlan(drop=0.1, duplicate=0.1, seed=12), 2000, up=up)
    assert once == again != other
    assert len(once) == 2000 - counts[Fault.DROP] + counts[Fault.DUPLICATE]
    assert 120 < counts[Fault.DROP] < 280  # 200 expected, 13 standard deviation
    assert 100 < counts[Fault.DUPLICATE] < 260


@pytest.mark.parametrize("up", [False, True])
def test_faults_of_one_direction_only(up: bool) -> None:
    plan = FaultPlan(drop=0.5, up=not up, down=up)
    received, counts = through_faults(plan, 500, up=up)
    assert received == list(range(500))
    assert counts[Fault.DROP] == 0


def test_losses_come_in_bursts(pair: tuple[Connected, Connected]) -> None:
    """As much of the time as without, but all at once."""
    near, far = pair
    now, frames = 0.0, numbered(1)
    faulty = FaultyTransport(near, FaultPlan(drop=0.2, burst=0.01, seed=5), clock=lambda: now)
    lost = []
    for step in range(8_000):
        now = step * 0.001
        faulty.send(frames, np.arange(1))
        lost.append(not receive_all(far))
    starts = np.count_nonzero(np.diff(np.array(lost, np.int8)) == 1)
    assert 0.08 < np.mean(lost) < 0.32  # 0.2 expected, 0.03 standard deviation
    assert 7 < np.sum(lost) / starts < 15  # ten frames a burst


def test_an_outage_lasts_as_long_as_it_should() -> None:
    near, far = connected_pair()
    now = [10.0]
    plan = FaultPlan(outage_after=0.5, outage_seconds=1.0)
    faulty = FaultyTransport(near, plan, clock=lambda: now[0])
    through = []
    for now[0] in (10.0, 10.49, 10.51, 11.49, 11.51):
        faulty.send(numbered(3), np.arange(3))
        through.append(len(receive_all(far)))
    assert through == [3, 3, 0, 0, 3]
    near.close()
    far.close()


def test_faults_of_one_rank_only() -> None:
    for rank, lost in ((0, False), (2, True)):
        plan = FaultPlan(drop=0.9, only=2, rank=rank)
        received, _ = through_faults(plan, 200, up=True)
        assert (len(received) < 200) == lost


def test_copies_of_a_multicast_are_lost_one_by_one() -> None:
    """Faults are each receiver's own: what one rank loses, another one with the same plan gets."""
    received = []
    for rank in range(3):
        got, counts = through_faults(FaultPlan(drop=0.2, seed=3, rank=rank), 500, up=False)
        assert len(got) == 500 - counts[Fault.DROP]
        received.append(set(got))
    lost_by_one = [n for n in range(500) if sum(n in got for got in received) == 2]
    assert 130 < len(lost_by_one) < 260  # 192 expected, 11 standard deviation


def test_reordered_and_delayed_frames_come_late_but_come() -> None:
    near, far = connected_pair()
    now = [0.0]
    plan = FaultPlan(reorder=0.2, delay=0.2, seed=3)
    faulty = FaultyTransport(near, plan, clock=lambda: now[0])
    faulty.send(numbered(200), np.arange(200))
    first = receive_all(far)
    assert first == sorted(first)
    late = 200 - len(first)
    assert late == faulty.counts[Fault.REORDER] + faulty.counts[Fault.DELAY] > 20
    now[0] = plan.reorder_seconds
    faulty.wait(0)
    reordered = receive_all(far)
    assert len(reordered) == faulty.counts[Fault.REORDER]
    assert reordered != sorted(reordered)
    now[0] = plan.delay_seconds
    faulty.wait(0)
    delayed = receive_all(far)
    assert sorted(first + reordered + delayed) == list(range(200))
    near.close()
    far.close()


def test_waiting_ends_when_a_held_frame_is_due() -> None:
    near, far = connected_pair()
    faulty = FaultyTransport(near, FaultPlan(delay=0.999, delay_seconds=0.05))
    faulty.send(numbered(1), np.arange(1))
    assert far.receive() == 0
    end = time.monotonic() + DEADLINE
    while not far.receive():
        assert time.monotonic() < end
        faulty.wait(2 * DEADLINE)
    near.close()
    far.close()


def test_faults_hold_on_to_what_the_kernel_does_not_take(
    pair: tuple[Connected, Connected],
) -> None:
    near, far = pair
    faulty = FaultyTransport(near, FaultPlan())
    buffer = numbered(1000, 1102)
    assert faulty.send(buffer, np.arange(1000)) == 1000
    received = receive_all(far)
    assert len(received) < 1000
    while len(received) < 1000:
        faulty.wait(5.0)
        received += receive_all(far)
    assert received == list(range(1000))


def test_waiting_for_room_does_not_spin(pair: tuple[Connected, Connected]) -> None:
    """What is due behind frames that do not fit waits for room, as they do."""
    near, _ = pair
    asked: list[float] = []

    class Inner:
        endpoint, wake_fd, shares_link = near.endpoint, near.wake_fd, True

        def send(self, _buffer: FrameBuffer, _rows: object) -> int:
            return 0

        def wait(self, timeout: float, *, writable: bool = False) -> bool:
            assert writable
            asked.append(timeout)
            return False

    faulty = FaultyTransport(Inner(), FaultPlan())  # type: ignore[arg-type]
    assert faulty.shares_link
    for _ in range(2):
        faulty.send(numbered(3), np.arange(3))
    faulty.wait(5.0)
    assert asked == [5.0]


def test_plan_is_read_from_text() -> None:
    plan = FaultPlan.parse("drop=0.01, duplicate=0.02,reorder=0.5,seed=7,up=0", rank=3)
    assert plan == FaultPlan(drop=0.01, duplicate=0.02, reorder=0.5, seed=7, up=False, rank=3)
    plan = FaultPlan.parse("burst=0.1,outage_after=0.5,outage_seconds=1,only=2")
    assert plan == FaultPlan(burst=0.1, outage_after=0.5, outage_seconds=1.0, only=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loss=0.1", "'loss=0.1'.*drop"),
        ("drop=lots", "'lots' is not a number"),
        ("drop=1", "drop=1:"),
        ("drop=-0.1", "drop=-0.1:"),
        ("drop", "'drop'"),
        ("burst=-1", "burst=-1:"),
        ("reorder=0.1,reorder_seconds=nan", "reorder_seconds=nan:"),
        ("delay_seconds=inf", "delay_seconds=inf:"),
        ("seed=-1", "seed=-1: 0 or more"),
    ],
)
def test_wrong_plans_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FaultPlan.parse(text)
