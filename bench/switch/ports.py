# SPDX-License-Identifier: Apache-2.0
"""Frames per second through the ports of a real `p4reduce-switch` process.

Two loads, both closed loops (a fixed number of frames is under way), over Unix-socket ports and,
as root, over interfaces (veth pairs):

- forward: frames of a host that the bridge table knows, from port 1 to port 2;
- contribute: ranks that sum blocks of 256 int32 lanes, each sending the next round of a slot when
  it has the result of the last, all lanes of which are checked.

Over Unix-socket ports the frames go one per message ("unix") or through shared memory ("shared").
Each is measured with the switch as machine code and in Python, one right after the other. Where
BMv2 is installed, the same load runs against it over the same veth pairs.

This process is the load; the switch has a core for itself where there are two. Its CPU time is
taken from /proc, so the cost of a frame is known even where the load is the bottleneck:
`switch_us` for each frame that entered the switch, and `switch_load` as the share of one core.
BMv2 parses, matches and sums in one thread: `busiest_thread_us`.

    python -m bench.switch.ports [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce.wire import format as wire
from p4reduce.wire.frames import HEADER
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks import namespaces
from p4reduce_lab.networks.veth import OFFLOADS, VethPorts, open_interface
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.processes.threads import thread_seconds
from p4reduce_lab.switches.bmv2 import Bmv2Switch
from p4reduce_lab.switches.bmv2 import unavailable as bmv2_unavailable
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import DEVICE_ID, SwitchLauncher
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC
from p4reduce_native.link import Link, LinkKind, offers

from bench.program import Option, Row, read_options, run, tell
from bench.switch.job import configure, contribution

DEADLINE_S = 60.0
# Where load.c finds the fields of a frame.
LAYOUT = (
    wire.AGG_OFFSET,
    HEADER.fields["slot"][1],  # type: ignore[index]
    HEADER.fields["round"][1],  # type: ignore[index]
    wire.PAYLOAD_OFFSET,
)
BLOCK = np.arange(256)
BMV2 = "BMv2"


@dataclass(frozen=True)
class Case:
    """A switch.

    Attributes:
        ports: "unix", "shared", "veth", or "offload": veth with many frames per packet.
        engine: "native", "python" or `BMV2`.
    """

    ports: str
    engine: str = "native"

    @contextmanager
    def running(self, count: int) -> Iterator[tuple[SwitchLauncher, SwitchClient, list[str]]]:
        """Start it with so many ports; give what controls it, and the ports' far ends."""
        with run_directory() as directory, ExitStack() as cleanup:
            near: Mapping[int, str]
            near = far = {n: f"unix:{directory}/port{n}.sock" for n in range(1, count + 1)}
            if self.ports in ("veth", "offload"):
                veths = cleanup.enter_context(VethPorts(count))
                near, far = veths.switch_side, dict(veths.worker_side)
            if self.ports == "offload":
                for name in (*near.values(), *far.values()):
                    namespaces.run(
                        ["ethtool", "-K", name, *(w for o in OFFLOADS for w in (o, "on"))]
                    )
                near = {port: f"{name},offload" for port, name in near.items()}
            launcher = (Bmv2Switch if self.engine == BMV2 else EmbeddedSwitch)(directory, near)
            if self.engine != BMV2:
                launcher.prefix = ["sh", "-c", f'exec "$@" --engine {self.engine}', "sh"]
            cleanup.enter_context(launcher)
            client = SwitchClient.connect(launcher.grpc_address, DEVICE_ID, 1)
            cleanup.callback(client.close)
            yield launcher, client, list(far.values())

    def plug(self, ends: list[str]) -> list[Link]:
        """Open the far ends of ports."""
        links = []
        for end in ends:
            if end.startswith("unix:"):
                kind = LinkKind.SHARED if self.ports == "shared" else LinkKind.SINGLE
                peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
                peer.connect(end.removeprefix("unix:"))
                links.append(Link.connect(peer, offers(kind), DEADLINE_S))
                continue
            with open_interface(end) as interface:
                interface.setblocking(False)
                if self.ports == "offload":
                    links.append(Link.over_interface(interface, peer_understands=True))
                else:
                    links.append(Link.over_packets(interface))
        time.sleep(0.5)  # for the switch to take them in
        return links

    def measure(
        self,
        switch: SwitchLauncher,
        what: str,
        frame_bytes: int,
        seconds: float,
        load: Callable[[ctypes.c_uint64], int],
    ) -> Row:
        """Call `load` with nanoseconds to run; it returns how many frames the switch took in."""

        def count(some: float) -> int:
            came = load(ctypes.c_uint64(int(some * 1e9)))
            if came < 0:
                raise RuntimeError(f"the load ended: {os.strerror(-came)}; frames were lost")
            return came

        assert switch.pid is not None
        count(min(0.5, seconds / 4))  # to warm up
        before, began = thread_seconds(switch.pid), time.perf_counter()
        frames = count(seconds)
        elapsed = time.perf_counter() - began
        used = [
            spent - before.get(thread, 0.0) for thread, spent in thread_seconds(switch.pid).items()
        ]
        return {
            "name": f"{self.ports}, {self.engine}: {what}",
            "frame_bytes": frame_bytes,
            "frames_per_second": frames / elapsed,
            "switch_us": sum(used) / frames * 1e6,
            "switch_load": sum(used) / elapsed,
            "busiest_thread_us": max(used) / frames * 1e6,
        }


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


