# SPDX-License-Identifier: Apache-2.0
"""Contributions a second through the embedded switch, in process and on one core.

Four ranks contribute 1,024 bytes of lanes each to every round of every slot; a quarter of the
frames complete a round and come back as four results. Prints the best and the median of several
runs, because other processes only ever make it slower.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import time
from pathlib import Path

from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Entry

from bench.machine import describe, machine

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
    tables["own_address"].insert(Entry((SWITCH_IP,), 0, "is_own", (SWITCH_MAC,)))
    for rank in range(RANKS):
        key = (rank + 1, worker_ip(rank), JOB, rank)
        grant = (1 << rank, (1 << RANKS) - 1, 0, SLOTS, 2, 3)
        tables["admission"].insert(Entry(key, 0, "grant", grant))
        delivery = (worker_mac(rank), worker_ip(rank), 40000 + rank, rank)
        tables["delivery"].insert(Entry((rank + 1,), 0, "whole", delivery))
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


def measure(pipeline: Pipeline, first_round: int, rounds: int) -> tuple[float, int]:
    """Contributions a second, and how many frames came back."""
    generator = random.Random(first_round)
    lanes = [generator.randbytes(1024) for _ in range(RANKS)]
    frames = [
        (rank + 1, contribution(rank, slot, round_, lanes[rank]))
        for round_ in range(first_round, first_round + rounds)
        for slot in range(SLOTS)
        for rank in range(RANKS)
    ]
    process = pipeline.process
    results = 0
    start = time.perf_counter()
    for port, frame in frames:
        results += len(process(port, frame))
    return len(frames) / (time.perf_counter() - start), results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=100, help="rounds in each run")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    pipeline = Pipeline(CONFIG.read_bytes())
    configure(pipeline)
    rates = []
    for run in range(options.runs):
        rate, results = measure(pipeline, 1 + run * options.rounds, options.rounds)
        expected = options.rounds * SLOTS * RANKS
        if results != expected:
            raise SystemExit(f"{results} results came back instead of {expected}")
        rates.append(rate)
    best, median = max(rates), statistics.median(rates)
    host = machine()
    print(describe(host))
    print(f"contributions of 1,024 bytes, 4 ranks: best {best:,.0f}/s, median {median:,.0f}/s")
    print(f"time a contribution: best {1e6 / best:.1f} us")
    if options.json is not None:
        result = {
            "name": "4 ranks, 1,024 bytes of lanes",
            "best_contributions_per_second": best,
            "median_contributions_per_second": median,
            "best_us": 1e6 / best,
        }
        report = {"machine": host, "results": [result]}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
