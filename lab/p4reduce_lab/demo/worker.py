# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo: trains on its shards, gradients all-reduced through the switch."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import p4reduce

from p4reduce_lab.demo.config import CONFIG_FILE, CURVE_FILE, DATA_FILE, TrainingConfig
from p4reduce_lab.demo.data import Digits
from p4reduce_lab.demo.model import Floats, tensor_sizes
from p4reduce_lab.demo.record import Recorder
from p4reduce_lab.demo.report import ProgressWriter, RankReport
from p4reduce_lab.demo.training import Progress, Step, train


class SwitchAggregator:
    """Stands for one rank; the switch adds the others' parts.

    Each layer's gradient is sent as soon as it is computed, so that the switch adds up the last
    layer's while this rank computes the one before.
    """

    def __init__(self, comm: p4reduce.Communicator, recorder: Recorder) -> None:
        self._comm = comm
        self._recorder = recorder

    def aggregate(self, step: Step, gradient: Floats) -> float:
        """See :class:`~p4reduce_lab.demo.training.Aggregator`."""
        flying = []
        start = 0
        for name, tensor in step.backward(self._comm.rank, gradient):
            self._recorder.contribution(step.number, start, tensor)
            handle = self._comm.allreduce_async(tensor, op=p4reduce.SUM, name=name, out=tensor)
            flying.append((start, tensor, handle))
            start += len(tensor)
        for start, tensor, handle in flying:
            handle.wait()
            self._recorder.result(step.number, start, tensor)
        return float(flying[0][1][0])


def run_worker(directory: Path, rank: int | None = None, controller: str | None = None) -> None:
    """Trains as one rank, and leaves its report and records in ``directory``.

    Args:
        directory: Holds the configuration and the data, written by the launcher.
        rank: None: from the environment, as for :func:`p4reduce.init`.
        controller: The controller's address; None: from the environment.
    """
    config = TrainingConfig.load(directory / CONFIG_FILE)
    digits = Digits.load(directory / DATA_FILE)
    with p4reduce.init(rank=rank, world_size=config.workers, controller=controller) as comm:
        sizes = tensor_sizes(digits.train_images.shape[1], config.hidden)
        recorder = Recorder(directory, comm.rank, config.steps, sum(sizes.values()))
        writer = ProgressWriter(directory, comm.rank, config.steps)

        def on_step(progress: Progress) -> None:
            if writer.due(progress):
                writer.write(progress, comm.stats.frames_sent)

        start = time.monotonic()
        model, curve = train(config, digits, SwitchAggregator(comm, recorder), on_step)
        seconds = time.monotonic() - start
        writer.close()
        stats = comm.stats
        if comm.rank == 0:
            curve.save(directory / CURVE_FILE)
        RankReport(
            weights=hashlib.sha256(np.ascontiguousarray(model.parameters).data).hexdigest(),
            results=recorder.digest(),
            accuracy=model.accuracy(digits.test_images, digits.test_labels),
            sent=stats.frames_sent,
            retransmissions=stats.retransmissions,
            round_trip_us=1e6 * stats.round_trip_p50,
            seconds=seconds,
        ).save(directory, comm.rank)
