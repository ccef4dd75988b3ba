# SPDX-License-Identifier: Apache-2.0
"""Frames per second through the ports of a real `p4reduce-switch` process.

Two loads, both closed loops (so many frames are under way, never more), over Unix-socket ports and,
as root, over interfaces (veth pairs):

- forward: frames of a host that the bridge table knows, from port 1 to port 2;
- contribute: ranks that sum blocks of 256 int32 lanes, each sending the next round of a slot when
  it has the result of the last.

This process is the load; the switch has a core for itself where there are two. Its CPU time is
taken from /proc, so the cost of a frame is known even where the load is the bottleneck.

    python -m bench.switch.ports [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2 as p4rt
from p4.v1 import p4runtime_pb2_grpc
from p4reduce.wire import format as wire
from p4reduce_switch.ports.batch import BATCH, FrameBatches
from p4reduce_switch.ports.port import PortStats

COMPILED = Path(__file__).resolve().parents[2] / "p4src" / "compiled"
DEADLINE_S = 30.0
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
ROUND_OFFSET = wire.HEADER.fields["round"][1]  # type: ignore[index]
SLOT_OFFSET = wire.HEADER.fields["slot"][1]  # type: ignore[index]
KIND_OFFSET = wire.AGG_OFFSET
JOB = 1
GROUP = 2


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

    def __init__(self, directory: Path, ports: int) -> None:
        self._paths = [directory / f"port{n}.sock" for n in range(1, ports + 1)]
        self.ports = [f"unix:{path}" for path in self._paths]

    def plug(self) -> list[socket.socket]:
        """A peer on each port."""
        peers = []
        for path in self._paths:
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            peer.connect(str(path))
            peers.append(peer)
        return peers

    def close(self) -> None:
        """The switch removes the sockets."""


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

    def plug(self) -> list[socket.socket]:
        peers = []
        for _, far in self._pairs:
            peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            peer.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
            peer.setsockopt(263, 23, 1)  # SOL_PACKET, PACKET_IGNORE_OUTGOING
            peer.bind((far, 3))  # ETH_P_ALL
            peers.append(peer)
        return peers

    def close(self) -> None:
        for near, _ in self._pairs:
            _ip("link", "del", near)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=DEADLINE_S)


Wires = UnixWires | VethWires


class Switch:
    """A switch process, and the controller of it."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        ready_read, ready_write = os.pipe()
        arguments = [f"--port={n}={where}" for n, where in enumerate(wires.ports, start=1)]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "p4reduce_switch", "--grpc-addr", "127.0.0.1:0"),
                *("--ready-fd", str(ready_write), "--log-level", "warning", *arguments),
            ],
            pass_fds=[ready_write],
            stdout=subprocess.DEVNULL,
        )
        os.close(ready_write)
        with os.fdopen(ready_read) as stream:
            if not select.select([stream], [], [], DEADLINE_S)[0]:
                raise TimeoutError(f"the switch was not ready within {DEADLINE_S} s")
            line = stream.readline()
        if not line:
            raise RuntimeError("the switch did not start; its messages are above")
        self._channel = grpc.insecure_channel(json.loads(line)["grpc_addr"])
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._stream: Any = None
        self._ids: dict[str, Any] = {}
        self._set_pipeline()

    def _set_pipeline(self) -> None:
        hello = p4rt.StreamMessageRequest(arbitration={"device_id": 1, "election_id": {"low": 1}})

        def requests() -> Iterator[Any]:
            yield hello
            while self.process.poll() is None:
                time.sleep(0.2)

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

    def plug(self) -> list[socket.socket]:
        """A peer on each port, which does not block."""
        peers = self._wires.plug()
        for peer in peers:
            peer.setblocking(False)
        time.sleep(0.1)  # for the switch to take them in
        return peers

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)


def _bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


@contextmanager
def running(kind: type[Wires], ports: int) -> Iterator[Switch]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as cleanup:
        wires = kind(Path(directory), ports)
        cleanup.callback(wires.close)
        switch = Switch(wires)
        cleanup.callback(switch.close)
        yield switch


class Load:
    """The far ends of the ports: sends and receives in batches."""

    def __init__(self, peers: list[socket.socket]) -> None:
        self._peers = peers
        self._batches = FrameBatches()
        self._stats = PortStats()
        self._epoll = select.epoll()
        for peer in peers:
            self._epoll.register(peer, select.EPOLLIN)
        self._index = {peer.fileno(): i for i, peer in enumerate(peers)}

    def send(self, peer: int, frames: list[bytes]) -> None:
        for start in range(0, len(frames), BATCH):
            turn = frames[start : start + BATCH]
            if self._batches.send(self._peers[peer].fileno(), turn) != len(turn):
                raise RuntimeError("the switch does not read: more frames under way than it queues")

    def receive(self) -> Iterator[tuple[int, list[bytes]]]:
        """What is there on each peer, waiting for the first."""
        ready = self._epoll.poll(DEADLINE_S)
        if not ready:
            raise TimeoutError(f"no frame came back within {DEADLINE_S} s: some were lost")
        for fd, _ in ready:
            yield self._index[fd], self._batches.receive(fd, self._stats, gone=lambda: False)[0]