def forward(case: Case, seconds: float, frame_bytes: int, window: int) -> Row:
    """Frames from port 1 to port 2, by the bridge table."""
    with case.running(2) as (switch, client, ends):
        client.set_pipeline(load_program())
        client.insert("bridge", {"dst_mac": 0x020000000002}, "forward", {"port": 2})
        links = case.plug(ends)
        frame = bytes.fromhex("020000000002 020000000001 88b5").ljust(frame_bytes, b"\x5a")
        _send(links[0], [frame] * window)
        load = partial(_load().bench_forward, _pointers(links), frame, frame_bytes)
        return case.measure(switch, f"forward, {window} under way", frame_bytes, seconds, load)


def contribute(
    case: Case, seconds: float, ranks: int, slots: int, program: PipelineProgram | None = None
) -> Row:
    """All ranks contribute whole blocks to all slots; results are multicast.

    `program`: in place of the one of today, with the same tables.
    """
    length, lanes = wire.PAYLOAD_FRAME_BYTES, BLOCK.astype(">i4").tobytes()
    with case.running(ranks) as (switch, client, ends):
        configure(client, ranks, slots, program)
        links = case.plug(ends)
        frames = [
            contribution(rank, slot, 0, lanes, slots)
            for rank in range(ranks)
            for slot in range(slots)
        ]
        rows = ctypes.create_string_buffer(b"".join(frames), ranks * slots * length)
        for rank in range(ranks):
            _send(links[rank], frames[rank * slots : (rank + 1) * slots])
        total = (ranks * BLOCK).astype(">i4").tobytes()
        layout = (ctypes.c_uint32 * len(LAYOUT))(*LAYOUT)
        load = partial(
            _load().bench_contribute, _pointers(links), ranks, rows, length, slots, layout, total
        )
        what = f"contribute, {ranks} ranks, {slots} slots"
        return case.measure(switch, what, length, seconds, load)


def need_load() -> None:
    """Raise UnavailableError where the load cannot be compiled."""
    try:
        _load()
    except NativeUnavailableError as error:
        raise UnavailableError(f"the load is machine code: {error}") from None


def rows(seconds: float) -> Iterator[Row]:
    """Measure what there is here."""
    empty, full = wire.EMPTY_FRAME_BYTES, wire.PAYLOAD_FRAME_BYTES
    kinds = ["unix", "shared", *(["veth", "offload"] if os.geteuid() == 0 else [])]
    engines = ["native", "python", *([] if bmv2_unavailable() else [BMV2])]
    for case in itertools.starmap(Case, itertools.product(kinds, engines)):
        if case.ports == "offload" and case.engine != "native":
            continue  # the others have no offload
        if case.ports != "veth" and case.engine == BMV2:
            continue  # it has no other ports
        yield forward(case, seconds, empty, 1)
        yield contribute(case, seconds, 4, 32)
        if case.engine != BMV2:  # it queues 64 frames for a port and drops what comes on top
            yield forward(case, seconds, full, 256)
            yield contribute(case, seconds, 4, 128)


def main() -> None:
    options = read_options(__doc__, seconds=Option(2.0, "for each measurement"))
    need_load()
    tell(options, rows(options.seconds))


if __name__ == "__main__":
    run(main)
