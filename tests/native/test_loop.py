# SPDX-License-Identifier: Apache-2.0
"""The loop in C with a program in C: what never comes near Python, and what does."""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from link_ends import NO_LINKS
from loop_program import NativeProgram
from p4reduce.transport import LinkTransport
from p4reduce_native.link import LinkKind
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.place import PortOptions, PortSpec
from p4reduce_switch.ports.port import MAX_FRAME_BYTES
from p4reduce_switch.ports.unix import UnixPlace
from scapy.utils import rdpcap
from stand_ins import Program, cable
from switch_peer import DEADLINE_S, QUEUE_FRAMES, Peer, ethernet, eventually

pytestmark = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))

CPU_PORT = 255
PORTS = range(1, 9)


class Switch:
    def __init__(self, directory: Path, capture_dir: Path | None = None) -> None:
        specs = [PortSpec(n, UnixPlace(directory / f"p{n}.sock")) for n in PORTS]
        self.dataplane = open_data_plane(
            specs, PortOptions(capture_dir and Captures(capture_dir)), cpu_port=CPU_PORT
        )
        self.directory = directory
        self.program = NativeProgram()
        self._peers: list[Peer] = []
        self.dataplane.start()
        self.install(self.program)

    def install(self, program: object) -> None:
        self.dataplane.run(lambda: self.dataplane.install(program))  # type: ignore[arg-type]

    def plug(self, number: int) -> Peer:
        peer = Peer(self.directory / f"p{number}.sock")
        self._peers.append(peer)
        eventually(lambda: self.dataplane.ports[number].is_up, f"port {number} up")
        return peer

    def counts(self, name: str) -> dict[str, int]:
        return self.dataplane.counts()[name]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.dataplane.stop()


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[Switch]:
    made = Switch(tmp_path)
    yield made
    made.close()


