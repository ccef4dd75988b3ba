# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab run``: switch, controller and workers, a training, and the verdict on it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from p4reduce_lab import slow_paths
from p4reduce_lab.choice import LabChoice
from p4reduce_lab.demo.config import (
    COMPARED_STAGE,
    CONFIG_FILE,
    DATA_FILE,
    TrainingConfig,
)
from p4reduce_lab.demo.display import TrainingDisplay
from p4reduce_lab.demo.faults import Faults
from p4reduce_lab.demo.ranks.report import ProgressReader
from p4reduce_lab.demo.training.data import load_digits
from p4reduce_lab.demo.verdict.plot import plot
from p4reduce_lab.demo.verdict.results import Results
from p4reduce_lab.demo.verdict.summary import Summary
from p4reduce_lab.errors import LabError
from p4reduce_lab.processes.children import POLL, ChildProcess, Processes
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.processes.threads import single_thread_variables
from p4reduce_lab.system import System, rank_variables
from p4reduce_lab.topology import LabTopology

SUMMARY_FILE = "summary.json"
PICTURE_FILE = "training.png"
WORKER_LOG = "worker-{}.log"  # of each rank
# What FRAMEWORK=torch leaves as well: a directory holds one run.
REPLACED = (SUMMARY_FILE, PICTURE_FILE, "torch-*", "*.log", "*.pcap")
TRAINING_TIMEOUT = 600.0  # seconds; far above any sane training, so that nothing waits for ever
SMOOTHING = 1.0  # seconds over which the rate of contributions is shown


def run_demo(
    config: TrainingConfig,
    choice: LabChoice,
    output: Path,
    console: Console,
    topology: LabTopology,
) -> Summary:
    """Runs the demo and returns its summary, which is also in ``output``.

    Args:
        config, choice, output, console: The training, its switch, its output and its console.
        topology: The switches.

    Raises:
        LabError: something failed; the message says what, with the end of the log.
    """
    started = time.monotonic()
    with (
        results_directory(output, replace=REPLACED) as results,
        run_directory() as directory,
        System(choice, directory, results, topology) as system,
    ):
        system.start()
        # While switch and controller start, what needs neither.
        digits = load_digits(config.seed)
        config.save(directory / CONFIG_FILE)
        digits.save(directory / DATA_FILE)
        if config.compares:
            (directory / COMPARED_STAGE).mkdir()
        children = _start_children(config, system, directory, results)
        system.wait_ready(may_finish=children)
        if line := system.show_page():
            console.print(line)
        faults = Faults(config, system, children, directory)
        _watch(config, children, faults, system.processes, directory, console)
        system.wait_ready(may_finish=children)
        slow_paths.tell([results / WORKER_LOG.format(0)])  # the others say the same
        counts = system.counters()
        system.processes.end()
        inputs = digits.train_images.shape[1]
        found = Results.load(config, directory, inputs, faults.incident)
        summary = found.summary(choice.switch, choice.network, counts, topology.kind)
        _plot(results / PICTURE_FILE, choice, summary, found)
        summary = replace(summary, seconds=time.monotonic() - started)
        summary.write(results / SUMMARY_FILE)
    return summary


def _start_children(
    config: TrainingConfig,
    system: System,
    directory: Path,
    results: Path,
) -> list[ChildProcess]:
    """Starts the workers, and the reference beside them."""
    module = [sys.executable, "-m"]
    worker = [*module, "p4reduce_lab.demo.ranks.worker", str(directory)]
    children = [
        system.processes.start(
            f"worker of rank {rank}",
            system.rank_command(rank, worker),
            log=results / WORKER_LOG.format(rank),
            environment={**rank_variables(rank, config.workers), **system.variables()},
        )
        for rank in range(config.workers)
    ]
    reference = system.processes.start(
        "reference",
        [*module, "p4reduce_lab.demo.training.reference", str(directory)],
        log=results / "reference.log",
        environment=single_thread_variables(),
    )
    return [*children, reference]


def _watch(
    config: TrainingConfig,
    children: list[ChildProcess],
    faults: Faults,
    processes: Processes,
    directory: Path,
    console: Console,
) -> None:
    """Shows the progress until all ranks have ended, and injects the fault that is asked for."""
    deadline = time.monotonic() + TRAINING_TIMEOUT
    if config.compares:
        console.print(
            "To compare with: " + ("uncompressed" if config.compresses else "undisturbed")
        )
        apart = directory / COMPARED_STAGE
        _watch_stage(config, children, None, processes, apart, console, deadline)
    if config.compresses:
        console.print(f"Compression: {config.compression}")
    if config.faulty:
        console.print(f"Fault: {config.fault} after {config.fault_step} steps")
    _watch_stage(config, children, faults, processes, directory, console, deadline)
    while any(child.returncode is None for child in children):
        _check(children, processes, deadline)
        time.sleep(POLL)
    processes.check(may_finish=children)


def _watch_stage(
    config: TrainingConfig,
    children: list[ChildProcess],
    faults: Faults | None,
    processes: Processes,
    stage: Path,
    console: Console,
    deadline: float,
) -> None:
    """Shows the progress of one training until rank 0 has done all of its steps."""
    readers = [ProgressReader(stage, rank) for rank in range(config.workers)]
    rate = _ContributionRate()
    with TrainingDisplay(console, config.steps) as shown:
        while True:
            # Before the progress is read: a rank that has ended has written all of it.
            through = all(child.returncode is not None for child in children)
            _check(children, processes, deadline)
            samples = [reader.poll() for reader in readers]
            if (first := samples[0]) is not None:
                sent = sum(sample.contributions for sample in samples if sample is not None)
                shown.show(first, rate.of(sent))
                if first.step == config.steps:
                    if faults is not None and faults.due(first.step):
                        raise LabError("the training ended before the fault: take more --steps")
                    return
                if faults is not None and faults.due(first.step):
                    console.print(f"  {faults.make(first.step).text()}")
                    continue
            if through:
                raise LabError("the workers ended without having done all steps")
            time.sleep(POLL)


def _check(children: list[ChildProcess], processes: Processes, deadline: float) -> None:
    processes.check(may_finish=children)
    if time.monotonic() > deadline:
        late = [child.name for child in children if child.returncode is None]
        raise LabError(f"{', '.join(late)}: not finished after {TRAINING_TIMEOUT:.0f} s")


class _ContributionRate:
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


def _plot(path: Path, choice: LabChoice, summary: Summary, results: Results) -> None:
    ranks = "1 worker" if summary.workers == 1 else f"{summary.workers} workers"
    same = "bit-identical" if summary.identical_on_all_ranks else "different"
    title = f"{ranks}, gradients summed by the P4 program"
    caption = (
        f"Switch: {choice.name}. {summary.steps} steps of {summary.batch} images. "
        f"Sums within {summary.max_relative_error:.1e} of exact ones; "
        f"final weights {same} on all ranks; {summary.contributions:,} contributions."
    )
    if summary.compression is not None:
        title += f", compressed by {summary.compression.name}"
    fault = None
    if summary.fault is not None:
        what = summary.fault.name.replace("kill-worker", "a worker killed")
        fault = summary.fault.step, what.replace("restart-", "killed: ")
    plot(
        path,
        results.curve,
        results.reference,
        results.history,
        title=title,
        caption=caption,
        fault=fault,
    )
