# SPDX-License-Identifier: Apache-2.0
"""Contributions per second through BMv2 and the embedded switch, same frames, same harness.

A closed loop: each rank has a contribution under way in every slot, and sends the next round's
when the result of the last has come, all lanes of which are checked. This process is the load, for
all ranks; it shares the machine's cores with the switch, whose CPU time is taken from /proc,
thread by thread: BMv2 parses, matches and sums in one thread, and that is the one that counts.

    python -m bench.bmv2.contributions [--seconds 4] [--ranks 4] [--slots 32] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from p4reduce.transport.link import FramesOverLink
from p4reduce.wire import format as wire
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_controller.fabric.schema import MulticastGroup, Op, TableRow, Update
from p4reduce_lab.networks import veth
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import DEVICE_ID, SwitchLauncher
from p4reduce_native.link import Link

from bench.machine import describe, machine

CANNOT_RUN = 77
DEADLINE = 5.0  # seconds
WARM_UP = 0.5  # seconds
PAUSE = 0.0003  # seconds
SOCKET_BYTES = 8 << 20
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
JOB, GROUP_WHOLE, GROUP_HALVES = 1, 2, 3


@dataclass(frozen=True)
class Result:
    """One measurement.

    Attributes:
        contributions_per_second: of all ranks together.
        goodput_mbit_per_second: sums that each rank got, 8,192 bits a block.
        switch_us: CPU time of all the switch's threads for a contribution.
        busiest_thread_us: CPU time of the thread that uses most.
        busiest_thread_load: the share of a core that this thread used, 0 to 1.
        load_us: CPU time of this process for a contribution.
    """

    name: str
    contributions_per_second: float
    goodput_mbit_per_second: float
    switch_us: float
    busiest_thread_us: float
    busiest_thread_load: float
    load_us: float


class Rank:
    """The far end of a port: a contribution for each slot, and what comes back."""

    def __init__(
        self,
        number: int,
        where: str,
        slots: int,
        lanes: bytes,
        lane_format: wire.Format = wire.Format.INT32,
    ) -> None:
        self.at = _endpoint(number)
        with _open(where) as opened:
            self._transport = FramesOverLink(where, Link.over_packets(opened))
        self._out = FrameBuffer(slots)
        self._received = self._transport.received
        for slot in range(slots):
            header = wire.header_bytes(
                flags=int(wire.Flag.PAYLOAD) if lanes else 0,
                rank=number,
                job=JOB,
                slot=slot,
                format=lane_format,
                next_exponent=127,
                block=slot,
                next_block=slot + 1,
                tag=1,
            )
            self._out.put(slot, wire.template(self.at, SWITCH, header, lanes))

    def fileno(self) -> int:
        return self._transport.link.fileno()

    def close(self) -> None:
        self._transport.close()

    def send(self, slots: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Contribute to these slots."""
        sent = self._transport.send(self._out, slots)
        if sent != len(slots):
            raise OSError(f"only {sent} of {len(slots)} frames were sent")

    def turn(self, expected: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
        """Take the results that are there, check them, and contribute to the next rounds."""
        count = self._transport.receive()
        if not count:
            return 0
        results = self._received.records[:count]
        if (
            results["version_kind"] != (wire.AGGREGATION_VERSION << 4 | wire.FrameKind.RESULT)
        ).any():
            raise ValueError("an answer that is no RESULT")
        if len(expected) and (self._received.payload[:count] != expected).any():
            raise ValueError("a wrong sum")
        slots = results["slot"].astype(np.int64)
        self._out.records["round"][slots] = results["round"] + np.uint32(1)
        self.send(slots)
        return count

    def rounds(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The round that each slot is in."""
        return np.asarray(self._out.records["round"], np.uint32)


def _endpoint(rank: int) -> wire.Endpoint:
    return wire.Endpoint(f"02:00:00:00:01:{rank:02x}", f"10.77.0.{rank + 1}", 49152 + rank)


def _open(where: str) -> socket.socket:
    if where.startswith("unix:"):
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        opened.connect(where.removeprefix("unix:"))
    else:
        opened = veth.open_interface(where)
    opened.setblocking(False)
    return opened


def configure(
    client: SwitchClient, ranks: int, slots: int, program: PipelineProgram | None = None
) -> None:
    """Put the program (another one with the same tables, if given) on the switch, with one job."""
    client.set_pipeline(program or load_program())
    client.insert("own_address", {"ip": _ip(SWITCH.ip)}, "is_own", {"mac": _mac(SWITCH.mac)})
    rows: list[TableRow | MulticastGroup] = []
    whole: list[tuple[int, int]] = []
    halves: list[tuple[int, int]] = []
    for rank in range(ranks):
        at = _endpoint(rank)
        to = {"mac": _mac(at.mac), "ip": _ip(at.ip), "udp_port": at.udp_port, "rank": rank}
        for offset, action in enumerate(("whole", "first_half", "second_half"), start=1):
            replica = 3 * rank + offset
            rows.append(TableRow("delivery", {"replica": replica}, action, to))
            (whole if action == "whole" else halves).append((rank + 1, replica))
        match = {"ingress_port": rank + 1, "src_ip": _ip(at.ip), "job": JOB, "rank": rank}
        grant = {
            "worker_bit": 1 << rank,
            "all_workers": (1 << ranks) - 1,
            "slot_base": 0,
            "slot_count": slots,
            "group_full": GROUP_WHOLE,
            "group_halves": GROUP_HALVES,
        }
        rows.append(TableRow("admission", match, "grant", grant))
    rows += [MulticastGroup(GROUP_WHOLE, tuple(whole)), MulticastGroup(GROUP_HALVES, tuple(halves))]
    client.write([Update(Op.INSERT, row) for row in rows])


def _ip(text: str) -> int:
    return int.from_bytes(socket.inet_aton(text), "big")


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def thread_seconds(pid: int) -> dict[int, float]:
    """CPU time of each thread of a process."""
    used = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        # In nanoseconds, where stat has hundredths of a second.
        used[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


@contextmanager
def running(kind: str, ranks: int) -> Iterator[tuple[SwitchLauncher, Mapping[int, str]]]:
    """A switch, and the far ends of its ports."""
    with ExitStack() as cleanup:
        directory = cleanup.enter_context(run_directory())
        launcher: SwitchLauncher
        if kind == "embedded, sockets":
            launcher = EmbeddedSwitch(directory, ranks)
            ends = launcher.ports
        else:
            veths = cleanup.enter_context(veth.VethPorts(ranks))
            ends = veths.worker_side
            make = bmv2.Bmv2Switch if kind == "BMv2, veths" else EmbeddedSwitch
            launcher = make(directory, veths.switch_side)
        yield cleanup.enter_context(launcher), ends


def measure(
    kind: str,
    ranks: int,
    slots: int,
    payload: bool,
    seconds: float,
    program: PipelineProgram | None = None,
    lane_format: wire.Format = wire.Format.INT32,
) -> Result:
    """Run the loop for some seconds, with another program if given.

    Raises:
        TimeoutError: frames were lost: some slot does not continue.
    """
    block = np.arange(lane_format.lanes) % (lane_format.lane_maximum // ranks + 1)
    lanes, expected = b"", np.empty(0, np.uint8)
    if payload:
        lanes = pack(block.astype(lane_type(lane_format)), lane_format).tobytes()
        expected = pack((ranks * block).astype(lane_type(lane_format)), lane_format)
    with running(kind, ranks) as (switch, ends), ExitStack() as cleanup:
        client = SwitchClient.connect(switch.grpc_address, DEVICE_ID, 1)
        cleanup.callback(client.close)
        configure(client, ranks, slots, program)
        members = [Rank(rank, ends[rank + 1], slots, lanes, lane_format) for rank in range(ranks)]
        poll = select.poll()
        for member in members:
            cleanup.callback(member.close)
            poll.register(member, select.POLLIN)
        time.sleep(0.2)  # until the embedded switch has taken the sockets in

        def turn() -> int:
            if not poll.poll(DEADLINE * 1000):
                raise TimeoutError(f"no result within {DEADLINE:g} s: frames were lost")
            # Larger batches: the load takes less from the cores that the switch needs too.
            time.sleep(PAUSE)
            return sum(member.turn(expected) for member in members)

        for member in members:
            member.send(np.arange(slots))
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_UP:
            turn()
        assert switch.pid is not None
        threads, load = thread_seconds(switch.pid), time.process_time()
        began, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            count += turn()
        used = {
            thread: spent - threads.get(thread, 0.0)
            for thread, spent in thread_seconds(switch.pid).items()
        }
        load = time.process_time() - load
        rounds = np.array([member.rounds() for member in members])
        if rounds.max() - rounds.min() > max(64, rounds.max() // 2):
            raise TimeoutError("some slots stand still: frames were lost")
    rate = count / elapsed
    carried = lane_format.name.lower() if payload else "no lanes"
    return Result(
        name=f"{kind}, {ranks} ranks, {slots} slots, {carried}",
        contributions_per_second=rate,
        goodput_mbit_per_second=rate / ranks * 8 * len(lanes) / 1e6,
        switch_us=sum(used.values()) / count * 1e6,
        busiest_thread_us=max(used.values()) / count * 1e6,
        busiest_thread_load=max(used.values()) / elapsed,
        load_us=load / count * 1e6,
    )


def begin() -> dict[str, Any]:
    """Print and return what this machine is; end where there is no BMv2 to measure."""
    if reason := bmv2.unavailable():
        print(reason, file=sys.stderr)
        sys.exit(CANNOT_RUN)
    host = machine()
    print(describe(host))
    return host


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each measurement")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slots", type=int, default=32, help="rounds that each rank has under way")
    parser.add_argument("--only", help="kinds of switch to measure: those whose name has this")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    host = begin()
    results = []
    for kind in ("BMv2, veths", "embedded, veths", "embedded, sockets"):
        if options.only and options.only not in kind:
            continue
        for payload in (True, False):
            result = measure(kind, options.ranks, options.slots, payload, options.seconds)
            results.append(result)
            print(
                f"{result.name:48} {result.contributions_per_second:8,.0f}/s"
                f" {result.goodput_mbit_per_second:6.0f} Mbit/s"
                f"  switch {result.switch_us:5.1f} us, busiest thread"
                f" {result.busiest_thread_us:5.1f} us ({result.busiest_thread_load:4.0%} of a core)"
                f"  load {result.load_us:4.1f} us",
                flush=True,
            )
    if options.json is not None:
        report = {"machine": host, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
