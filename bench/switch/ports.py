# SPDX-License-Identifier: Apache-2.0
"""Frames per second through the ports of a real `p4reduce-switch` process.

Two loads, both closed loops (a fixed number of frames is under way), over Unix-socket ports and,
as root, over interfaces (veth pairs):

- forward: frames of a host that the bridge table knows, from port 1 to port 2;
- contribute: ranks that sum blocks of 256 int32 lanes, each sending the next round of a slot when
  it has the result of the last.

Over Unix-socket ports the frames go one per message ("unix") or through shared memory ("shared").
Each is measured with the switch as machine code and in Python, one right after the other. Where
BMv2 is installed, the same load runs against it over the same veth pairs.

This process is the load; the switch has a core for itself where there are two. Its CPU time is
taken from /proc, so the cost of a frame is known even where the load is the bottleneck.

    python -m bench.switch.ports [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from p4reduce.wire import format as wire
from p4reduce.wire.frames import HEADER
from p4reduce_common.grpc_channels import open_channel
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.bmv2 import unavailable as bmv2_unavailable
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC
from p4reduce_native.link import Link, LinkKind, offers

from bench.machine import describe, machine

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled"
DEADLINE_S = 60.0
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
ROUND_OFFSET = HEADER.fields["round"][1]  # type: ignore[index]
SLOT_OFFSET = HEADER.fields["slot"][1]  # type: ignore[index]
KIND_OFFSET = wire.AGG_OFFSET
JOB = 1
GROUP = 2
BMV2 = "BMv2"


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        frames_per_second: frames that entered the switch.
        switch_us: the switch process's CPU time for each of them, in microseconds.
        switch_load: the share of one core that the switch used, 0 to 1.
    """

    name: str
    frame_bytes: int
    frames_per_second: float
    switch_us: float
    switch_load: float


class UnixWires:
    """Unix-socket ports."""

    name = "unix"
    kind = LinkKind.SINGLE

    def __init__(self, directory: Path, ports: int) -> None:
        self._paths = [directory / f"port{n}.sock" for n in range(1, ports + 1)]
        self.ports = [f"unix:{path}" for path in self._paths]

    def plug(self) -> list[Link]:
        """A peer on each port."""
        peers = []
        for path in self._paths:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            peer.connect(str(path))
            peers.append(Link.connect(peer, offers(self.kind), DEADLINE_S))
        return peers

    def close(self) -> None:
        """The switch removes the sockets."""


class SharedWires(UnixWires):
    """Unix-socket ports, frames in shared memory."""

    name = "shared"
    kind = LinkKind.SHARED


class VethWires:
    """Interface ports: the near ends of veth pairs, which take root to make."""

    name = "veth"

    def __init__(self, directory: Path, ports: int) -> None:
        self._pairs = [(f"p4b{os.getpid()}n{n}", f"p4b{os.getpid()}f{n}") for n in range(ports)]
        self.ports = [near for near, _ in self._pairs]
        for near, far in self._pairs:
            _ip("link", "add", near, "type", "veth", "peer", "name", far)
            for name in (near, far):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")
                _ip("link", "set", name, "up")

    def plug(self) -> list[Link]:
        peers = []
        for _, far in self._pairs:
            peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            peer.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
            peer.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
            peer.bind((far, 3))  # ETH_P_ALL
            peer.setblocking(False)
            peers.append(self._link(peer))
        return peers

    def _link(self, peer: socket.socket) -> Link:
        return Link.accept(peer, 0)

    def close(self) -> None:
        for near, _ in self._pairs:
            _ip("link", "del", near)


class OffloadWires(VethWires):
    """Interface ports, many frames per packet."""

    name = "offload"

    def __init__(self, directory: Path, ports: int) -> None:
        super().__init__(directory, ports)
        self.ports = [f"{near},offload" for near in self.ports]

    def _link(self, peer: socket.socket) -> Link:
        with peer:
            return Link.over_interface(peer, peer_understands=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=DEADLINE_S)


Wires = UnixWires | VethWires


class Embedded:
    """The process of an embedded switch."""

    def __init__(self, wires: Wires, engine: str) -> None:
        ready_read, ready_write = os.pipe()
        arguments = [f"--port={n}={where}" for n, where in enumerate(wires.ports, start=1)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "p4reduce_switch",
                "--grpc-addr",
                "127.0.0.1:0",
                "--ready-fd",
                str(ready_write),
                "--log-level",
                "warning",
                *arguments,
                "--engine",
                engine,
            ],
            pass_fds=[ready_write],
            stdout=subprocess.DEVNULL,
        )
        os.close(ready_write)
        with os.fdopen(ready_read) as stream:
            poll = select.poll()
            poll.register(stream, select.POLLIN)
            if not poll.poll(DEADLINE_S * 1000):
                raise TimeoutError(f"the switch was not ready within {DEADLINE_S} s")
            line = stream.readline()
        if not line:
            raise RuntimeError("the switch did not start; its messages are above")
        self.pid = self._process.pid
        self.address = json.loads(line)["grpc_addr"]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(DEADLINE_S)


