# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab run``: switch, controller and workers, a training, and the verdict on it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from p4reduce.control import control_pb2 as pb
from p4reduce_controller.outcome import Outcome
from rich.console import Console

from p4reduce_lab.choice import Choice
from p4reduce_lab.demo.config import (
    CONFIG_FILE,
    CURVE_FILE,
    DATA_FILE,
    REFERENCE_FILE,
    TrainingConfig,
)
from p4reduce_lab.demo.curve import Curve
from p4reduce_lab.demo.data import Digits, load_digits
from p4reduce_lab.demo.display import Status, display
from p4reduce_lab.demo.model import tensor_sizes
from p4reduce_lab.demo.plot import plot
from p4reduce_lab.demo.record import measure
from p4reduce_lab.demo.report import ProgressReader, RankReport
from p4reduce_lab.demo.summary import Summary
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes import POLL, Child, Processes
from p4reduce_lab.rundir import results_directory, run_directory
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.threads import single_thread_variables

SUMMARY_FILE = "summary.json"
PICTURE_FILE = "training.png"
REPLACED = (SUMMARY_FILE, PICTURE_FILE, "*.log", "*.pcap")
TRAINING_TIMEOUT = 600.0  # seconds; far above any sane training, so that nothing waits for ever
SMOOTHING = 1.0  # seconds over which the rate of contributions is shown

ADDED = (
    Outcome.ROUND_OPENED,
    Outcome.ROUND_JOINED,
    Outcome.ROUND_COMPLETED,
    Outcome.ROUND_COMPLETED_HALVES,
)
COMPLETED = (Outcome.ROUND_COMPLETED, Outcome.ROUND_COMPLETED_HALVES)


def run_demo(config: TrainingConfig, choice: Choice, output: Path, console: Console) -> Summary:
    """Runs the demo and returns its summary, which is also in ``output``.

    Raises:
        LabError: something failed; the message says what, with the end of the log.
    """
    started = time.monotonic()
    with (
        results_directory(output, replace=REPLACED) as results,
        run_directory() as directory,
        System(choice, directory, results, ports=config.workers) as system,
    ):
        system.start()
        # While switch and controller start, what needs neither.
        digits = load_digits(config.seed)
        config.save(directory / CONFIG_FILE)
        digits.save(directory / DATA_FILE)
        children = _start_children(config, system, directory, results)
        system.wait_ready(may_finish=children)
        _watch(config, children, system.processes, directory, console)
        outcomes = _outcomes(system)
        system.processes.end()
        summary = _summarise(config, choice, digits, directory, outcomes)
        _plot(
            results / PICTURE_FILE,
            choice,
            summary,
            Curve.load(directory / CURVE_FILE),
            Curve.load(directory / REFERENCE_FILE),
        )
        summary = replace(summary, seconds=time.monotonic() - started)
        summary.write(results / SUMMARY_FILE)
    return summary


def _start_children(
    config: TrainingConfig,
    system: System,
    directory: Path,
    results: Path,
) -> list[Child]:
    """Starts the workers, and the reference beside them."""
    lab = [sys.executable, "-m", "p4reduce_lab"]
    children = [
        system.processes.start(
            f"worker of rank {rank}",
            system.rank_command(rank, [*lab, "worker", str(directory)]),
            log=results / f"worker-{rank}.log",
            environment={**rank_variables(rank, config.workers), **system.variables()},
        )
        for rank in range(config.workers)
    ]
    reference = system.processes.start(
        "reference",
        [*lab, "reference", str(directory)],
        log=results / "reference.log",
        environment=single_thread_variables(),
    )
    return [*children, reference]


