# SPDX-License-Identifier: Apache-2.0
"""Ports of the switch and the loop that serves them, over real sockets."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.rpc import code_pb2
from p4reduce_switch.dataplane import open_data_plane
from p4reduce_switch.errors import P4RuntimeError
from p4reduce_switch.ports.capture import Captures
from p4reduce_switch.ports.packet import InterfacePlace, PacketPort
from p4reduce_switch.ports.place import PortOptions, PortSpec
from p4reduce_switch.ports.port import MAX_FRAME_BYTES, PortError, PortStats
from p4reduce_switch.ports.port_warnings import PortWarnings
from p4reduce_switch.ports.registry import parse_port
from p4reduce_switch.ports.unix import UnixPlace, UnixPort
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap
from stand_ins import Process, Program, cable
from switch_peer import DEADLINE_S, QUEUE_FRAMES, Peer, ethernet, eventually
from veth_pairs import ip, on_wire, read_wire, until_up, veth_pair


class Switch:
    """A data plane with two ports on Unix sockets, and a program in Python."""

    def __init__(
        self,
        directory: Path,
        process: Process | None = cable,
        *,
        capture_dir: Path | None = None,
        cpu_port: int | None = None,
    ) -> None:
        self.paths = {n: directory / f"p{n}.sock" for n in (1, 2)}
        specs = [PortSpec(n, UnixPlace(path)) for n, path in self.paths.items()]
        self.dataplane = open_data_plane(
            specs, PortOptions(capture_dir and Captures(capture_dir)), cpu_port=cpu_port
        )
        self.ports = self.dataplane.ports
        self._peers: list[Peer] = []
        self.dataplane.start()
        if process is not None:
            self.install(process)

    def install(self, process: Process) -> None:
        self.dataplane.run(lambda: self.dataplane.install(Program(process)))  # type: ignore[arg-type]

    def plug(self, number: int) -> Peer:
        peer = Peer(self.paths[number])
        self._peers.append(peer)
        eventually(lambda: self.ports[number].is_up, f"port {number} up")
        return peer

    def counts(self, name: str) -> dict[str, int]:
        return self.dataplane.counts()[name]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self.dataplane.stop()


@pytest.fixture
def make_switch(tmp_path: Path) -> Iterator[Callable[..., Switch]]:
    made: list[Switch] = []

    def make(process: Process | None = cable, **options: object) -> Switch:
        made.append(Switch(tmp_path, process, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for switch in made:
        switch.close()


# -- The --port notation -------------------------------------------------------------------------


def test_port_notation() -> None:
    assert parse_port("1=veth1") == PortSpec(1, InterfacePlace("veth1"))
    assert parse_port("510=unix:/a/b=c.sock") == PortSpec(510, UnixPlace(Path("/a/b=c.sock")))
    assert str(parse_port("2=unix:x.sock")) == "2=unix:x.sock"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("veth1", "NUMBER=INTERFACE"),
        ("1=", "NUMBER=INTERFACE"),
        ("x=veth1", "'x'"),
        ("-1=veth1", "'-1'"),
        ("511=veth1", "0 to 510"),
        ("1=unix:", "no path"),
        ("1=a-name-much-too-long", "interface name"),
        ("1=/dev/null", "unix:PATH"),
        ("1=two words", "interface name"),
    ],
)
def test_bad_port_notation_is_explained(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_port(text)


# -- Unix sockets --------------------------------------------------------------------------------


def test_frames_cross_the_switch_in_order(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    frames = [ethernet(i.to_bytes(4, "big") * (1 + i % 200)) for i in range(300)]

    def send() -> None:
        for frame in frames:
            left.send(frame)

    sender = threading.Thread(target=send)
    sender.start()
    received = [right.receive() for _ in frames]
    sender.join(DEADLINE_S)

    assert received == frames
    right.send(b"\xff" * 14)
    assert left.receive() == b"\xff" * 14
    assert switch.counts("port 1")["rx_frames"] == 300
    assert switch.counts("port 1")["rx_bytes"] == sum(map(len, frames))
    assert switch.counts("port 2")["tx_frames"] == 300
    assert switch.counts("port 2")["tx_bytes"] == sum(map(len, frames))


def test_frames_shorter_than_an_ethernet_header_pass(make_switch: Callable[..., Switch]) -> None:
    """What looks like a hello is one only as a peer's first message."""
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    hello = b"P4RL\1\0\0\0"  # wishes nothing, so that frames continue one by one
    left.send(hello)
    for frame in (b"\1", b"\2" * 13, hello, b"\3"):
        left.send(frame)
        assert right.receive() == frame