def in_background(action: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def test_frames_cross_in_order(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    frames = [ethernet(b"w" + i.to_bytes(4, "big") * (1 + i % 200)) for i in range(500)]
    sender = in_background(lambda: [left.send(frame) for frame in frames] and None)
    assert [right.receive() for _ in frames] == frames
    sender.join(DEADLINE_S)
    counts = switch.dataplane.counts()
    assert counts["port 1"]["rx_frames"] == counts["port 2"]["tx_frames"] == 500
    assert counts["port 2"]["tx_bytes"] == sum(map(len, frames))
    assert 0 <= time.monotonic_ns() - switch.program.last_ns < 60e9


def test_every_length(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    for length in (14, 15, 60, 63, 64, 65, 1024, 1518, 2047, MAX_FRAME_BYTES):
        frame = bytes(i * 7 % 256 for i in range(length))
        left.send(frame[:14] + b"w" + frame[15:] if length > 14 else frame)
        received = right.receive()
        assert len(received) == length
        assert received[:14] == frame[:14]
        assert received[15:] == frame[15:]
    for length in (1, 13):  # shorter than an Ethernet header
        left.send(b"w" * length)
        assert len(right.receive()) == length
    for _ in range(3):
        left.send(b"")
    for length in (MAX_FRAME_BYTES + 1, 5000):
        left.send(b"w" * length)
    right.expect_nothing()
    counts = switch.counts("port 1")
    assert (counts["rx_too_short"], counts["rx_too_long"], counts["rx_frames"]) == (3, 2, 12)


def test_copies_reach_every_port_that_has_a_peer(switch: Switch) -> None:
    peers = {number: switch.plug(number) for number in PORTS if number != 5}
    frame = ethernet(b"multicast")
    for _ in range(100):
        peers[1].send(frame)
    for number, peer in peers.items():
        # Port 2 gets the wire's copy as well.
        for _ in range(200 if number == 2 else 100):
            assert peer.receive() == frame
        peer.expect_nothing(0.02)
    assert switch.counts("port 5")["tx_down"] == 100


def test_frames_to_no_port_are_counted(switch: Switch) -> None:
    left = switch.plug(1)
    left.send(ethernet(b"x"))
    eventually(lambda: switch.counts("switch")["no_such_port"] == 2, "count of both copies")


def test_frames_before_a_program_are_counted(tmp_path: Path) -> None:
    dataplane = open_data_plane([PortSpec(1, UnixPlace(tmp_path / "p1.sock"))])
    dataplane.start()
    peer = Peer(tmp_path / "p1.sock")
    try:
        for _ in range(3):
            peer.send(ethernet())
        eventually(lambda: dataplane.counts()["switch"]["no_pipeline"] == 3, "count of the frames")
    finally:
        peer.close()
        dataplane.stop()
    assert dataplane.counts()["switch"]["no_pipeline"] == 3  # counts outlive the loop
    assert dataplane.counts()["port 1"]["rx_frames"] == 3


def test_packet_ins_and_packet_outs(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    got: list[bytes] = []
    left.send(ethernet(b"c unheard"))
    eventually(lambda: switch.counts("switch")["packet_ins_dropped"] == 1, "drop of the packet-in")
    switch.dataplane.on_packet_in(lambda frame: got.append(frame) or True)  # type: ignore[func-returns-value]
    frames = [ethernet(b"c" + i.to_bytes(2, "big")) for i in range(500)]
    for frame in frames:
        left.send(frame)
    eventually(lambda: len(got) == 500, "packet-ins")
    assert got == frames
    for i in range(50):
        switch.dataplane.inject(ethernet(bytes([i])))
    assert [right.receive() for _ in range(50)] == [ethernet(bytes([i])) for i in range(50)]
    counts = switch.counts("switch")
    assert (counts["packet_ins"], counts["packet_outs"]) == (500, 50)


def test_a_program_that_has_something_for_python(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet(b"e"))
    eventually(lambda: switch.program.events_served == 1, "service of the event")
    left.send(ethernet(b"w"))
    assert right.receive() == ethernet(b"w")
    assert switch.program.events_served == 1


def test_a_handler_that_raises_loses_nothing_of_its_iteration(switch: Switch) -> None:
    """Of one iteration: an event, packet-ins whose handlers raise, a leaving peer, a request."""
    left, right = switch.plug(1), switch.plug(2)
    taken: list[bytes] = []
    answers: list[int] = []

    class Raising(NativeProgram):
        def serve_events(self) -> None:
            super().serve_events()
            raise ValueError("planted")

    def take(frame: bytes) -> bool:
        taken.append(frame)
        raise ValueError("planted")

    program = Raising()
    switch.install(program)
    switch.dataplane.on_packet_in(take)
    frames = [ethernet(b"c" + bytes([number])) for number in range(3)]
    for attempt in range(3):
        request = threading.Thread(target=lambda: answers.append(switch.dataplane.run(lambda: 42)))

        def at_once(request: threading.Thread = request, right: Peer = right) -> None:
            for frame in (ethernet(b"e"), *frames):
                left.send(frame)
            right.close()
            request.start()
            time.sleep(0.01)  # in which it asks; later it would be another iteration's

        switch.dataplane.run(at_once)
        request.join(DEADLINE_S)
        eventually(lambda: not switch.dataplane.ports[2].is_up, "port 2 down")
        assert answers == [42] * (attempt + 1)
        assert taken == frames * (attempt + 1)
        assert program.events_served == attempt + 1
        right = switch.plug(2)
    assert switch.counts("switch")["packet_ins_dropped"] == 9
    assert switch.counts("switch")["packet_ins"] == 0


def test_programs_in_c_and_in_python_take_turns_and_lose_nothing(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    frames = [ethernet(b"w" + i.to_bytes(4, "big")) for i in range(2000)]
    sender = in_background(lambda: [left.send(frame) for frame in frames] and None)
    received = []
    for i in range(len(frames)):
        if i % 250 == 0:
            switch.install(Program(cable) if i % 500 == 0 else switch.program)
        received.append(right.receive())
    sender.join(DEADLINE_S)
    assert received == frames
    assert switch.counts("switch")["failed"] == 0


@contextmanager
def flood(switch: Switch, peer: Peer) -> Iterator[None]:
    """Frames that are dropped come in at port 1 all the time."""
    stop = threading.Event()

    def send() -> None:
        peer.socket.setblocking(False)
        while not stop.is_set():
            try:
                peer.send(ethernet(b"d" + bytes(1000)))
            except BlockingIOError:  # noqa: PERF203
                time.sleep(0)

    flooder = in_background(send)
    try:
        eventually(lambda: switch.counts("port 1")["rx_frames"] > 1000, "flood")
        yield
    finally:
        stop.set()
        flooder.join(DEADLINE_S)


def test_requests_are_served_under_load(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    with flood(switch, left):
        for i in range(50):
            assert switch.dataplane.run(lambda i=i: i) == i  # type: ignore[misc]
            right.send(ethernet(b"m"))
            assert right.receive() == ethernet(b"m")


@contextmanager
def crowded(directory: Path) -> Iterator[Switch]:
    """One that holds back what waits for more, as on a core that peers share."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # the switch's loop looks when it is made
    try:
        made = Switch(directory)
    finally:
        os.sched_setaffinity(0, cores)
    try:
        yield made
    finally:
        made.close()


def test_what_waits_for_more_on_a_crowded_core_leaves_under_load(tmp_path: Path) -> None:
    with crowded(tmp_path) as switch:
        left, right = switch.plug(1), switch.plug(2)
        with flood(switch, left):
            for i in range(200):
                right.send(ethernet(b"m" + i.to_bytes(2, "big")))
            for i in range(200):
                assert right.receive() == ethernet(b"m" + i.to_bytes(2, "big"))


def test_a_slow_program_holds_nothing_for_long(tmp_path: Path) -> None:
    """As in Python: 2,048 frames take it a second, so that timers run out."""
    worked = 0
    before = []  # frames of the flood between a question and its answer

    def slow(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        nonlocal worked
        if port == 2:
            worked = 0
            return [(2, frame)]
        time.sleep(1e-3)
        worked += 1
        return []

    with crowded(tmp_path) as switch:
        left, right = switch.plug(1), switch.plug(2)
        with flood(switch, left):
            switch.install(Program(slow))
            for i in range(3):
                question = ethernet(b"m" + i.to_bytes(2, "big"))
                right.send(question)
                assert right.receive() == question
                before.append(worked)
            switch.install(switch.program)
    assert max(before) < 200, before


def test_a_port_that_does_not_read_loses_its_own_frames_only(switch: Switch) -> None:
    peers = {number: switch.plug(number) for number in (1, 2, 3)}
    frame = ethernet(b"m" + bytes(1400))
    sent = 0
    deadline = time.monotonic() + DEADLINE_S
    received = 0
    peers[3].socket.settimeout(DEADLINE_S)
    # Port 3 reads everything; ports 1 and 2 read nothing.
    while not switch.counts("port 2")["tx_queue_full"]:
        assert time.monotonic() < deadline, f"no drop after {sent} frames"
        for _ in range(64):
            peers[1].send(frame)
        sent += 64
        for _ in range(64):
            assert peers[3].receive() == frame
            received += 1
    counts = switch.counts("port 2")
    assert counts["tx_frames"] + counts["tx_queue_full"] + QUEUE_FRAMES == 2 * sent
    assert switch.counts("port 3")["tx_frames"] == received
    assert switch.counts("port 3")["tx_queue_full"] == 0
    for _ in range(2 * sent - counts["tx_queue_full"]):
        assert peers[2].receive() == frame
    peers[2].expect_nothing(0.02)
    counts = switch.counts("port 2")
    assert counts["tx_frames"] + counts["tx_queue_full"] == 2 * sent


def test_a_jam_gives_its_memory_back(switch: Switch) -> None:
    peers = {number: switch.plug(number) for number in (1, 2)}
    frame = ethernet(b"w" + bytes(2000))

    def jam() -> None:
        sent = 0
        while not switch.counts("port 2")["tx_queue_full"]:
            for _ in range(256):
                peers[1].send(frame)
            sent += 256
        for _ in range(sent - switch.counts("port 2")["tx_queue_full"]):
            peers[2].receive()

    before = resident_bytes()
    jam()
    eventually(lambda: switch.counts("port 2")["tx_frames"] > QUEUE_FRAMES, "the queue's end")
    assert resident_bytes() - before < 1.5e6  # the queue's 1,024 frames take 2.1 MB


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


def test_peers_come_and_go(switch: Switch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    left = switch.plug(1)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for attempt in range(20):
        right = switch.plug(2)
        left.send(ethernet(b"w" + bytes([attempt])))
        assert right.receive() == ethernet(b"w" + bytes([attempt]))
        last = [ethernet(b"w" + i.to_bytes(2, "big")) for i in range(150)]
        for frame in last:
            right.send(frame)
        right.close()
        assert [left.receive() for _ in last] == last  # its last words are heard
        eventually(lambda: not switch.dataplane.ports[2].is_up, "port 2 down")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert switch.counts("port 2")["rx_too_short"] == 0
    assert caplog.text.count("is down: its peer left") == 20
    assert f"is up: peer is process {os.getpid()} of user" in caplog.text


def test_a_peer_that_replaces_one_that_just_left_is_taken(switch: Switch) -> None:
    left = switch.plug(1)
    first = switch.plug(2)
    held, go_on = threading.Event(), threading.Event()
    blocker = in_background(
        lambda: switch.dataplane.run(lambda: held.set() or go_on.wait(DEADLINE_S)) and None  # type: ignore[func-returns-value]
    )
    assert held.wait(DEADLINE_S)
    # While the data plane is busy one peer leaves and another comes: one iteration sees both.
    first.send(ethernet(b"w last word"))
    first.close()
    second = Peer(switch.directory / "p2.sock")
    go_on.set()
    blocker.join(DEADLINE_S)
    assert left.receive() == ethernet(b"w last word")
    left.send(ethernet(b"w welcome"))
    assert second.receive() == ethernet(b"w welcome")
    second.close()


def test_a_second_peer_is_refused(switch: Switch, caplog: pytest.LogCaptureFixture) -> None:
    left, right = switch.plug(1), switch.plug(2)
    intruder = Peer(switch.directory / "p1.sock")
    assert intruder.receive() == b""
    intruder.close()
    left.send(ethernet(b"w"))
    assert right.receive() == ethernet(b"w")
    assert "refused a second peer" in caplog.text


def test_captures(tmp_path: Path) -> None:
    switch = Switch(tmp_path, capture_dir=tmp_path / "captures")
    before = time.time()
    try:
        left, right = switch.plug(1), switch.plug(2)
        left.send(ethernet(b"w there"))
        assert right.receive() == ethernet(b"w there")
        right.send(ethernet(b"w back"))
        assert left.receive() == ethernet(b"w back")
        left.send(b"")
        left.send(ethernet(b"m"))  # also to ports without a peer
        right.receive()
        # Written out while the switch runs, at its leisure.
        path = tmp_path / "captures" / "port2.pcap"
        eventually(lambda: path.stat().st_size > 24, "the capture's end")
    finally:
        switch.close()
    there, back, copy = ethernet(b"w there"), ethernet(b"w back"), ethernet(b"m")
    for number, frames in ((1, [there, back, copy, copy]), (2, [there, back, copy, copy])):
        packets = rdpcap(str(tmp_path / "captures" / f"port{number}.pcap"))
        assert [bytes(packet) for packet in packets] == frames
        assert all(before <= float(packet.time) <= time.time() for packet in packets)
    # Of a port without a peer nothing leaves.
    assert not rdpcap(str(tmp_path / "captures" / "port3.pcap"))


def test_a_capture_has_what_left_and_nothing_else(tmp_path: Path) -> None:
    """Not what was dropped for its length, for a full queue, or because its peer went."""
    switch = Switch(tmp_path, capture_dir=tmp_path / "captures")
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet(b"T"))  # it grows to more than is allowed
    frame = ethernet(b"w" + bytes(1400))
    sent = 0
    while not switch.counts("port 2")["tx_queue_full"]:
        for _ in range(64):
            left.send(frame)
        sent += 64
    right.close()
    eventually(lambda: not switch.dataplane.ports[2].is_up, "port 2 down")
    left.send(frame)
    eventually(lambda: switch.counts("port 1")["rx_frames"] == sent + 2, "the last frame")
    counts = switch.counts("port 2")
    switch.close()
    assert sum(counts[name] for name in ("tx_frames", "tx_down", "tx_queue_full")) == sent + 1
    assert counts["tx_too_long"] == 1
    packets = rdpcap(str(tmp_path / "captures" / "port2.pcap"))
    assert len(packets) == counts["tx_frames"]


def test_a_frame_that_grows(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet(b"T"))
    left.send(ethernet(b"t"))
    assert right.receive() == ethernet(b"t").ljust(MAX_FRAME_BYTES, b"\xee")
    assert switch.counts("port 2")["tx_too_long"] == 1


def test_timers_and_python_descriptors_beside_traffic(switch: Switch) -> None:
    left, right = switch.plug(1), switch.plug(2)
    called = threading.Event()
    switch.dataplane.run(lambda: switch.program.timers.call_after(20_000_000, called.set))
    for i in range(2000):
        left.send(ethernet(b"w" + i.to_bytes(2, "big")))
        right.receive()
        if called.is_set():
            break
    assert called.wait(DEADLINE_S)


def test_random_garbage(switch: Switch) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    left, right = switch.plug(1), switch.plug(2)
    right.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    stop = threading.Event()

    def drain() -> None:
        right.socket.settimeout(0.05)
        while not stop.is_set():
            try:
                right.receive()
            except TimeoutError:  # noqa: PERF203
                continue

    reader = in_background(drain)
    for _ in range(3000):
        left.send(rng.randbytes(rng.randrange(2200)))
    left.send(ethernet(b"c done"))
    got: list[bytes] = []
    switch.dataplane.on_packet_in(lambda frame: got.append(frame) or True)  # type: ignore[func-returns-value]
    left.send(ethernet(b"c done"))
    eventually(lambda: ethernet(b"c done") in got, "the last frame")
    stop.set()
    reader.join(DEADLINE_S)
    counts = switch.counts("port 1")
    assert counts["rx_frames"] + counts["rx_too_short"] + counts["rx_too_long"] == 3002


def test_a_peer_that_leaves_in_the_iteration_in_which_it_is_sent_to(switch: Switch) -> None:
    """Frames are in its ring by then, and it has not been told of them: they go with it."""
    left = switch.plug(1)
    right = LinkTransport(switch.directory / "p2.sock", LinkKind.SHARED)
    eventually(lambda: switch.dataplane.ports[2].is_up, "port 2 up")

    def at_once() -> None:  # in the loop's thread, which learns of both when it continues
        left.send(ethernet(b"w lost"))
        right.close()

    switch.dataplane.run(at_once)
    eventually(lambda: not switch.dataplane.ports[2].is_up, "port 2 down")
    again = switch.plug(2)
    left.send(ethernet(b"w next"))
    assert again.receive() == ethernet(b"w next")


def test_a_peer_that_leaves_while_its_own_frames_are_worked_on(switch: Switch) -> None:
    """The loop finds out as it sends to it, and the rest of its batch is in its link's memory."""
    other = switch.plug(2)
    leaving = LinkTransport(switch.directory / "p1.sock", LinkKind.SHARED)
    eventually(lambda: switch.dataplane.ports[1].is_up, "port 1 up")
    before = switch.counts("port 1")["rx_frames"]

    def at_once() -> None:  # in the loop's thread
        for _ in range(40):
            other.send(ethernet(b"w for the one that leaves"))
        assert leaving.link.send([ethernet(b"m" + bytes(900))] * 64) == 64
        leaving.close()

    switch.dataplane.run(at_once)
    eventually(lambda: not switch.dataplane.ports[1].is_up, "port 1 down")
    assert switch.counts("port 1")["rx_frames"] - before == 64
    again = switch.plug(1)
    other.send(ethernet(b"w next"))
    assert again.receive() == ethernet(b"w next")


def test_stop_while_frames_flow(tmp_path: Path) -> None:
    for attempt in range(5):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        switch = Switch(directory)
        left = switch.plug(1)
        switch.plug(2)
        stop = threading.Event()

        def flood(left: Peer = left, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                try:
                    left.send(ethernet(b"m" + bytes(500)))
                except OSError:  # noqa: PERF203
                    return

        flooder = in_background(flood)
        time.sleep(0.02)
        switch.dataplane.stop()
        stop.set()
        flooder.join(DEADLINE_S)
        assert not flooder.is_alive()
        switch.close()
        assert not list(directory.glob("*.sock"))
        assert switch.counts("port 1")["rx_frames"] >= 0  # and may still be asked
