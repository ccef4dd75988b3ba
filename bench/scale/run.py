# SPDX-License-Identifier: Apache-2.0
"""Everything about scale: simulations, the model of time, real links, and pictures of them.

    python -m bench.scale.run [--quick] [--seed 1] [--docs] [--output build/scale]

`make scale` is this without options: minutes, most of them for 4,096 ranks. With `--docs` the
pictures and tables of docs/scale.md are written; otherwise pictures go to the output folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.in_docs import DOCS, IMAGES, put_table
from bench.machine import describe, machine
from bench.pages import pivot
from bench.scale.cost import Cost, in_turns
from bench.scale.links import Faults
from bench.scale.measured import Measured, what
from bench.scale.pictures import draw_measured, draw_scale, draw_simulated
from bench.scale.shape import Shape
from bench.scale.simulation import TENSORS, Simulation, said

ROOT = Path(__file__).resolve().parents[2]
PAGE = DOCS / "scale.md"
FAULTS = Faults(loss=0.01, duplication=0.005, reordering=0.02)
SHAPES = ((64,), (64, 4), (64, 16), (64, 64))
QUICK_SHAPES = ((8,), (8, 4), (8, 8))
SLOTS = 16
MOST_DEARER = 1.3
"""By how much the cost of a contribution may grow from the first of the shapes to the last, all its
repetitions included."""

TIMEOUT = 900.0  # seconds; for the measurements
CANNOT_RUN = 77  # bench/run.py's code for "not on this machine"


def simulate(shapes: Sequence[tuple[int, ...]], seed: int) -> list[Cost]:
    """Run a simulation of each shape, the later ones in turns with more of the first shape."""

    def simulation(fanouts: tuple[int, ...], seed: int) -> Simulation:
        return Simulation(Shape(fanouts), SLOTS, FAULTS, seed)

    smallest = simulation(shapes[0], seed).run(TENSORS)
    costs = [Cost(smallest, (smallest,))]
    print(f"{shapes[0][0]}: {said(smallest)}", flush=True)
    for fanouts in shapes[1:]:
        large = simulation(fanouts, seed)
        cost = in_turns(large, lambda number: simulation(shapes[0], seed + number), TENSORS)
        costs.append(cost)
        print(
            f"{' x '.join(map(str, fanouts))}: {said(cost.large)}: {cost.by_sent:.2f} and "
            f"{cost.by_needed:.2f} times as much as in {len(cost.small)} jobs of {shapes[0][0]} "
            "in turns with it",
            flush=True,
        )
    return costs


def measure(output: Path) -> list[Measured]:
    """Run `measured` in a process of its own; nothing where it cannot run."""
    report = output / "measured.json"
    command = [sys.executable, "-m", "bench.scale.measured", "--json", str(report)]
    done = subprocess.run(command, timeout=TIMEOUT, check=False, cwd=ROOT)
    if done.returncode == CANNOT_RUN:
        return []
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    results = json.loads(report.read_text())["results"]
    return [
        Measured(**{name: value for name, value in one.items() if name != "off"}) for one in results
    ]


def tables(costs: Sequence[Cost], found: Sequence[Measured]) -> None:
    """Write those of docs/scale.md."""
    put_table(
        "simulated",
        [
            "ranks",
            "switches",
            "contributions",
            "repeated",
            "STATUS each",
            "frames each",
            "frames lost",
            "µs sent",
            "relative to 64 ranks",
            "µs needed",
            "relative to 64 ranks",
        ],
        [
            [
                f"{one.ranks:,}",
                f"{one.switches}",
                f"{one.contributions:,}",
                f"{one.repeated:.1%}",
                f"{one.statuses / one.contributions:.2f}",
                f"{one.frames_each:.2f}",
                f"{one.lost:,}",
                f"{one.microseconds:.0f}",
                f"{cost.by_sent:.2f}",
                f"{one.microseconds_needed:.0f}",
                f"{cost.by_needed:.2f}",
            ]
            for cost in costs
            for one in (cost.large,)
        ],
        PAGE,
    )
    if found:
        cells = [
            [
                what(one),
                f"{one.workers} ranks, {one.switches} switch{'es' * (one.switches > 1)}",
                f"{1e3 * one.median:,.0f}",
                f"{1e3 * one.model:,.0f} ({one.off:+.1%})",
            ]
            for one in found
        ]
        head = ("tensor", "case", "measured", "model")
        values = {": ms": "measured", ", model": "model"}
        put_table("scale-measured", *pivot(head, cells, ("tensor",), "case", values), PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="64 ranks at most, nothing measured")
    parser.add_argument(
        "--seed", type=int, help="of faults and inputs [default: another each time]"
    )
    parser.add_argument("--docs", action="store_true", help="update docs/scale.md")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "scale")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    pictures = IMAGES if options.docs else options.output
    seed = int.from_bytes(os.urandom(4), "big") if options.seed is None else options.seed
    host = machine()
    print(f"{describe(host)}; seed {seed}", flush=True)
    costs = simulate(QUICK_SHAPES if options.quick else SHAPES, seed)
    outcomes = [cost.large for cost in costs]
    found = [] if options.quick else measure(options.output)
    report: dict[str, Any] = {
        "machine": host,
        "simulated": [
            asdict(cost.large) | {"by_sent": cost.by_sent, "by_needed": cost.by_needed}
            for cost in costs
        ],
        "measured": [asdict(one) for one in found],
    }
    (options.output / "results.json").write_text(json.dumps(report, indent=2) + "\n")
    draw_scale(pictures / "scale.png")
    draw_simulated(pictures / "scale-simulated.png", outcomes)
    if found:
        draw_measured(pictures / "scale-measured.png", found)
    if options.docs:
        tables(costs, found)
    print(f"{options.output / 'results.json'}, {pictures / 'scale.png'}")
    dearer = costs[-1].by_needed
    if not options.quick and dearer > MOST_DEARER:
        raise SystemExit(
            f"a contribution of {outcomes[-1].ranks:,} ranks, with its repetitions, takes "
            f"{dearer:.2f} times as much as one of {outcomes[0].ranks}; the aim is {MOST_DEARER}"
        )


if __name__ == "__main__":
    main()
