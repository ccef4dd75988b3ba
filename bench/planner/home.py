# SPDX-License-Identifier: Apache-2.0
"""What the planner says of hosts beside what hosts in namespaces take, for `check --hosts`.

torchrun runs on each host, whose links a token bucket limits in each direction, and ranks start
their own network. All hosts share this machine's cores, and so does the plan for them. Ways take
turns within one job, so that other load of the machine comes to all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce.arrangement import EACH, FIRST, SWITCHES
from p4reduce_lab.networks.home import HomeNetwork
from p4reduce_lab.planning.home import LANES, PLACES, RING, Home, HomeEstimate, allreduce
from p4reduce_lab.planning.hosts import equal_hosts
from p4reduce_lab.planning.network import PlannedLink
from p4reduce_native.cpus import usable_cpus

from bench.planner.home_rank import sum_buckets
from bench.pytorch.on_hosts import run_on_hosts

RATES = {100.0: 2_500_000, 1000.0: 25_000_000}
"""Rates in Mbit/s, and how many numbers a step sums there."""

HOSTS = (2, 3, 4)
TIMEOUT = 900.0  # seconds; of one job
_BUCKET = 25 * 2**20 // 4  # numbers, as DistributedDataParallel has it
_STARTING = 1000.0  # Mbit/s, while ranks start


@dataclass(frozen=True)
class Row:
    """One way to sum on hosts.

    Attributes:
        hosts: their number.
        rate: of their links, in Mbit/s.
        place: of the switches, as `PLACES` has them.
        lanes: as `LANES` has them.
        predicted: seconds of a step's sums.
        measured: the median of the turns.
        fastest, slowest: of the turns.
        predicted_cpu, measured_cpu: nanoseconds of a host's CPU for each number.
    """

    hosts: int
    rate: float
    place: str
    lanes: str
    predicted: float
    measured: float
    fastest: float
    slowest: float
    predicted_cpu: float
    measured_cpu: float


def measure(rates: Sequence[float], turns: int, *, numbers: int | None = None) -> list[Row]:
    """Measure all ways on all numbers of hosts.

    Args:
        rates: of `RATES`.
        turns: of each way.
        numbers: that a step sums; None: as `RATES` has them.

    Raises:
        UnavailableError: there can be no such hosts here.
        LabError: a rank failed, or the time is up.
    """
    rows = []
    for rate in rates:
        size = numbers or RATES[rate]
        for hosts in HOSTS:
            with HomeNetwork(hosts, _STARTING) as network:
                for place in (EACH, FIRST):
                    rows += _measured(network, hosts, rate, place, size, turns)
    return rows


def _measured(
    network: HomeNetwork, hosts: int, rate: float, place: str, numbers: int, turns: int
) -> list[Row]:
    network.set_rate(rate)
    names = [lanes.name for lanes in LANES] if place == EACH else ["float32", "int8"]
    ways = [*(["gloo"] if place == EACH else []), *names]
    found = run_on_hosts(
        network,
        sum_buckets,
        {SWITCHES: place},
        timeout=TIMEOUT,
        elements=numbers,
        bucket=_BUCKET,
        turns=turns,
        ways=ways,
    )[0]
    home = _home(hosts, rate)
    rows = []
    for way, results in found.items():
        where = RING if way == "gloo" else place
        plan = _planned(home, where, "float32" if way == "gloo" else way, numbers)
        seconds = [one for one, _ in results]
        cpu = statistics.median(cpu for _, cpu in results) / hosts / numbers * 1e9
        rows.append(
            Row(
                hosts,
                rate,
                where,
                "float32" if way == "gloo" else way,
                plan.seconds,
                statistics.median(seconds),
                min(seconds),
                max(seconds),
                plan.cpu / numbers * 1e9,
                cpu,
            )
        )
        print(" | ".join(line(rows[-1])), flush=True)
    return rows


def _home(hosts: int, rate: float) -> Home:
    # A shaper of the kernel counts frames from their Ethernet header on.
    link = PlannedLink(rate * 1e6, overhead=0)
    return Home(equal_hosts(hosts, 1, ""), link, link, usable_cpus() / hosts)


def _planned(home: Home, place: str, name: str, numbers: int) -> HomeEstimate:
    [lanes] = [lanes for lanes in LANES if lanes.name == name]
    sizes = [min(_BUCKET, numbers - start) for start in range(0, numbers, _BUCKET)]
    each = [allreduce(home, place, lanes, size) for size in sizes]
    return HomeEstimate(
        sum(one.seconds for one in each),
        sum(one.octets for one in each),
        sum(one.cpu for one in each),
    )


HEAD = ("hosts", "links", "sums by", "lanes", "planner", "measured", "planner/measured",
        "CPU per number: planner, measured")  # fmt: skip


def line(row: Row) -> list[str]:
    """Return a row for `HEAD`."""
    return [
        str(row.hosts),
        f"{row.rate:g} Mbit/s",
        PLACES[row.place],
        row.lanes,
        f"{1e3 * row.predicted:,.0f} ms",
        f"{1e3 * row.measured:,.0f} ms ({1e3 * row.fastest:,.0f} to {1e3 * row.slowest:,.0f})",
        f"{row.predicted / row.measured:.2f}",
        f"{row.predicted_cpu:.1f}, {row.measured_cpu:.0f} ns",
    ]


def verdict(rows: Sequence[Row], aim: float) -> str:
    """Say how many are near the median, and near the fastest turn, which load slows least."""
    near, fastest = (
        sum(abs(row.predicted / getattr(row, name) - 1) <= aim for row in rows)
        for name in ("measured", "fastest")
    )
    return (
        f"{near} of {len(rows)} predictions are within {aim:.0%} of the median, and {fastest} of "
        "the fastest turn."
    )
