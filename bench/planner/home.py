# SPDX-License-Identifier: Apache-2.0
"""What the planner says of hosts beside what hosts in namespaces take, for `check --hosts`.

torchrun runs on each host, whose links a token bucket limits in each direction, and ranks start
their own network. All hosts share this machine's cores, and so does the plan for them. Ways take
turns within one job, so that other load of the machine comes to all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from p4reduce.arrangement import EACH, FIRST, SWITCHES
from p4reduce_lab.networks.home import HomeNetwork
from p4reduce_lab.planning.home import LANES, PLACES, RING, Home, allreduce
from p4reduce_lab.planning.hosts import equal_hosts
from p4reduce_lab.planning.network import PlannedLink
from p4reduce_native.cpus import usable_cpus

from bench.planner.home_rank import sum_buckets
from bench.program import Row
from bench.pytorch.on_hosts import run_on_hosts

RATES = {100.0: 2_500_000, 1000.0: 25_000_000}
"""Rates in Mbit/s, and how many numbers a step sums there."""

HOSTS = (2, 3, 4)
TIMEOUT = 900.0  # seconds; of one job
_BUCKET = 25 * 2**20 // 4  # numbers, as DistributedDataParallel has it
_STARTING = 1000.0  # Mbit/s, while ranks start


def measure(rates: Sequence[float], turns: int) -> Iterator[Row]:
    """Measure all ways on all numbers of hosts, at rates of `RATES`.

    A row has seconds of a step's sums, and nanoseconds of a host's CPU for each number, predicted
    and measured. Raises LabError, UnavailableError.
    """
    for rate in rates:
        for hosts in HOSTS:
            with HomeNetwork(hosts, _STARTING) as network:
                for place in (EACH, FIRST):
                    network.set_rate(rate)
                    for row in _measured(network, hosts, rate, place, turns):
                        print(" | ".join(line(row)), flush=True)
                        yield row


def _measured(
    network: HomeNetwork, hosts: int, rate: float, place: str, turns: int
) -> Iterator[Row]:
    names = ["gloo", *(lanes.name for lanes in LANES)] if place == EACH else ["float32", "int8"]
    numbers = RATES[rate]
    given: dict[str, Any] = {"elements": numbers, "bucket": _BUCKET, "turns": turns, "ways": names}
    environment = {SWITCHES: place}
    found = run_on_hosts(network, sum_buckets, environment, timeout=TIMEOUT, **given)[0]
    # A shaper of the kernel counts frames from their Ethernet header on.
    link = PlannedLink(rate * 1e6, overhead=0)
    home = Home(equal_hosts(hosts, 1, ""), link, link, usable_cpus() / hosts)
    for way, results in found.items():
        where, lanes = (RING, "float32") if way == "gloo" else (place, way)
        [kind] = [one for one in LANES if one.name == lanes]
        sizes = [min(_BUCKET, numbers - start) for start in range(0, numbers, _BUCKET)]
        each = [allreduce(home, where, kind, size) for size in sizes]
        seconds, cpus = zip(*results, strict=True)
        yield {
            "hosts": hosts,
            "rate": rate,
            "place": where,
            "lanes": lanes,
            "predicted": sum(one.seconds for one in each),
            "measured": statistics.median(seconds),
            "fastest": min(seconds),
            "slowest": max(seconds),
            "predicted_cpu": sum(one.cpu for one in each) / numbers * 1e9,
            "measured_cpu": statistics.median(cpus) / hosts / numbers * 1e9,
        }


HEAD = ("hosts", "links", "sums by", "lanes", "planner", "measured", "planner/measured",
        "CPU per number: planner, measured")  # fmt: skip


def line(row: Row) -> list[str]:
    """Return a row for `HEAD`."""
    ms: dict[str, Any] = {name: f"{1e3 * row[name]:,.0f}" for name in
                          ("predicted", "measured", "fastest", "slowest")}  # fmt: skip
    return [
        str(row["hosts"]),
        f"{row['rate']:g} Mbit/s",
        PLACES[row["place"]],
        row["lanes"],
        f"{ms['predicted']} ms",
        f"{ms['measured']} ms ({ms['fastest']} to {ms['slowest']})",
        f"{row['predicted'] / row['measured']:.2f}",
        f"{row['predicted_cpu']:.1f}, {row['measured_cpu']:.0f} ns",
    ]


def verdict(rows: Sequence[Row], aim: float) -> str:
    """Say how many are near the median, and near the fastest turn, which load slows least."""
    near, fastest = (
        sum(abs(row["predicted"] / row[name] - 1) <= aim for row in rows)
        for name in ("measured", "fastest")
    )
    return (
        f"{near} of {len(rows)} predictions are within {aim:.0%} of the median, and {fastest} of "
        "the fastest turn."
    )
