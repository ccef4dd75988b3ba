# SPDX-License-Identifier: Apache-2.0
"""Contributions per second through BMv2 and the embedded switch, same frames, same harness.

A closed loop: each rank has a contribution under way in every slot, and sends the next round's
when the result of the last has come, all lanes of which are checked. This process is the load, for
all ranks; it shares the machine's cores with the switch, whose CPU time is taken from /proc,
thread by thread: BMv2 parses, matches and sums in one thread, and that is the one that counts.

    python -m bench.bmv2.compare --of targets
"""

from __future__ import annotations

import select
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from p4reduce.transport.link import FramesOverLink
from p4reduce.wire import format as wire
from p4reduce.wire.frames import FrameBuffer
from p4reduce.wire.lanes import lane_type, pack
from p4reduce_controller.fabric.compiled_program import PipelineProgram
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.networks import veth
from p4reduce_lab.processes.rundir import run_directory
from p4reduce_lab.switches import bmv2
from p4reduce_lab.switches.embedded import EmbeddedSwitch
from p4reduce_lab.switches.launch import DEVICE_ID, SwitchLauncher
from p4reduce_native.link import Link

from bench.measure import in_turns, there_and_back, thread_seconds
from bench.program import Row
from bench.switch.job import RANKS, SLOTS, configure, contribution

DEADLINE = 5.0  # seconds
WARM_UP = 0.5  # seconds
PAUSE = 0.0003  # seconds
SOCKET_BYTES = 8 << 20


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
        with _open(where) as opened:
            self._transport = FramesOverLink(where, Link.over_packets(opened))
        self._out = FrameBuffer(slots)
        self._received = self._transport.received
        for slot in range(slots):
            self._out.put(slot, contribution(number, slot, 0, lanes, slots, lane_format))

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


def _open(where: str) -> socket.socket:
    if where.startswith("unix:"):
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        opened.connect(where.removeprefix("unix:"))
    else:
        opened = veth.open_interface(where)
    opened.setblocking(False)
    return opened


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
    seconds: float,
    program: PipelineProgram | None = None,
    lane_format: wire.Format = wire.Format.INT32,
) -> Row:
    """Run the loop for some seconds, with another program if given.

    Returns:
        `contributions_per_second` of all ranks together; in microseconds of CPU time for each,
        `switch_us` of all the switch's threads, `busiest_thread_us` of the one that uses most, and
        `load_us` of this process; and the share of a core that the busiest thread used.

    Raises:
        TimeoutError: frames were lost: some slot does not continue.
    """
    block = np.arange(lane_format.lanes) % (lane_format.lane_maximum // RANKS + 1)
    lanes = pack(block.astype(lane_type(lane_format)), lane_format).tobytes()
    expected = pack((RANKS * block).astype(lane_type(lane_format)), lane_format)
    with running(kind, RANKS) as (switch, ends), ExitStack() as cleanup:
        client = SwitchClient.connect(switch.grpc_address, DEVICE_ID, 1)
        cleanup.callback(client.close)
        configure(client, RANKS, SLOTS, program)
        members = [Rank(rank, ends[rank + 1], SLOTS, lanes, lane_format) for rank in range(RANKS)]
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
            member.send(np.arange(SLOTS))
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_UP:
            turn()
        assert switch.pid is not None
        threads, load = thread_seconds(switch.pid), time.process_time()
        began, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            count += turn()
        used = [
            spent - threads.get(thread, 0.0) for thread, spent in thread_seconds(switch.pid).items()
        ]
        load = time.process_time() - load
        rounds = np.array([member.rounds() for member in members])
        if rounds.max() - rounds.min() > max(64, rounds.max() // 2):
            raise TimeoutError("some slots stand still: frames were lost")
    return {
        "contributions_per_second": count / elapsed,
        "switch_us": sum(used) / count * 1e6,
        "busiest_thread_us": max(used) / count * 1e6,
        "busiest_thread_load": max(used) / elapsed,
        "load_us": load / count * 1e6,
    }


def compared(cases: Mapping[str, Callable[[], Row]], turns: int) -> Iterator[Row]:
    """Measure cases in turns, and sum up: medians, and ratios to the first case in each turn.

    `rate_ratio` is of the rates, `thread_us_ratio` of the busiest threads, which other load on the
    machine hardly changes. A quarter of the turns had a ratio below `thread_us_ratio_low`, and a
    quarter had one above `thread_us_ratio_high`: they say what this many turns can tell.
    """
    found = in_turns(cases, turns, order=there_and_back)
    first = found[next(iter(cases))]
    for name, rows in found.items():
        median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}

        def ratios(key: str, rows: list[Row] = rows) -> list[float]:
            return sorted(one[key] / other[key] for one, other in zip(rows, first, strict=True))

        rates = [row["contributions_per_second"] for row in rows]
        by_thread = ratios("busiest_thread_us")
        yield {
            "name": name,
            "contributions_per_second": median["contributions_per_second"],
            "slowest": min(rates),
            "fastest": max(rates),
            "rate_ratio": statistics.median(ratios("contributions_per_second")),
            "switch_us": median["switch_us"],
            "busiest_thread_us": median["busiest_thread_us"],
            "busiest_thread_load": median["busiest_thread_load"],
            "thread_us_ratio": statistics.median(by_thread),
            "thread_us_ratio_low": by_thread[len(by_thread) // 4],
            "thread_us_ratio_high": by_thread[-1 - len(by_thread) // 4],
            "load_us": median["load_us"],
        }


def need_bmv2() -> None:
    """Raise UnavailableError where there is no BMv2 to measure."""
    if reason := bmv2.unavailable():
        raise UnavailableError(reason)
