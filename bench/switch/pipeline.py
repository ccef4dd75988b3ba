# SPDX-License-Identifier: Apache-2.0
"""Contributions a second through the embedded switch, in process and on one core, both engines.

Four ranks contribute 1,024 bytes of lanes each to every round of every slot; a quarter of the
frames complete a round and come back as four results. Machine code and Python take the same
frames in turn. Prints the best and the median of several runs, in processor time, because other
processes only ever make it slower. With --earlier FOLDER another compiled program takes turns too;
bench/bmv2/programs.py says how to get one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import time
from pathlib import Path
from typing import Any

from p4reduce_switch.native_pipeline import NativePipeline
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry

from bench.machine import describe, machine
from bench.switch.run_many import run_many

CONFIG = Path(__file__).resolve().parents[2] / "p4src" / "compiled" / "p4reduce.json"
SWITCH_IP = 0x0A4DFFFE
SWITCH_MAC = 0x027034726564
UDP_PORT = 0xBEE0
JOB = 7
RANKS = 4
SLOTS = 32
NO_BLOCK = 0xFFFFFFFF


def configure(pipeline: Pipeline) -> None:
    """One job of four ranks on the ports 1 to 4, as the controller would set it up."""
    tables = pipeline.tables
    tables["own_address"].insert(TableEntry((SWITCH_IP,), 0, "is_own", (SWITCH_MAC,)))
    for rank in range(RANKS):
        key = (rank + 1, worker_ip(rank), JOB, rank)
        grant = (1 << rank, (1 << RANKS) - 1, 0, SLOTS, 2, 3)
        tables["admission"].insert(TableEntry(key, 0, "grant", grant))
        delivery = (worker_mac(rank), worker_ip(rank), 40000 + rank, rank)
        tables["delivery"].insert(TableEntry((rank + 1,), 0, "whole", delivery))
    pipeline.multicast.insert(2, [Replica(rank + 1, rank + 1) for rank in range(RANKS)])
    pipeline.multicast.insert(3, [Replica(rank + 1, rank + 1) for rank in range(RANKS)])


def worker_ip(rank: int) -> int:
    return 0x0A4D0001 + rank


def worker_mac(rank: int) -> int:
    return 0x020000000001 + rank


def contribution(rank: int, slot: int, round_: int, lanes: bytes) -> bytes:
    """A frame from a rank to the switch."""
    ethernet = SWITCH_MAC.to_bytes(6, "big") + worker_mac(rank).to_bytes(6, "big") + b"\x08\x00"
    total = 20 + 8 + 36 + len(lanes)
    source, target = worker_ip(rank), SWITCH_IP
    ipv4 = struct.pack(">BBHHHBBHII", 0x45, 0, total, 0, 0, 64, 17, 0, source, target)
    checksum = -int.from_bytes(ipv4, "big") % 0xFFFF
    ipv4 = ipv4[:10] + checksum.to_bytes(2, "big") + ipv4[12:]
    udp = struct.pack(">HHHH", 40000 + rank, UDP_PORT, total - 20, 0)
    flags = 1 if lanes else 0
    block, next_block = round_ * SLOTS + slot, (round_ + 1) * SLOTS + slot
    header = struct.pack(
        ">BBHIHBBIIIIQ", 0x10, flags, rank, JOB, slot, 0, 130, round_, block, next_block, 99, 0
    )
    return ethernet + ipv4 + udp + header + lanes


def frames_of(first_round: int, rounds: int) -> list[tuple[int, bytes]]:
    """What all ranks send to all slots in some rounds, with the port of each."""
    generator = random.Random(first_round)
    lanes = [generator.randbytes(1024) for _ in range(RANKS)]
    return [
        (rank + 1, contribution(rank, slot, round_, lanes[rank]))
        for round_ in range(first_round, first_round + rounds)
        for slot in range(SLOTS)
        for rank in range(RANKS)
    ]


def measure_python(pipeline: Pipeline, frames: list[tuple[int, bytes]]) -> tuple[float, int]:
    """Seconds of processor time, and how many frames came back."""
    process = pipeline.process
    results = 0
    start = time.process_time()
    for port, frame in frames:
        results += len(process(port, frame))
    return time.process_time() - start, results


def measure_native(pipeline: NativePipeline, frames: list[tuple[int, bytes]]) -> tuple[float, int]:
    """The same, for frames that a loop in C hands over."""
    ports = struct.pack(f"={len(frames)}I", *(port for port, _ in frames))
    joined = b"".join(frame for _, frame in frames)
    length = len(frames[0][1])
    start = time.process_time()
    results = run_many(pipeline, ports, joined, length)
    return time.process_time() - start, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=8, help="rounds in each run")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--earlier", type=Path, help="folder of another program's p4reduce.json")
    options = parser.parse_args()
    engines: dict[str, tuple[Pipeline, Any]] = {
        "native": (NativePipeline(CONFIG.read_bytes()), measure_native),
        "python": (Pipeline(CONFIG.read_bytes()), measure_python),
    }
    if options.earlier is not None:
        other = (options.earlier / "p4reduce.json").read_bytes()
        engines["native, earlier"] = NativePipeline(other), measure_native
    for pipeline, _ in engines.values():
        configure(pipeline)
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for run in range(options.runs):
        frames = frames_of(1 + run * options.rounds, options.rounds)
        for name, (pipeline, measure) in engines.items():
            seconds, results = measure(pipeline, frames)
            if results != len(frames):
                raise SystemExit(f"{name}: {results} results came back instead of {len(frames)}")
            rates[name].append(len(frames) / seconds)
    host = machine()
    print(describe(host))
    report = []
    for name, found in rates.items():
        best, median = max(found), statistics.median(found)
        print(
            f"{name}: contributions of 1,024 bytes, 4 ranks: best {best:,.0f}/s, "
            f"median {median:,.0f}/s; {1e6 / best:.2f} us each at best"
        )
        report.append(
            {
                "name": f"{name}: 4 ranks, 1,024 bytes of lanes",
                "best_contributions_per_second": best,
                "median_contributions_per_second": median,
                "best_us": 1e6 / best,
            }
        )
    pairs = [a / b for a, b in zip(rates["native"], rates["python"], strict=True)]
    print(
        f"native against python, median of {len(pairs)} pairs: {statistics.median(pairs):.0f} times"
    )
    if options.earlier is not None:
        pairs = [a / b for a, b in zip(rates["native"], rates["native, earlier"], strict=True)]
        print(
            f"native: now against earlier, median of {len(pairs)} pairs: "
            f"{statistics.median(pairs):.3f} times"
        )
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": host, "results": report}, indent=2) + "\n")


if __name__ == "__main__":
    main()