@pytest.mark.parametrize(
    ("size", "counter"),
    [
        (0, "rx_too_short"),
        (MAX_FRAME_BYTES + 1, "rx_too_long"),
        (9000, "rx_too_long"),
    ],
)
def test_frames_of_bad_length_are_counted_and_dropped(
    make_switch: Callable[..., Switch], size: int, counter: str
) -> None:
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    left.send(b"\x01" * size)
    left.send(b"\x02" * MAX_FRAME_BYTES)
    assert right.receive() == b"\x02" * MAX_FRAME_BYTES
    right.expect_nothing()
    counts = switch.counts("port 1")
    assert counts[counter] == 1
    assert counts["rx_frames"] == 1
    assert switch.ports[1].is_up  # an empty message is not a hang-up


def test_frames_of_bad_length_are_told_while_the_switch_runs(
    make_switch: Callable[..., Switch], caplog: pytest.LogCaptureFixture
) -> None:
    switch = make_switch()
    left = switch.plug(1)
    left.send(b"")
    eventually(lambda: "drops frames" in caplog.text, "a warning")
    (record,) = (r for r in caplog.records if "drops frames" in r.message)
    assert record.levelno == logging.WARNING
    assert record.message == (
        f"port 1=unix:{switch.paths[1]} drops frames of wrong length: so far 1 were empty, "
        "0 had more than 2048 bytes, and 0 could not be sent"
    )


def test_bad_lengths_are_told_slowly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Counted(UnixPort):
        stats = PortStats()

    ports = [Counted(PortSpec(n, UnixPlace(tmp_path / f"p{n}"))) for n in (1, 2)]
    for port in ports:
        port.stats = PortStats()
    complaints = PortWarnings(ports)

    def told(now: float) -> list[str]:
        caplog.clear()
        complaints.look(now)
        return [record.message.split("=")[0] for record in caplog.records]

    assert told(100.0) == []
    ports[0].stats.rx_too_long += 3
    assert told(101.0) == ["port 1"]
    ports[0].stats.rx_too_long += 1
    ports[1].stats.tx_too_long += 1
    assert told(102.0) == ["port 2"]  # each port has its own rate
    assert told(110.9) == []
    assert told(111.0) == ["port 1"]
    assert "4 had more than 2048" in caplog.text
    assert told(500.0) == []  # nothing new
    for port in ports:
        port.close()


def test_missing_peers_are_told_slowly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Counted(UnixPort):
        stats = PortStats()

    ports = [Counted(PortSpec(n, UnixPlace(tmp_path / f"p{n}"))) for n in range(1, 7)]
    for port in ports:
        port.stats = PortStats()
    warnings = PortWarnings(ports)

    def told(now: float) -> str:
        caplog.clear()
        warnings.look(now)
        return caplog.text

    assert told(100.0) == ""
    ports[1].stats.tx_down += 5
    assert f"port 2=unix:{tmp_path / 'p2'} (5)" in told(101.0)
    for port in ports:
        port.stats.tx_down += 1
    assert told(110.9) == ""  # one line per ten seconds for all ports
    text = told(111.0)
    assert text.count("are dropped; so far: port 1=") == 1
    assert text.rstrip().endswith("(1), and 2 more")
    assert told(500.0) == ""  # nothing new
    for port in ports:
        port.close()


