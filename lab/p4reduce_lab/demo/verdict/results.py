# SPDX-License-Identifier: Apache-2.0
"""Reads and combines the results of a run's ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from p4reduce.compression import compressor_by_name
from p4reduce_controller.fabric.outcome import FrameOutcome

from p4reduce_lab.demo.config import (
    COMPARED_STAGE,
    CURVE_FILE,
    REFERENCE_FILE,
    RESTART_SWITCH,
    TrainingConfig,
)
from p4reduce_lab.demo.faults import Incident
from p4reduce_lab.demo.ranks.compressed import TENSOR, CompressionHistory
from p4reduce_lab.demo.ranks.record import Accuracy, measure, recorded_every
from p4reduce_lab.demo.ranks.report import Compared, RankReport
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.demo.training.model import tensor_sizes
from p4reduce_lab.demo.verdict.summary import CompressionSummary, FaultSummary, Summary

ADDED = (
    FrameOutcome.ROUND_OPENED,
    FrameOutcome.ROUND_JOINED,
    FrameOutcome.ROUND_COMPLETED,
    FrameOutcome.ROUND_COMPLETED_HALVES,
    # The last one below a switch that sends its sums up; it may have had no room for them.
    FrameOutcome.SUMS_SENT_UP,
    FrameOutcome.ROOM_ASKED,
)
COMPLETED = (FrameOutcome.ROUND_COMPLETED, FrameOutcome.ROUND_COMPLETED_HALVES)


@dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        config: Of the run.
        parameters: Of the model.
        reports: Of the ranks.
        accuracy: Of all sums, in both trainings if there were two.
        curve: Of the training that the run is about.
        reference: Of the one summed by numpy.
        history: What was sent in each step, the mean of the ranks; None without compression.
        incident: What was killed; None without a fault.
    """

    config: TrainingConfig
    parameters: int
    reports: Sequence[RankReport]
    accuracy: Accuracy
    curve: Curve
    reference: Curve
    history: CompressionHistory | None
    incident: Incident | None

    @classmethod
    def load(
        cls,
        config: TrainingConfig,
        directory: Path,
        inputs: int,
        incident: Incident | None = None,
    ) -> Results:
        """Read it from the run's directory. `inputs` is the number of the model's inputs."""
        victim = None if incident is None else incident.victim
        ranks = [rank for rank in range(config.workers) if rank != victim]
        reports = [RankReport.load(directory, rank) for rank in ranks]
        until = {}
        if victim is not None and reports[0].resumed is not None:
            until[victim] = -(-reports[0].resumed // recorded_every(config.steps))
        sizes = tensor_sizes(inputs, config.hidden)
        parameters = sum(sizes.values()) - sizes["loss"]
        history, narrow = None, {}
        before = Accuracy(0.0, 0.0, 0)
        if config.compares:
            before = measure(directory / COMPARED_STAGE, config.workers, list(sizes.values()))
        if config.compresses:
            history = CompressionHistory.mean(
                [CompressionHistory.load(directory, rank) for rank in ranks]
            )
            sizes = {"loss": 1, TENSOR: parameters}
            lane_bits = compressor_by_name(config.compression, config.workers).lane_bits
            narrow = {1: f"int{lane_bits}"}
        accuracy = measure(directory, config.workers, list(sizes.values()), narrow, until)
        return cls(
            config,
            parameters,
            reports,
            before.joined(accuracy),
            Curve.load(directory / CURVE_FILE),
            Curve.load(directory / REFERENCE_FILE),
            history,
            incident,
        )

    def summary(
        self,
        switch: str,
        network: str,
        by_switch: Sequence[Mapping[str, int]],
        topology: str = "star",
    ) -> Summary:
        """Return the figures.

        Args:
            switch, network, topology: As `Summary` has them.
            by_switch: The counters of each switch, by label, where not 0.
        """
        first, *_ = reports = self.reports
        labels = sorted({label for counts in by_switch for label in counts})
        outcomes = {label: sum(counts.get(label, 0) for counts in by_switch) for label in labels}
        added = [sum(counts.get(outcome.label, 0) for outcome in ADDED) for counts in by_switch]
        results = sum(outcomes.get(outcome.label, 0) for outcome in COMPLETED)
        # In a tree, all but the root send their sums up, which are heard once more there.
        links = len(by_switch) - 1 if topology == "tree" else 0
        contributions = sum(added) - links * results
        # What a switch had summed before it was killed, its next life does not know.
        forgetful = self.config.fault == RESTART_SWITCH
        return Summary(
            switch=switch,
            network=network,
            workers=self.config.workers,
            steps=self.config.steps,
            batch=self.config.batch,
            parameters=self.parameters,
            test_accuracy=first.accuracy,
            reference_accuracy=self.reference.accuracies[-1],
            final_loss=self.curve.losses[-1],
            weights_sha256=first.weights,
            identical_on_all_ranks=len({report.all_weights for report in reports}) == 1,
            identical_results_on_all_ranks=len({report.results for report in reports}) == 1,
            max_relative_error=self.accuracy.maximum,
            error_of_bound=self.accuracy.of_bound,
            compared_elements=self.accuracy.elements,
            contributions=contributions,
            results=results,
            retransmissions=sum(report.retransmissions for report in reports),
            round_trip_us=sum(report.round_trip_us for report in reports) / len(reports),
            contributions_per_second=contributions
            / max(report.connected_seconds for report in reports),
            training_seconds=max(report.seconds for report in reports),
            seconds=0.0,  # known when all is done
            outcomes=outcomes,
            switches=len(added) if forgetful else sum(count > 0 for count in added),
            topology=topology,
            contributions_by_switch=added,
            compression=self._compression(),
            fault=self._fault(),
        )

    @property
    def compared(self) -> Compared | None:
        """Return rank 0's report of the training before."""
        return self.reports[0].compared

    def _compression(self) -> CompressionSummary | None:
        compared = self.compared
        link = self.reports[0].link
        if self.history is None or compared is None or link is None:
            return None
        history = self.history
        levels = np.array(history.blocks)
        alphas = [alpha for alpha in history.alphas if alpha is not None]
        trained = self.config.compressed()
        return CompressionSummary(
            name=self.config.compression,
            learning_rate=trained.learning_rate,
            momentum=trained.momentum,
            bandwidth=link.bandwidth,
            round_trip=link.rtt,
            frame_seconds=link.frame_seconds,
            bytes=round(history.moved[-1]),
            uncompressed_bytes=round(history.uncompressed_moved[-1]),
            level_minimum=float(levels.min()),
            level_median=float(np.median(levels)),
            level_maximum=float(levels.max()),
            total_blocks=history.total_blocks,
            alpha_mean=float(np.mean(alphas)) if alphas else None,
            uncompressed_accuracy=compared.accuracy,
            uncompressed_weights_sha256=compared.weights,
            uncompressed_seconds=compared.seconds,
        )

    def _fault(self) -> FaultSummary | None:
        compared, incident = self.compared, self.incident
        if incident is None or compared is None:
            return None
        # The latest start of a step that the fault can have delayed.
        until = incident.killed if incident.back is None else incident.back
        pauses, usual = [], []
        notices: dict[str, float] = {}
        for report in self.reports:
            ends = np.array(report.step_ends)
            taken = np.diff(ends)
            usual.append(float(np.median(taken)))
            held_up = (ends[1:] > incident.killed) & (ends[:-1] <= until)
            pauses.append(float(taken[held_up].max(initial=0.0)))
            for notice in report.notices:
                if notice.at >= incident.killed:
                    notices.setdefault(notice.text, notice.at - incident.killed)
        return FaultSummary(
            name=self.config.fault,
            text=incident.text(),
            step=incident.step,
            away_seconds=None if incident.back is None else incident.back - incident.killed,
            pause_seconds=max(pauses),
            usual_seconds=float(np.median(usual)),
            notices=dict(sorted(notices.items(), key=lambda item: item[1])),
            recoveries=max(report.recoveries for report in self.reports),
            undisturbed_weights_sha256=compared.weights,
            undisturbed_accuracy=compared.accuracy,
            survivors=len(self.reports),
            resumed=self.reports[0].resumed,
        )
