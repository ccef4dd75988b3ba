# SPDX-License-Identifier: Apache-2.0
"""Everything about scale: simulations, the model of time, real links, and pictures of them.

    python -m bench.scale.run [--quick] [--seed 1] [--docs] [--output build/scale]

`make scale` is this without options: minutes, most of them for 4,096 ranks. With `--docs` the
pictures and tables of docs/scale.md are written; otherwise pictures go to the output folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from p4reduce_common.rows import markdown_table
from p4reduce_lab.errors import UnavailableError
from p4reduce_lab.measured.machine import describe, machine

from bench.pages import DOCS, IMAGES, pivot, put_text
from bench.program import Option, Row, read_options, run
from bench.record import ROOT
from bench.scale.cost import Cost, in_turns
from bench.scale.links import Faults
from bench.scale.measured import BANDWIDTH, SIDE_BY_SIDE, WORKERS, rows, what
from bench.scale.pictures import draw_measured, draw_scale, draw_simulated
from bench.scale.shape import Shape
from bench.scale.simulation import TENSORS, Simulation, said

PAGE = DOCS / "scale.md"
FAULTS = Faults(loss=0.01, duplication=0.005, reordering=0.02)
SHAPES = ((64,), (64, 4), (64, 16), (64, 64))
QUICK_SHAPES = ((8,), (8, 4), (8, 8))
SLOTS = 16
MOST_DEARER = 1.3
"""By how much the cost of a contribution may grow from the first of the shapes to the last, all its
repetitions included."""


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


HEAD = ("ranks", "switches", "contributions", "repeated", "STATUS each", "frames each",
        "frames lost", "µs sent", "relative to 64 ranks", "µs needed",
        "relative to 64 ranks")  # fmt: skip


def cells(cost: Cost) -> list[str]:
    """A line of the table of simulations."""
    one = cost.large
    return [
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


def tables(costs: Sequence[Cost], found: Sequence[Row]) -> None:
    """Write those of docs/scale.md."""
    put_text(PAGE, "simulated", markdown_table(HEAD, list(map(cells, costs))))
    if found:
        lines = [
            [
                what(one),
                f"{one['workers']} ranks, {one['switches']} switch{'es' * (one['switches'] > 1)}",
                f"{1e3 * one['median']:,.0f}",
                f"{1e3 * one['model']:,.0f} ({one['off']:+.1%})",
            ]
            for one in found
        ]
        head = ("tensor", "case", "measured", "model")
        values = {": ms": "measured", ", model": "model"}
        put_text(
            PAGE, "scale-measured", markdown_table(*pivot(head, lines, ("tensor",), "case", values))
        )


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs="docs/scale.md",
        quick=Option(False, "64 ranks at most, nothing measured"),
        seed=Option(None, "of faults and inputs [default: another each time]", int),
        output=ROOT / "build" / "scale",
    )
    options.output.mkdir(parents=True, exist_ok=True)
    pictures = IMAGES if options.docs else options.output
    seed = int.from_bytes(os.urandom(4), "big") if options.seed is None else options.seed
    host = machine()
    print(f"{describe(host)}; seed {seed}", flush=True)
    costs = simulate(QUICK_SHAPES if options.quick else SHAPES, seed)
    outcomes = [cost.large for cost in costs]
    found: list[Row] = []
    try:
        if not options.quick:
            found = list(rows(list(WORKERS), list(SIDE_BY_SIDE), BANDWIDTH))
    except UnavailableError as error:
        print(error, file=sys.stderr)
    simulated = [
        asdict(cost.large) | {"by_sent": cost.by_sent, "by_needed": cost.by_needed}
        for cost in costs
    ]
    report = {"machine": host, "simulated": simulated, "measured": found}
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
    run(main)
