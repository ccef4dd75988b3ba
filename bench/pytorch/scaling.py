# SPDX-License-Identifier: Apache-2.0
"""Large batches on 1 to 64 ranks: steps and time to accuracy, beside what the planner predicts.

The convolutional network of `make run FRAMEWORK=torch` is trained on scikit-learn's digits to 93 %
of the test images, on links so slow that they are the limit. Computing takes a fixed time per 16
samples: what the cores take less is slept. Two series:

- the batch grows: each rank has 16 samples per step. The rate follows by the linear rule;
- the batch is shared: 128 samples, whatever the number of ranks. This gives the efficiency α of
  Zou et al. (2017).

Trainings on up to 8 ranks run over the network. Steps to accuracy on more ranks are from one
process with the same batches, and times are the planner's.

    python -m bench.pytorch.scaling [--ranks 1 2 4 8] [--series grown shared] [--rate 10]
        [--backends p4reduce gloo] [--json FILE] [--from FILE ...] [--docs]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from p4reduce_common.rows import markdown_table
from p4reduce_lab.compare.cells import ETHERNET, PORT_BYTES
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import SWITCHES, PlannedLink
from p4reduce_lab.planning.schemes import Cluster, by_ring, by_switches
from p4reduce_lab.planning.training import efficiency, even_step, step_time

from bench import program
from bench.program import Option, read_options
from bench.pytorch.accuracy import beginning, together
from bench.pytorch.over_links import run_over_links
from bench.record import Record, Section

SHARED = 8  # streams of the batch that is shared
COMPUTE = 0.1  # seconds for the 16 samples of a stream
RANKS = (1, 2, 4, 8, 16, 32, 64)
BACKENDS = {"p4reduce": "one switch", "gloo": "Gloo's ring"}
SEEDS = 3  # of the emulation; the network has the first
MOST_STEPS = 600
SHARED_STEPS = 20
OUTPUT = Path("build/bench/scaling.json")
PAGE = "docs/planner.md"
GROWN_HEAD = ("ranks", "batch", "steps", "three seeds", "steps measured", "a step, predicted",
              "measured", "time, predicted", "measured", "off", "times one rank")  # fmt: skip
SHARED_HEAD = ("ranks", "sums by", "a step, predicted", "measured", "α, predicted", "measured",
               "off", "of one rank's speed, predicted", "measured", "off")  # fmt: skip


def predicted_step(backend: str, ranks: int, streams: float, rate: float, parameters: int) -> float:
    """Return the planner's seconds of a step.

    A rank has so many `streams`; a part of one where a batch has fewer than 16 samples for it.
    `rate` is of each link, in Mbit/s. The parameters are summed in one bucket.
    """
    # A shaper of the kernel counts frames from their Ethernet header on.
    link = PlannedLink(rate * 1e6, overhead=PORT_BYTES[ETHERNET])
    cluster = Cluster(ranks, link, switch=SWITCHES["embedded"])

    def seconds(elements: int) -> float:
        if ranks == 1:
            return 0.0
        if backend == "gloo":
            return by_ring(cluster, PlannedTensor(elements)).seconds
        return by_switches(cluster, PlannedTensor(elements), cluster.star()).seconds

    return step_time(even_step(COMPUTE * streams, parameters, parameters), seconds).overlapped


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train over the network, one run after the other."""
    from bench.pytorch.scaling_rank import train_rank  # needs torch

    found = []
    for series in options.series:
        grown = series == "grown"
        given = {"compute": COMPUTE, "seed": 0, "to_target": grown}
        given["steps"] = MOST_STEPS if grown else SHARED_STEPS
        for backend, ranks in itertools.product(
            ["p4reduce"] if grown else options.backends, options.ranks
        ):
            streams = ranks if grown else SHARED
            run = run_over_links(backend, train_rank, ranks, options.rate, streams=streams, **given)
            run |= {"series": series, "backend": backend, "ranks": ranks}
            found.append({**run, "rate_mbit": options.rate})
            print(json.dumps(found[-1]), flush=True)
    return found


def emulation() -> dict[str, Any]:
    """Return the steps to accuracy for each number of ranks and seed, and the network's size."""
    from bench.pytorch.scaling_rank import emulated, parameters  # needs torch

    steps = {}
    for ranks in RANKS:
        trained = [emulated(ranks, seed, MOST_STEPS) for seed in range(SEEDS)]
        steps[str(ranks)] = [one.steps if one.accuracy >= 0.93 else None for one in trained]
        print(f"{ranks} ranks: {steps[str(ranks)]} steps", flush=True)
    return {"steps": steps, "parameters": parameters()}


