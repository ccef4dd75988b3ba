# SPDX-License-Identifier: Apache-2.0
"""What the planner says beside what real ranks take: configurations that fitted nothing.

Most are measured by `p4reduce-lab compare`'s own ranks, over veth pairs that a token bucket limits,
and one, with two switches side by side, in a Mininet network as in `bench.scale.measured`. Those at
1 Gbit/s have UDP ports with offloads, the others interfaces without. Links are so slow that two
cores keep up with them on a machine that does nothing else; where they did not, the row says so.
All constants are the planner's own, from other measurements; none is taken from this run. With
--hosts, plans of hosts are measured instead (`bench.planner.home`).

    python -m bench.planner.check [--json FILE] [--docs] [--turns 3]
    python -m bench.planner.check --hosts [--rates 100,1000] [--json FILE] [--docs] [--turns 3]
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce_common.rows import markdown_table
from p4reduce_lab.choice import choose
from p4reduce_lab.compare.cells import ETHERNET, GLOO, P4REDUCE, UDP, CompareCase, CompareCell
from p4reduce_lab.compare.contenders import machine_seconds
from p4reduce_lab.compare.results import LINK, PROCESSOR, limit_of
from p4reduce_lab.compare.run import compare
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.networks import links
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster, by_ring, by_switches

from bench.measure import slowest, timed
from bench.pages import DOCS, put_text
from bench.planner import home
from bench.program import Option, Row, read_options, run
from bench.ranks import TIMEOUT, run_ranks

AIM = 0.15  # of the measured time, that a prediction may be off
OUTPUT = Path("build/planner")
PAGE = DOCS / "planner.md"
_MB = 1 << 20


@dataclass(frozen=True)
class Configuration:
    """What is predicted and measured.

    Attributes:
        ranks: of the job.
        rate: of each link, in Mbit/s.
        size: bytes of the float32 tensor.
        wire: lanes of ours, or "float32" for Gloo's ring.
        density, overlap: of the tensor's blocks.
        switches: side by side; each rank has a link of `rate` to each.
        links: as `p4reduce-lab compare` has them.
    """

    ranks: int
    rate: float
    size: int
    wire: str = "int32"
    density: float = 1.0
    overlap: str = "aligned"
    switches: int = 1
    links: str = ETHERNET

    @property
    def case(self) -> CompareCase:
        """As `p4reduce-lab compare` has it."""
        contender = GLOO if self.wire == "float32" else P4REDUCE
        return CompareCase(contender, self.wire, self.density, self.overlap)

    def predicted(self) -> float:
        """Return the planner's seconds."""
        # A shaper of the kernel counts frames from their Ethernet header on.
        kind = "embedded-udp" if self.links == UDP else "embedded"
        link = PlannedLink(self.rate * 1e6, overhead=0)
        cluster = Cluster(self.ranks, link, switch=SWITCHES[kind])
        if self.wire == "float32":
            return by_ring(cluster, PlannedTensor(self.size // 4)).seconds
        tensor = PlannedTensor(self.size // 4, self.wire, self.density, self.overlap)
        return by_switches(cluster, tensor, cluster.star(self.switches)).seconds

    def outcome(self, median: float, fastest: float, slowest: float, limit: str) -> Row:
        """Return a row: seconds until the last rank had the sum, and `compare`'s limit."""
        predicted = self.predicted()
        times = {"predicted": predicted, "median": median, "fastest": fastest, "slowest": slowest}
        return {"configuration": self, **times, "limit": limit, "off": predicted / median - 1}


SIDE_BY_SIDE = Configuration(4, 10.0, _MB, switches=2)
CONFIGURATIONS = (
    Configuration(2, 10.0, _MB),
    Configuration(2, 25.0, 4 * _MB, "int8"),
    Configuration(2, 10.0, 2 * _MB, density=0.2, overlap="independent"),
    Configuration(4, 25.0, 2 * _MB),
    Configuration(4, 10.0, 2 * _MB, "int16"),
    Configuration(4, 10.0, 4 * _MB, density=0.1),
    Configuration(4, 10.0, 2 * _MB, density=0.05, overlap="independent"),
    Configuration(8, 10.0, _MB),
    Configuration(8, 10.0, 4 * _MB, "int8"),
    Configuration(4, 1000.0, 16 * _MB, links=UDP),
    Configuration(4, 1000.0, 16 * _MB, "int8", links=UDP),
    Configuration(8, 1000.0, 16 * _MB, links=UDP),
    # Gloo's, with what `plan` compares everything.
    Configuration(4, 25.0, 2 * _MB, "float32"),
    Configuration(8, 10.0, _MB, "float32"),
)


def measure_on_shaped_links(kind: str, turns: int) -> list[Row]:
    """Measure `CONFIGURATIONS` with a kind of links. Raises LabError."""
    wanted = [one for one in CONFIGURATIONS if one.links == kind]
    cells: dict[tuple[int, float, int], list[CompareCase]] = {}
    for one in sorted(wanted, key=lambda one: one.ranks):
        cells.setdefault((one.ranks, one.rate, one.size), []).append(one.case)
    asked = [CompareCell(*place, tuple(cases), turns, kind) for place, cases in cells.items()]
    report = compare(asked, choose("embedded", "local"), None, OUTPUT / kind, print)
    rows = {(row.ranks, row.rate_mbit, row.bytes, row.name): row for row in report.rows}
    found = []
    for one in wanted:
        row = rows[one.ranks, one.rate, one.size, one.case.name]
        times = row.seconds, row.fastest_seconds, row.slowest_seconds
        found.append(one.outcome(*times, row.limit))
    return found


def measure_side_by_side(turns: int) -> Row:
    """Measure the two switches. Raises LabError, UnavailableError."""
    one = SIDE_BY_SIDE
    reports = run_ranks(
        reduce_all, one.ranks, bandwidth=one.rate, switches=one.switches, turns=turns
    )
    seconds = slowest(reports, "seconds").tolist()
    busy = statistics.median(report["busy"] for report in reports)
    median = statistics.median(seconds)
    bound = one.case.bound(one.ranks, one.size, one.rate) / one.switches
    limit = limit_of(bound / median, 0.0, busy)
    return one.outcome(median, min(seconds), max(seconds), limit)


def reduce_all(turns: int) -> dict[str, Any]:
    """What each rank of the two switches does: returns times, and how busy the machine was."""
    mine = np.random.default_rng().standard_normal(SIDE_BY_SIDE.size // 4).astype(np.float32)
    with p4reduce.init(timeout=TIMEOUT) as comm:
        comm.allreduce(mine)  # timers learn round trips, and the switches get their shares
        before = machine_seconds()
        seconds = [timed(lambda: comm.allreduce(mine), comm.barrier) for _ in range(turns)]
        busy, total = (b - a for a, b in zip(before, machine_seconds(), strict=True))
    return {"seconds": seconds, "busy": busy / total}


HEAD = ("ranks", "links", "switches", "tensor", "by", "predicted", "measured", "off", "limit")


def line(row: Row) -> list[str]:
    """Return a row for `HEAD`."""
    one: Configuration = row["configuration"]
    return [
        str(one.ranks),
        f"{one.rate:g} Mbit/s" + (", UDP" if one.links == UDP else ""),
        str(one.switches) if one.wire != "float32" else "-",
        f"{one.size / _MB:g} MB",
        one.case.name,
        f"{1e3 * row['predicted']:,.0f} ms",
        f"{1e3 * row['median']:,.0f} ms "
        f"({1e3 * row['fastest']:,.0f} to {1e3 * row['slowest']:,.0f})",
        f"{row['off']:+.1%}",
        row["limit"],
    ]


def verdict(rows: Sequence[Row]) -> str:
    """Say how many predictions came true where the CPU was not the limit."""
    counted = [row for row in rows if row["limit"] != PROCESSOR]
    near = sum(abs(row["off"]) <= AIM for row in counted)
    text = f"{near} of {len(counted)} within {AIM:.0%}"
    if left := len(rows) - len(counted):
        text += f"; in {left} more the CPU was the limit, not the links, which says nothing"
    slow = sum(row["limit"] not in (LINK, PROCESSOR) for row in rows)
    return text + (f"; {slow} waited for round trips or ranks" if slow else "") + "."


def main() -> None:
    options = read_options(
        __doc__,
        docs="docs/planner.md",
        turns=3,
        hosts=Option(False, "plans of hosts, in place of these"),
        rates=Option(",".join(map("{:g}".format, home.RATES)), "Mbit/s of --hosts, with commas"),
    )
    begun = provenance("torch")
    if (reason := links.unavailable()) is not None:
        raise UnavailableError(f"the planner's check: {reason}")
    if options.hosts:
        name = "planner-hosts"
        rows = list(home.measure([float(rate) for rate in options.rates.split(",")], options.turns))
        shown, said = markdown_table(home.HEAD, list(map(home.line, rows))), home.verdict(rows, AIM)
    else:
        name = "planner-check"
        rows = [
            row for kind in (ETHERNET, UDP) for row in measure_on_shaped_links(kind, options.turns)
        ]
        rows.append(measure_side_by_side(options.turns))
        shown, said = markdown_table(HEAD, list(map(line, rows))), verdict(rows)
    print(f"\n{shown}\n{said}")
    path = options.json or OUTPUT / "check.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**begun, "results": rows}, indent=1, default=asdict) + "\n")
    if options.docs:
        put_text(PAGE, name, f"{described(begun)} {said}\n\n{shown}")


if __name__ == "__main__":
    run(main)