class Switch:
    """A switch, and the controller of it."""

    def __init__(self, wires: Wires, pid: int, address: str) -> None:
        self._wires = wires
        self._pid = pid
        self._closed = threading.Event()
        self._channel = open_channel(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._stream: Any = None
        self._ids: dict[str, Any] = {}
        self._set_pipeline()

    def _set_pipeline(self) -> None:
        hello = p4rt.StreamMessageRequest(arbitration={"device_id": 1, "election_id": {"low": 1}})

        def requests() -> Iterator[Any]:
            yield hello
            self._closed.wait()

        self._stream = self._stub.StreamChannel(requests())
        next(self._stream)
        request = p4rt.SetForwardingPipelineConfigRequest(
            device_id=1, election_id={"low": 1}, action="VERIFY_AND_COMMIT"
        )
        text = (COMPILED / "p4reduce.p4info.txtpb").read_text()
        p4info = text_format.Parse(text, request.config.p4info)
        request.config.p4_device_config = (COMPILED / "p4reduce.json").read_bytes()
        self._stub.SetForwardingPipelineConfig(request, timeout=DEADLINE_S)
        for item in (*p4info.tables, *p4info.actions):
            self._ids[item.preamble.name] = item.preamble.id

    def insert(self, table: str, key: list[int], action: str, *args: int) -> None:
        """Insert an entry into an exact-match table."""
        request = p4rt.WriteRequest(device_id=1, election_id={"low": 1})
        update = request.updates.add(type=p4rt.Update.INSERT)
        entry = update.entity.table_entry
        entry.table_id = self._ids[table]
        for i, value in enumerate(key, start=1):
            entry.match.add(field_id=i, exact={"value": _bytes(value)})
        entry.action.action.action_id = self._ids[action]
        for i, value in enumerate(args, start=1):
            entry.action.action.params.add(param_id=i, value=_bytes(value))
        self._stub.Write(request, timeout=DEADLINE_S)

    def insert_group(self, group_id: int, replicas: list[tuple[int, int]]) -> None:
        request = p4rt.WriteRequest(device_id=1, election_id={"low": 1})
        update = request.updates.add(type=p4rt.Update.INSERT)
        group = update.entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = group_id
        for port, instance in replicas:
            group.replicas.add(egress_port=port, instance=instance)
        self._stub.Write(request, timeout=DEADLINE_S)

    def plug(self) -> list[Link]:
        """A peer on each port."""
        peers = self._wires.plug()
        time.sleep(0.5)  # for the switch to take them in
        return peers

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._closed.set()
        self._stream.cancel()
        self._channel.close()


def _bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


@contextmanager
def running(case: Case, ports: int) -> Iterator[Switch]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as cleanup:
        wires = case.wires(Path(directory), ports)
        cleanup.callback(wires.close)
        if case.engine == BMV2:
            ports_by_number = dict(enumerate(wires.ports, start=1))
            bmv2 = cleanup.enter_context(Bmv2Switch(Path(directory), ports_by_number))
            assert bmv2.pid is not None
            switch = Switch(wires, bmv2.pid, bmv2.grpc_address)
        else:
            embedded = Embedded(wires, case.engine)
            cleanup.callback(embedded.stop)
            switch = Switch(wires, embedded.pid, embedded.address)
        cleanup.callback(switch.close)
        yield switch


@dataclass(frozen=True)
class Case:
    """What is measured: over which wires, by which engine, for how long."""

    wires: type[Wires]
    engine: str
    seconds: float

    def measure(
        self, switch: Switch, what: str, frame_bytes: int, load: Callable[[int], int]
    ) -> Result:
        """Call `load` with nanoseconds to run; it returns how many frames the switch took in."""
        _checked(load(int(min(0.5, self.seconds / 4) * 1e9)))  # to warm up
        cpu, began = switch.cpu_seconds(), time.perf_counter()
        frames = _checked(load(int(self.seconds * 1e9)))
        elapsed, used = time.perf_counter() - began, switch.cpu_seconds() - cpu
        name = f"{self.wires.name}, {self.engine}: {what}"
        return Result(name, frame_bytes, frames / elapsed, used / frames * 1e6, used / elapsed)


def _checked(count: int) -> int:
    if count < 0:
        raise RuntimeError(f"the load ended: {os.strerror(-count)}; frames were lost")
    return count


@functools.cache
def _load() -> Any:
    """The far ends in C (`load.c`)."""
    sources = [Path(__file__).with_name("load.c"), *sorted((CSRC / "link").glob("*.c"))]
    library = ctypes.CDLL(str(compile_shared("switch_load", sources, include=[CSRC])))
    for name in ("bench_forward", "bench_contribute"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def _pointers(links: list[Link]) -> Any:
    return (ctypes.c_void_p * len(links))(*(link.pointer for link in links))


def _send(link: Link, frames: list[bytes]) -> None:
    while frames:
        try:
            frames = frames[link.send(frames[:64]) :]
        except BlockingIOError:  # noqa: PERF203
            link.wait(-1, DEADLINE_S, writable=True)


def bench_forward(case: Case, frame_bytes: int, window: int) -> Result:
    """Frames from port 1 to port 2, by the bridge table."""
    with running(case, 2) as switch:
        switch.insert("bridge", [0x020000000002], "forward", 2)
        links = switch.plug()
        frame = bytes.fromhex("020000000002 020000000001 88b5").ljust(frame_bytes, b"\x5a")
        _send(links[0], [frame] * window)

        def load(nanoseconds: int) -> int:
            count: int = _load().bench_forward(
                _pointers(links), frame, frame_bytes, ctypes.c_uint64(nanoseconds)
            )
            return count

        return case.measure(switch, f"forward, {window} under way", frame_bytes, load)


def bench_contribute(case: Case, ranks: int, slots: int) -> Result:
    """All ranks contribute whole blocks to all slots; results are multicast."""
    length = wire.PAYLOAD_FRAME_BYTES
    with running(case, ranks) as switch:
        _admit(switch, ranks, slots)
        links = switch.plug()
        frames = [_contribution(rank, slot) for rank in range(ranks) for slot in range(slots)]
        rows = ctypes.create_string_buffer(b"".join(frames), ranks * slots * length)
        layout = (ctypes.c_uint32 * 3)(KIND_OFFSET, SLOT_OFFSET, ROUND_OFFSET)
        for rank in range(ranks):
            _send(links[rank], frames[rank * slots : (rank + 1) * slots])

        def load(nanoseconds: int) -> int:
            count: int = _load().bench_contribute(
                _pointers(links),
                ranks,
                rows,
                length,
                length,
                slots,
                layout,
                ctypes.c_uint64(nanoseconds),
            )
            return count

        return case.measure(switch, f"contribute, {ranks} ranks, {slots} slots", length, load)


def _worker(rank: int) -> wire.Endpoint:
    return wire.Endpoint(f"02:00:00:00:01:{rank + 1:02x}", f"10.77.0.{rank + 1}", 49152 + rank)


def _contribution(rank: int, slot: int) -> bytes:
    header = wire.header_bytes(
        kind=wire.FrameKind.CONTRIBUTE,
        flags=int(wire.Flag.PAYLOAD),
        rank=rank,
        job=JOB,
        slot=slot,
        next_exponent=127,
        round=0,
        block=slot,
        next_block=slot + 1,
        tag=1,
    )
    return wire.template(_worker(rank), SWITCH, header, bytes(range(256)) * 4)


def _admit(switch: Switch, ranks: int, slots: int) -> None:
    switch.insert("own_address", [_address(SWITCH.ip)], "is_own", _mac(SWITCH.mac))
    everybody = (1 << ranks) - 1
    for rank in range(ranks):
        worker = _worker(rank)
        switch.insert(
            "admission",
            [rank + 1, _address(worker.ip), JOB, rank],
            "grant",
            1 << rank,
            everybody,
            0,
            slots,
            GROUP,
            GROUP,
        )
        switch.insert(
            "delivery",
            [rank + 1],
            "whole",
            _mac(worker.mac),
            _address(worker.ip),
            worker.udp_port,
            rank,
        )
    switch.insert_group(GROUP, [(rank + 1, rank + 1) for rank in range(ranks)])


def _address(text: str) -> int:
    return int.from_bytes(socket.inet_aton(text), "big")


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def _runs(seconds: float) -> Iterator[Callable[[], Result]]:
    empty, full = wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES
    wires: list[type[Wires]] = [UnixWires, SharedWires]
    if os.geteuid() == 0:
        wires += [VethWires, OffloadWires]
    engines = ["native", "python"]
    if bmv2_unavailable() is None:
        engines.append(BMV2)
    for kind, engine in itertools.product(wires, engines):
        if kind is OffloadWires and engine != "native":
            continue  # the others have no offload
        if kind is not VethWires and engine == BMV2:
            continue  # it has no other ports
        case = Case(kind, engine, seconds)
        yield partial(bench_forward, case, empty, 1)
        yield partial(bench_contribute, case, 4, 32)
        if engine != BMV2:  # it queues 64 frames for a port and drops what comes on top
            yield partial(bench_forward, case, full, 256)
            yield partial(bench_contribute, case, 4, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    try:
        _load()
    except NativeUnavailableError as error:
        print(f"the load is machine code: {error}", file=sys.stderr)
        raise SystemExit(CANNOT_RUN) from None
    host = machine()
    print(describe(host))
    print(f"{'':44} {'bytes':>6} {'frames/s':>10} {'us/frame':>9} {'core':>6}")
    results = []
    for run in _runs(options.seconds):
        result = run()
        results.append(result)
        print(
            f"{result.name:44} {result.frame_bytes:6d} {result.frames_per_second:10,.0f} "
            f"{result.switch_us:9.2f} {result.switch_load:6.0%}",
            flush=True,
        )
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