def test_random_garbage_does_no_harm(make_switch: Callable[..., Switch]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    sizes = [rng.randrange(2500) for _ in range(1000)]
    good = [size for size in sizes if 0 < size <= MAX_FRAME_BYTES]

    def send() -> None:
        for size in sizes:
            left.send(rng.randbytes(size))

    sender = threading.Thread(target=send)
    sender.start()
    assert [len(right.receive()) for _ in good] == good
    sender.join(DEADLINE_S)
    right.expect_nothing()


def test_peers_come_and_go(
    make_switch: Callable[..., Switch], caplog: pytest.LogCaptureFixture
) -> None:
    switch = make_switch()
    left = switch.plug(1)
    left.send(ethernet(b"nobody there"))
    eventually(lambda: switch.counts("port 2")["tx_down"] == 1, "drop for want of a peer")
    eventually(lambda: "to ports without a peer" in caplog.text, "a warning")

    for turn in range(3):
        right = switch.plug(2)
        left.send(ethernet(bytes([turn])))
        assert right.receive() == ethernet(bytes([turn]))
        right.close()
        eventually(lambda: not switch.ports[2].is_up, "port 2 down")


def test_last_words_of_a_leaving_peer_are_heard(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    frames = [ethernet(bytes([i])) for i in range(150)]  # more than a batch
    for frame in frames:
        left.send(frame)
    left.close()
    assert [right.receive() for _ in frames] == frames
    eventually(lambda: not switch.ports[1].is_up, "port 1 down")
    assert switch.counts("port 1")["rx_too_short"] == 0  # what is read at the end is no frame


def test_a_second_peer_is_refused(
    make_switch: Callable[..., Switch], caplog: pytest.LogCaptureFixture
) -> None:
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    intruder = Peer(switch.paths[1])
    try:
        assert intruder.receive() == b""
    finally:
        intruder.close()
    left.send(ethernet(b"still here"))
    assert right.receive() == ethernet(b"still here")
    assert f"refused a second peer (process {os.getpid()}" in caplog.text


def test_a_peer_that_does_not_read_loses_frames_and_stops_nobody(
    make_switch: Callable[..., Switch],
) -> None:
    # Port 1 sends to port 2, which does not read; port 2 sends to port 1, which does.
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    frame = ethernet(bytes(1400))
    sent = 0
    deadline = time.monotonic() + DEADLINE_S
    while not switch.counts("port 2")["tx_queue_full"]:
        assert time.monotonic() < deadline, f"no drop after {sent} frames"
        for _ in range(256):
            left.send(frame)
        sent += 256
    right.send(ethernet(b"alive"))
    assert left.receive() == ethernet(b"alive")
    eventually(lambda: switch.counts("port 1")["rx_frames"] == sent, "all frames taken in")

    # What was queued comes out once the peer reads, in order, and nothing is lost unseen.
    dropped = switch.counts("port 2")["tx_queue_full"]
    for _ in range(sent - dropped):
        assert right.receive() == frame
    right.expect_nothing()
    assert switch.counts("port 2")["tx_frames"] == sent - dropped
    assert sent - dropped > QUEUE_FRAMES
    left.send(ethernet(b"and on"))
    assert right.receive() == ethernet(b"and on")


def test_every_frame_to_a_peer_that_leaves_is_accounted_for(
    make_switch: Callable[..., Switch],
) -> None:
    switch = make_switch()
    left, right = switch.plug(1), switch.plug(2)
    sent = 0
    while not switch.counts("port 2")["tx_queue_full"]:
        for _ in range(256):
            left.send(ethernet(bytes(1400)))
        sent += 256
    eventually(lambda: switch.counts("port 1")["rx_frames"] == sent, "all frames taken in")
    assert not switch.counts("port 2")["tx_down"]
    right.close()
    eventually(lambda: not switch.ports[2].is_up, "port 2 down")
    counts = switch.counts("port 2")
    assert counts["tx_down"] == QUEUE_FRAMES
    assert counts["tx_frames"] + counts["tx_queue_full"] + counts["tx_down"] == sent


def test_socket_files_appear_private_and_disappear(tmp_path: Path) -> None:
    path = tmp_path / "p1.sock"
    port = UnixPort(PortSpec(1, UnixPlace(path)))
    assert path.stat().st_mode & 0o777 == 0o600
    port.close()
    assert not path.exists()


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "misspelt" / "p1.sock"
    with pytest.raises(PortError, match=f"p1.sock: there is no directory {tmp_path}/misspelt"):
        UnixPort(PortSpec(1, UnixPlace(path)))
    assert not path.parent.exists()


def test_a_dead_process_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "p1.sock"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(path))
    dead.close()
    port = UnixPort(PortSpec(1, UnixPlace(path)))
    Peer(path).close()
    port.close()


def test_a_live_socket_is_not_taken_over(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch()
    with pytest.raises(PortError, match=r"port 7=unix:.*another process listens there"):
        UnixPort(PortSpec(7, UnixPlace(switch.paths[1])))
    switch.plug(1)


def test_a_file_in_the_way_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(PortError, match="not a socket"):
        UnixPort(PortSpec(1, UnixPlace(path)))
    assert path.read_text() == "data"


def test_a_path_too_long_for_a_socket_is_explained(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="longer than 107 bytes"):
        UnixPort(PortSpec(1, UnixPlace(tmp_path / ("x" * 120))))


# -- The loop ------------------------------------------------------------------------------------


def test_frames_before_a_pipeline_are_counted(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch(None)
    left = switch.plug(1)
    left.send(ethernet())
    eventually(lambda: switch.counts("switch")["no_pipeline"] == 1, "count of the frame")


def test_a_failing_program_loses_its_frame_only(
    make_switch: Callable[..., Switch], caplog: pytest.LogCaptureFixture
) -> None:
    def fragile(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if frame[14:] == b"poison":
            raise ZeroDivisionError("poisoned")
        return cable(port, frame)

    switch = make_switch(fragile)
    left, right = switch.plug(1), switch.plug(2)
    for i in range(40):
        left.send(ethernet(b"poison"))
        left.send(ethernet(bytes([i])))
    for i in range(40):
        assert right.receive() == ethernet(bytes([i]))
    assert switch.counts("switch")["failed"] == 40
    reports = [record for record in caplog.records if record.exc_info]
    assert len(reports) == 1  # not one a packet
    assert "from port 1" in reports[0].getMessage()


def test_a_new_pipeline_takes_over_between_frames(make_switch: Callable[..., Switch]) -> None:
    def stamped(stamp: bytes) -> Process:
        return lambda port, frame: [(3 - port, frame[:14] + stamp), (3 - port, stamp * 14)]

    switch = make_switch(stamped(b"A"))
    left, right = switch.plug(1), switch.plug(2)
    received: list[bytes] = []

    def receive() -> None:
        while received[-1:] != [b"B" * 14]:
            received.append(right.receive())

    reader = threading.Thread(target=receive)
    reader.start()
    for i in range(200):
        left.send(ethernet())
        if i == 100:
            switch.install(stamped(b"B"))
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    # Both copies of a frame bear the same stamp, and no A comes after a B.
    stamps = "".join(frame[-1:].decode() for frame in received)
    assert stamps == "A" * stamps.count("A") + "B" * stamps.count("B")
    assert stamps.count("A") % 2 == 0


def test_frames_to_a_port_that_does_not_exist_are_counted(
    make_switch: Callable[..., Switch],
) -> None:
    switch = make_switch(lambda port, frame: [(9, frame), (2, frame)])
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet())
    assert right.receive() == ethernet()
    assert switch.counts("switch")["no_such_port"] == 1


def test_cpu_port(make_switch: Callable[..., Switch]) -> None:
    to_cpu: list[bytes] = []

    def program(port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return [(2, frame)] if port == 255 else [(255, frame)]

    switch = make_switch(program, cpu_port=255)
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet(b"unheard"))
    eventually(lambda: switch.counts("switch")["packet_ins_dropped"] == 1, "drop of the packet-in")

    switch.dataplane.on_packet_in(lambda frame: to_cpu.append(frame) or True)  # type: ignore[func-returns-value]
    left.send(ethernet(b"up"))
    eventually(lambda: to_cpu == [ethernet(b"up")], "packet-in")
    switch.dataplane.inject(ethernet(b"down"))
    assert right.receive() == ethernet(b"down")
    assert switch.counts("switch")["packet_ins"] == 1
    assert switch.counts("switch")["packet_outs"] == 1


@contextmanager
def blocked(switch: Switch) -> Iterator[None]:
    """The data plane does nothing meanwhile."""
    held, go_on = threading.Event(), threading.Event()

    def block() -> None:
        held.set()
        go_on.wait(DEADLINE_S)

    blocker = threading.Thread(target=lambda: switch.dataplane.run(block, timeout=DEADLINE_S))
    blocker.start()
    try:
        assert held.wait(DEADLINE_S)
        yield
    finally:
        go_on.set()
        blocker.join(DEADLINE_S)


def test_packet_out_limits(make_switch: Callable[..., Switch], tmp_path: Path) -> None:
    switch = make_switch(cpu_port=255)
    with pytest.raises(P4RuntimeError, match="2049 bytes") as caught:
        switch.dataplane.inject(bytes(MAX_FRAME_BYTES + 1))
    assert caught.value.code == code_pb2.INVALID_ARGUMENT
    with blocked(switch):
        for _ in range(1024):
            switch.dataplane.inject(ethernet())
        with pytest.raises(P4RuntimeError, match="1024 packet-outs wait already") as caught:
            switch.dataplane.inject(ethernet())
    assert caught.value.code == code_pb2.RESOURCE_EXHAUSTED
    eventually(lambda: switch.counts("switch")["packet_outs"] == 1024, "injection of the rest")


def test_packet_out_without_a_cpu_port(make_switch: Callable[..., Switch]) -> None:
    with pytest.raises(P4RuntimeError, match="without a CPU port") as caught:
        make_switch().dataplane.inject(ethernet())
    assert caught.value.code == code_pb2.FAILED_PRECONDITION


def test_requests_run_in_the_data_planes_thread(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch()
    assert switch.dataplane.run(lambda: threading.current_thread().name) == "dataplane"
    with pytest.raises(KeyError, match="mine"):
        switch.dataplane.run(lambda: {}["mine"])


def test_a_request_given_up_is_not_carried_out_later(make_switch: Callable[..., Switch]) -> None:
    switch = make_switch()
    done: list[str] = []
    with (
        blocked(switch),
        pytest.raises(P4RuntimeError, match="did not answer within 0 s") as caught,
    ):
        switch.dataplane.run(lambda: done.append("late"), timeout=0.1)
    assert caught.value.code == code_pb2.UNAVAILABLE
    switch.dataplane.run(lambda: done.append("after"))
    assert done == ["after"]


def test_a_busy_port_does_not_starve_another(make_switch: Callable[..., Switch]) -> None:
    busy = threading.Event()
    switch = make_switch(lambda port, frame: [(2, frame)] if port == 2 else [])
    left, right = switch.plug(1), switch.plug(2)

    def flood() -> None:
        left.socket.setblocking(False)
        while not busy.is_set():
            try:
                left.send(ethernet(bytes(1000)))
            except BlockingIOError:  # noqa: PERF203
                time.sleep(0)

    flooder = threading.Thread(target=flood)
    flooder.start()
    try:
        eventually(lambda: switch.counts("port 1")["rx_frames"] > 1000, "flood")
        for i in range(20):
            right.send(ethernet(bytes([i])))
            assert right.receive() == ethernet(bytes([i]))
    finally:
        busy.set()
        flooder.join(DEADLINE_S)


# -- Captures ------------------------------------------------------------------------------------


def test_capture_has_both_directions(make_switch: Callable[..., Switch], tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    before = time.time()
    switch = make_switch(capture_dir=captures)
    left, right = switch.plug(1), switch.plug(2)
    left.send(ethernet(b"east"))
    assert right.receive() == ethernet(b"east")
    right.send(ethernet(b"west"))
    assert left.receive() == ethernet(b"west")
    switch.close()
    for number in (1, 2):
        packets = rdpcap(str(captures / f"port{number}.pcap"))
        assert all(isinstance(packet, Ether) for packet in packets)
        assert [bytes(packet) for packet in packets] == [ethernet(b"east"), ethernet(b"west")]
        assert all(before <= float(packet.time) <= time.time() for packet in packets)


def test_capture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "p1.sock"
    capture_dir, spec = tmp_path / "file" / "sub", PortSpec(1, UnixPlace(path))
    with pytest.raises(PortError, match=r"port1\.pcap"):
        UnixPort(spec, Captures(capture_dir))
    assert not path.exists()


# -- Interfaces ----------------------------------------------------------------------------------


def test_an_interface_that_does_not_exist_is_named() -> None:
    with pytest.raises(PortError, match=r"port 1=nosuchif0: (there is no interface|.*root)"):
        PacketPort(PortSpec(1, InterfacePlace("nosuchif0")))


@pytest.fixture
def veth() -> Iterator[tuple[str, str]]:
    """A veth pair, up and silent; (the switch's end, the test's end)."""
    with veth_pair(f"p4r{os.getpid()}a", f"p4r{os.getpid()}b") as pair:
        yield pair


@pytest.fixture
def wire(veth: tuple[str, str]) -> Iterator[socket.socket]:
    with on_wire(veth[1]) as sock:
        yield sock


class InterfaceSwitch:
    """One port on an interface, one on a Unix socket, joined by a wire."""

    def __init__(self, interface: str, path: Path) -> None:
        specs = [PortSpec(1, InterfacePlace(interface)), PortSpec(2, UnixPlace(path))]
        self.dataplane = open_data_plane(specs)
        self.packet_port, self.unix_port = (self.dataplane.ports[n] for n in (1, 2))
        self.dataplane.start()
        self.dataplane.run(lambda: self.dataplane.install(Program(cable)))  # type: ignore[arg-type]
        self.peer = Peer(path)
        eventually(lambda: self.unix_port.is_up, "port 2 up")

    def close(self) -> None:
        self.peer.close()
        self.dataplane.stop()


@pytest.fixture
def interface_switch(veth: tuple[str, str], tmp_path: Path) -> Iterator[InterfaceSwitch]:
    switch = InterfaceSwitch(veth[0], tmp_path / "p2.sock")
    yield switch
    switch.close()


@pytest.mark.root
def test_interface_passes_frames_both_ways(
    interface_switch: InterfaceSwitch, wire: socket.socket
) -> None:
    # To a MAC address that is nobody's: the port must be promiscuous.
    wire.send(ethernet(b"in", dst="02:99:99:99:99:99"))
    assert interface_switch.peer.receive() == ethernet(b"in", dst="02:99:99:99:99:99")
    for i in range(100):
        interface_switch.peer.send(ethernet(bytes([i])))
    assert [read_wire(wire) for _ in range(100)] == [ethernet(bytes([i])) for i in range(100)]
    # What the port sent does not come back in.
    interface_switch.peer.expect_nothing()
    counts = interface_switch.dataplane.counts()["port 1"]
    assert (counts["rx_frames"], counts["tx_frames"]) == (1, 100)
    assert counts["rx_overrun"] == 0


@pytest.mark.root
def test_interface_takes_a_steady_stream(
    interface_switch: InterfaceSwitch, wire: socket.socket
) -> None:
    """Of which the loop in C takes several frames per look; no more than wait for a slow peer."""
    frames = [ethernet(i.to_bytes(4, "big") * 200) for i in range(QUEUE_FRAMES)]

    def send() -> None:
        for frame in frames:
            wire.send(frame)

    sender = threading.Thread(target=send)
    sender.start()
    assert [interface_switch.peer.receive() for _ in frames] == frames
    sender.join(DEADLINE_S)
    counts = interface_switch.dataplane.counts()["port 1"]
    assert (counts["rx_frames"], counts["rx_overrun"]) == (len(frames), 0)


@pytest.mark.root
def test_interface_keeps_vlan_tags(interface_switch: InterfaceSwitch, wire: socket.socket) -> None:
    # The kernel takes the tag out of what it hands to packet sockets.
    tagged = ethernet(b"\x60\x2a\x88\xb5tagged", ethertype=0x8100)
    wire.send(tagged)
    wire.send(ethernet(b"plain"))
    assert interface_switch.peer.receive() == tagged
    assert interface_switch.peer.receive() == ethernet(b"plain")


@pytest.mark.root
def test_interface_drops_what_exceeds_its_mtu(
    interface_switch: InterfaceSwitch, wire: socket.socket
) -> None:
    interface_switch.peer.send(ethernet(bytes(1800)))
    interface_switch.peer.send(ethernet(bytes(1500)))
    assert read_wire(wire) == ethernet(bytes(1500))
    assert interface_switch.dataplane.counts()["port 1"]["tx_too_long"] == 1


@pytest.mark.root
def test_interface_may_go_down_and_up(
    interface_switch: InterfaceSwitch,
    veth: tuple[str, str],
    wire: socket.socket,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    ip("link", "set", veth[0], "down")
    assert not interface_switch.packet_port.is_up
    eventually(lambda: "is down" in caplog.text, "report")
    interface_switch.peer.send(ethernet(b"lost"))
    eventually(
        lambda: interface_switch.dataplane.counts()["port 1"]["tx_down"] == 1, "count of the drop"
    )
    ip("link", "set", veth[0], "up")
    eventually(lambda: interface_switch.packet_port.is_up, "interface up")
    until_up(*veth)
    interface_switch.peer.send(ethernet(b"found"))
    while read_wire(wire) != ethernet(b"found"):
        pass
    wire.send(ethernet(b"back"))
    assert interface_switch.peer.receive() == ethernet(b"back")


def test_timers_run_without_frames() -> None:
    program = Program(cable)
    called: list[str] = []
    done = threading.Event()

    def late() -> None:
        called.append("late")
        done.set()

    program.timers.call_after(30_000_000, late)
    program.timers.call_after(1_000_000, lambda: called.append("early"))
    dataplane = open_data_plane([])
    dataplane.start()
    try:
        dataplane.run(lambda: dataplane.install(program))  # type: ignore[arg-type]
        assert done.wait(DEADLINE_S), "the data plane did not make the calls"
    finally:
        dataplane.stop()
    assert called == ["early", "late"]
