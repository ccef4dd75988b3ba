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
taken from /proc, so the cost of a frame is known even where the load is the bottleneck:
`switch_us` for each frame that entered the switch, and `switch_load` as the share of one core.

    python -m bench.switch.ports [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from p4reduce.wire import format as wire
from p4reduce.wire.frames import HEADER
from p4reduce_controller.fabric.compiled_program import load_program
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.bmv2 import unavailable as bmv2_unavailable
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import DEVICE_ID, SwitchLauncher
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC
from p4reduce_native.link import Link, LinkKind, offers

from bench.measure import cpu_seconds
from bench.program import Option, Row, read_options, run, tell
from bench.switch.job import configure, contribution

DEADLINE_S = 60.0
ROUND_OFFSET = HEADER.fields["round"][1]  # type: ignore[index]
SLOT_OFFSET = HEADER.fields["slot"][1]  # type: ignore[index]
KIND_OFFSET = wire.AGG_OFFSET
BMV2 = "BMv2"


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


class Switch:
    """A switch that runs, and the controller of it."""

    def __init__(self, wires: Wires, launcher: SwitchLauncher) -> None:
        assert launcher.pid is not None
        self._wires, self.pid = wires, launcher.pid
        self.client = SwitchClient.connect(launcher.grpc_address, DEVICE_ID, 1)

    def plug(self) -> list[Link]:
        """A peer on each port."""
        peers = self._wires.plug()
        time.sleep(0.5)  # for the switch to take them in
        return peers


@contextmanager
def running(case: Case, ports: int) -> Iterator[Switch]:
    with run_directory() as directory, ExitStack() as cleanup:
        wires = case.wires(directory, ports)
        cleanup.callback(wires.close)
        numbered = dict(enumerate(wires.ports, start=1))
        launcher = (Bmv2Switch if case.engine == BMV2 else EmbeddedSwitch)(directory, numbered)
        if case.engine != BMV2:
            launcher.prefix = ["sh", "-c", f'exec "$@" --engine {case.engine}', "sh"]
        switch = Switch(wires, cleanup.enter_context(launcher))
        cleanup.callback(switch.client.close)
        yield switch


@dataclass(frozen=True)
class Case:
    """What is measured: over which wires, by which engine, for how long."""

    wires: type[Wires]
    engine: str
    seconds: float

    def measure(
        self, switch: Switch, what: str, frame_bytes: int, load: Callable[[int], int]
    ) -> Row:
        """Call `load` with nanoseconds to run; it returns how many frames the switch took in."""
        _checked(load(int(min(0.5, self.seconds / 4) * 1e9)))  # to warm up
        cpu, began = cpu_seconds(switch.pid), time.perf_counter()
        frames = _checked(load(int(self.seconds * 1e9)))
        elapsed, used = time.perf_counter() - began, cpu_seconds(switch.pid) - cpu
        return {
            "name": f"{self.wires.name}, {self.engine}: {what}",
            "frame_bytes": frame_bytes,
            "frames_per_second": frames / elapsed,
            "switch_us": used / frames * 1e6,
            "switch_load": used / elapsed,
        }


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


def bench_forward(case: Case, frame_bytes: int, window: int) -> Row:
    """Frames from port 1 to port 2, by the bridge table."""
    with running(case, 2) as switch:
        switch.client.set_pipeline(load_program())
        bridge = {"dst_mac": 0x020000000002}
        switch.client.insert("bridge", bridge, "forward", {"port": 2})
        links = switch.plug()
        frame = bytes.fromhex("020000000002 020000000001 88b5").ljust(frame_bytes, b"\x5a")
        _send(links[0], [frame] * window)

        def load(nanoseconds: int) -> int:
            count: int = _load().bench_forward(
                _pointers(links), frame, frame_bytes, ctypes.c_uint64(nanoseconds)
            )
            return count

        return case.measure(switch, f"forward, {window} under way", frame_bytes, load)


def bench_contribute(case: Case, ranks: int, slots: int) -> Row:
    """All ranks contribute whole blocks to all slots; results are multicast."""
    length, lanes = wire.PAYLOAD_FRAME_BYTES, bytes(range(256)) * 4
    with running(case, ranks) as switch:
        configure(switch.client, ranks, slots)
        links = switch.plug()
        frames = [
            contribution(rank, slot, 0, lanes, slots)
            for rank in range(ranks)
            for slot in range(slots)
        ]
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


def _runs(seconds: float) -> Iterator[Callable[[], Row]]:
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
    options = read_options(__doc__, seconds=Option(2.0, "for each measurement"))
    try:
        _load()
    except NativeUnavailableError as error:
        raise UnavailableError(f"the load is machine code: {error}") from None
    tell(options, (measure() for measure in _runs(options.seconds)))


if __name__ == "__main__":
    run(main)