def _watch(
    config: TrainingConfig,
    children: list[Child],
    processes: Processes,
    directory: Path,
    console: Console,
) -> None:
    """Shows the progress until all are through."""
    readers = [ProgressReader(directory, rank) for rank in range(config.workers)]
    rate = _Rate()
    all_steps_shown = False
    deadline = time.monotonic() + TRAINING_TIMEOUT
    with display(console, config.steps) as shown:
        while any(child.returncode is None for child in children):
            processes.check(may_finish=children)
            samples = [reader.poll() for reader in readers]
            # Once all steps are done there is nothing new to show, and the rate would fall to 0.
            if (first := samples[0]) is not None and not all_steps_shown:
                sent = sum(sample.contributions for sample in samples if sample is not None)
                shown.show(Status(first.step, first.loss, first.accuracy, rate.of(sent)))
                all_steps_shown = first.step == config.steps
            if time.monotonic() > deadline:
                late = [child.name for child in children if child.returncode is None]
                raise LabError(f"{', '.join(late)}: not through after {TRAINING_TIMEOUT:.0f} s")
            time.sleep(POLL)
    processes.check(may_finish=children)


class _Rate:
    """Contributions per second over the last SMOOTHING seconds."""

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def of(self, count: int) -> float:
        now = time.monotonic()
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[1][0] > SMOOTHING:
            del self._points[0]
        (then, before) = self._points[0]
        return (count - before) / (now - then) if now > then else 0.0


@dataclass(frozen=True)
class _Outcomes:
    counts: dict[str, int]

    def total(self, outcomes: tuple[Outcome, ...]) -> int:
        return sum(self.counts.get(outcome.label, 0) for outcome in outcomes)


def _outcomes(system: System) -> _Outcomes:
    counters = system.control.call(system.control.stub.GetCounters, pb.GetCountersRequest())
    return _Outcomes({count.name: count.frames for count in counters.counts if count.frames})


def _summarise(
    config: TrainingConfig,
    choice: Choice,
    digits: Digits,
    directory: Path,
    outcomes: _Outcomes,
) -> Summary:
    reports = [RankReport.load(directory, rank) for rank in range(config.workers)]
    sizes = tensor_sizes(digits.train_images.shape[1], config.hidden)
    accuracy = measure(directory, config.workers, list(sizes.values()))
    seconds = max(report.seconds for report in reports)
    contributions = outcomes.total(ADDED)
    return Summary(
        switch=choice.switch,
        network=choice.network,
        workers=config.workers,
        steps=config.steps,
        batch=config.batch,
        parameters=sum(sizes.values()) - sizes["loss"],
        test_accuracy=reports[0].accuracy,
        reference_accuracy=Curve.load(directory / REFERENCE_FILE).accuracies[-1],
        final_loss=Curve.load(directory / CURVE_FILE).losses[-1],
        weights_sha256=reports[0].weights,
        identical_on_all_ranks=len({report.weights for report in reports}) == 1,
        identical_results_on_all_ranks=len({report.results for report in reports}) == 1,
        max_relative_error=accuracy.maximum,
        compared_elements=accuracy.elements,
        contributions=contributions,
        results=outcomes.total(COMPLETED),
        retransmissions=sum(report.retransmissions for report in reports),
        round_trip_us=sum(report.round_trip_us for report in reports) / len(reports),
        contributions_per_second=contributions / seconds,
        training_seconds=seconds,
        seconds=0.0,  # known when all is done
        outcomes=outcomes.counts,
    )


def _plot(path: Path, choice: Choice, summary: Summary, curve: Curve, reference: Curve) -> None:
    ranks = "1 worker" if summary.workers == 1 else f"{summary.workers} workers"
    same = "bit-identical" if summary.identical_on_all_ranks else "different"
    plot(
        path,
        curve,
        reference,
        title=f"{ranks}, gradients summed by the P4 program",
        caption=(
            f"Switch: {choice.name}. {summary.steps} steps of {summary.batch} images. "
            f"Sums within {summary.max_relative_error:.1e} of exact ones; "
            f"final weights {same} on all ranks; {summary.contributions:,} contributions."
        ),
    )