def grown_lines(report: dict[str, Any]) -> list[list[str]]:
    """Return rows for `GROWN_HEAD`."""
    runs = {run["ranks"]: run for run in report["runs"] if run["series"] == "grown"}
    parameters, rate = report["emulation"]["parameters"], report["rate_mbit"]
    shown: list[list[str]] = []
    first = 0.0
    for ranks in RANKS:
        all_steps = report["emulation"]["steps"][str(ranks)]
        step = predicted_step("p4reduce", ranks, 1.0, rate, parameters)
        total = all_steps[0] * step
        first = first or total
        there = [one for one in all_steps if one is not None]
        missing = f", {len(there)} of {len(all_steps)} seeds" if len(there) < len(all_steps) else ""
        measured = ["-"] * 4
        if run := runs.get(ranks):
            measured = [
                str(run["steps"]),
                f"{1e3 * run['step_seconds']:.0f} ms",
                f"{run['seconds']:.1f} s",
                f"{total / run['seconds'] - 1:+.1%}",
            ]
        shown.append(
            [
                str(ranks),
                f"{16 * ranks:,}",
                str(all_steps[0]),
                f"{statistics.median(there):g} ({min(there)} to {max(there)}){missing}",
                measured[0],
                f"{1e3 * step:.0f} ms",
                measured[1],
                f"{total:.1f} s",
                *measured[2:],
                f"{first / total:.1f}",
            ]
        )
    return shown


def shared_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the efficiency for each number of ranks and backend, predicted and measured.

    "of_one" is one rank's step by G steps: a single rank has nothing to sum. "alpha" is that of Zou
    et al., in which one rank has the overhead as well; for sums by the switch, whose time does not
    grow with G.
    """
    shared = [run for run in report["runs"] if run["series"] == "shared"]
    runs = {(run["backend"], run["ranks"]): run for run in shared}
    parameters, rate = report["emulation"]["parameters"], report["rate_mbit"]
    rows = []
    for backend in BACKENDS:
        alone = runs.get((backend, 1))
        for ranks in RANKS[1:]:
            step = predicted_step(backend, ranks, SHARED / ranks, rate, parameters)
            run = runs.get((backend, ranks))
            row: dict[str, Any] = {"ranks": ranks, "backend": backend}
            row["predicted"] = _efficiencies(COMPUTE * SHARED, step, ranks)
            if run is not None and alone is not None:
                row["measured"] = _efficiencies(alone["step_seconds"], run["step_seconds"], ranks)
            rows.append(row)
    return rows


def _efficiencies(alone: float, step: float, ranks: int) -> dict[str, float]:
    """From the seconds of a step by one rank without sums, and by all ranks."""
    overhead = max(step - alone / ranks, 0.0) / alone
    alpha = efficiency(ranks, overhead)
    return {"step": step, "of_one": alone / (ranks * step), "alpha": alpha}


def shared_lines(report: dict[str, Any]) -> list[list[str]]:
    """Return rows for `SHARED_HEAD`."""
    shown = []
    for row in shared_rows(report):
        predicted, measured = row["predicted"], row.get("measured")
        cells = [str(row["ranks"]), BACKENDS[row["backend"]], f"{1e3 * predicted['step']:.0f} ms"]
        cells.append(f"{1e3 * measured['step']:.0f} ms" if measured else "-")
        for name in ("alpha", "of_one"):
            three = ["-"] * 3
            if name != "alpha" or row["backend"] == "p4reduce":
                three[0] = f"{predicted[name]:.3f}"
                if measured:
                    off = predicted[name] / measured[name] - 1
                    three[1:] = f"{measured[name]:.3f}", f"{off:+.1%}"
            cells += three
        shown.append(cells)
    return shown


def record(report: dict[str, Any]) -> Record:
    """Return what the page shows."""
    late = max(run["late"] for run in report["runs"])
    said = f"Links of {report['rate_mbit']:g} Mbit/s, {1e3 * COMPUTE:.0f} ms per 16 samples; "
    said += f"computing took longer in at most {late:.0%} of a run's steps."
    text = f"{described(report)} {said}\n\n"
    sections = (
        Section(PAGE, "scaling-grown", text, GROWN_HEAD, grown_lines(report)),
        Section(PAGE, "scaling-shared", head=SHARED_HEAD, rows=shared_lines(report)),
    )
    begun = beginning(report, ("runs", "emulation"))
    return Record("scaling", "python -m bench.pytorch.scaling --docs", begun, sections)


def main() -> None:
    options = read_options(
        __doc__,
        to_json=False,
        docs=PAGE,
        rate=Option(10.0, "of a link, in Mbit/s"),
        ranks=[1, 2, 4, 8],
        series=Option(["grown", "shared"], choices=("grown", "shared")),
        backends=Option(list(BACKENDS), choices=list(BACKENDS)),
        network_only=Option(False, "no emulation, no table: a part for --from"),
        json=OUTPUT,
        **{"from": Option(list[Path](), "measure nothing, show these files together", Path)},
    )
    if earlier := vars(options)["from"]:
        report = together(earlier)
    else:
        report = {**provenance("torch"), "rate_mbit": options.rate, "runs": measure(options)}
    if "emulation" not in report and not options.network_only:
        report["emulation"] = emulation()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.network_only:
        return
    print(markdown_table(GROWN_HEAD, grown_lines(report)))
    print(markdown_table(SHARED_HEAD, shared_lines(report)))
    if options.docs:
        record(report).keep()


if __name__ == "__main__":
    program.run(main)