def measure(
    switch: Switch, name: str, frame_bytes: int, seconds: float, turn: Callable[[], int]
) -> Result:
    """Run `turn`, which returns how many frames the switch took in, for some seconds."""
    warm_up = time.perf_counter() + min(0.5, seconds / 4)
    while time.perf_counter() < warm_up:
        turn()
    frames = 0
    cpu, began = switch.cpu_seconds(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        frames += turn()
    elapsed, used = time.perf_counter() - began, switch.cpu_seconds() - cpu
    return Result(name, frame_bytes, frames / elapsed, used / frames * 1e6, used / elapsed)


def bench_forward(kind: type[Wires], frame_bytes: int, window: int, seconds: float) -> Result:
    """Frames from port 1 to port 2, by the bridge table."""
    with running(kind, 2) as switch:
        switch.insert("bridge", [0x020000000002], "forward", 2)
        load = Load(switch.plug())
        frame = bytes.fromhex("020000000002 020000000001 88b5").ljust(frame_bytes, b"\x5a")
        load.send(0, [frame] * window)

        def turn() -> int:
            count = sum(len(frames) for _, frames in load.receive())
            load.send(0, [frame] * count)
            return count

        return measure(
            switch, f"{kind.name}: forward, {window} under way", frame_bytes, seconds, turn
        )


def bench_contribute(kind: type[Wires], ranks: int, slots: int, seconds: float) -> Result:
    """All ranks contribute whole blocks to all slots; results are multicast."""
    with running(kind, ranks) as switch:
        _admit(switch, ranks, slots)
        load = Load(switch.plug())
        contributions = [
            [bytearray(_contribution(rank, slot)) for slot in range(slots)] for rank in range(ranks)
        ]
        for rank in range(ranks):
            load.send(rank, [bytes(frame) for frame in contributions[rank]])

        def turn() -> int:
            count = 0
            for rank, frames in load.receive():
                following = []
                for frame in frames:
                    if frame[KIND_OFFSET] & 0xF != wire.Kind.RESULT:
                        raise RuntimeError(f"not a RESULT: {frame[: wire.PAYLOAD_OFFSET].hex()}")
                    slot = int.from_bytes(frame[SLOT_OFFSET : SLOT_OFFSET + 2], "big")
                    round_ = int.from_bytes(frame[ROUND_OFFSET : ROUND_OFFSET + 4], "big")
                    own = contributions[rank][slot]
                    own[ROUND_OFFSET : ROUND_OFFSET + 4] = (round_ + 1).to_bytes(4, "big")
                    following.append(bytes(own))
                load.send(rank, following)
                count += len(following)
            return count

        name = f"{kind.name}: contribute, {ranks} ranks, {slots} slots"
        return measure(switch, name, wire.PAYLOAD_FRAME_BYTES, seconds, turn)


def _worker(rank: int) -> wire.Endpoint:
    return wire.Endpoint(f"02:00:00:00:01:{rank + 1:02x}", f"10.77.0.{rank + 1}", 49152 + rank)


def _contribution(rank: int, slot: int) -> bytes:
    header = wire.Aggregation(
        kind=wire.Kind.CONTRIBUTE,
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
            *(1 << rank, everybody, 0, slots, GROUP, GROUP),
        )
        switch.insert(
            "delivery",
            [rank + 1],
            "whole",
            *(_mac(worker.mac), _address(worker.ip), worker.udp_port, rank),
        )
    switch.insert_group(GROUP, [(rank + 1, rank + 1) for rank in range(ranks)])


def _address(text: str) -> int:
    return int.from_bytes(socket.inet_aton(text), "big")


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    host = machine()
    print(f"{host['cpu']}, {host['cores']} cores, Linux {host['kernel']}, Python {host['python']}")
    print(f"{'':38} {'bytes':>6} {'frames/s':>10} {'us/frame':>9} {'core':>6}")
    results = []
    empty, full = wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES
    runs: list[Callable[[], Result]] = []
    for kind in (UnixWires, VethWires) if os.geteuid() == 0 else (UnixWires,):
        runs += [
            partial(bench_forward, kind, empty, 1, options.seconds),
            partial(bench_forward, kind, empty, 256, options.seconds),
            partial(bench_forward, kind, full, 256, options.seconds),
            partial(bench_contribute, kind, 2, 32, options.seconds),
            partial(bench_contribute, kind, 4, 32, options.seconds),
            partial(bench_contribute, kind, 4, 128, options.seconds),
        ]
    for run in runs:
        result = run()
        results.append(result)
        print(
            f"{result.name:38} {result.frame_bytes:6d} {result.frames_per_second:10,.0f} "
            f"{result.switch_us:9.2f} {result.switch_load:6.0%}",
            flush=True,
        )
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
