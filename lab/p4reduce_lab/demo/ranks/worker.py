# SPDX-License-Identifier: Apache-2.0
"""One rank of the demo: ``python -m p4reduce_lab.demo.ranks.worker DIRECTORY``.

It trains on its shards, gradients all-reduced through the switch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce.compression import CompressedAllreduce, SwitchLink, compressor_by_name, measure_link
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient, ControlError
from p4reduce.control.controller_address import default_address
from p4reduce_common.polling import holds_within

from p4reduce_lab.demo.config import (
    COMPARED_STAGE,
    CONFIG_FILE,
    CURVE_FILE,
    DATA_FILE,
    FAULT_FILE,
    KILL_WORKER,
    TrainingConfig,
)
from p4reduce_lab.demo.ranks.compressed import CompressedAggregator, CompressionHistory
from p4reduce_lab.demo.ranks.record import TensorRecorder
from p4reduce_lab.demo.ranks.report import (
    Compared,
    Notice,
    ProgressWriter,
    RankReport,
)
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.demo.training.data import Digits
from p4reduce_lab.demo.training.model import Floats, Perceptron, tensor_sizes
from p4reduce_lab.demo.training.sgd import Aggregator, FewerRanksError, SgdProgress, SgdStep, train
from p4reduce_lab.errors import LabError

ROUNDS = 4  # of measuring the link: how often each slot is used
FAULT_TIMEOUT = 120.0  # seconds; for the launcher to make the fault
POLL = 0.01  # seconds
CONTROLLER_TIMEOUT = 120.0  # seconds; the lab ends this rank if switch or controller end


class SwitchAggregator:
    """Stands for one rank; the switch adds the others' parts.

    Each layer's gradient is sent as soon as it is computed, so that the switch adds up the last
    layer's while this rank computes the one before.

    Args:
        comm: The first communicator.
        recorder: The records of this rank.
        reform: Called when a rank is lost; returns the communicator of the remaining ranks.
            None: a loss is an error.
    """

    def __init__(
        self,
        comm: p4reduce.Communicator,
        recorder: TensorRecorder,
        reform: Callable[[p4reduce.WorkerLostError], p4reduce.Communicator] | None = None,
    ) -> None:
        self._comm = comm
        self._recorder = recorder
        self._reform = reform
        self.resumed: int | None = None

    def aggregate(self, step: SgdStep, gradient: Floats) -> float:
        """Aggregate a gradient: see :class:`~p4reduce_lab.demo.training.sgd.Aggregator`."""
        try:
            return self._sum(step, gradient)
        except p4reduce.WorkerLostError as error:
            if self._reform is None:
                raise
            self._comm = self._reform(error)
            raise FewerRanksError(self._adopt) from error

    def _adopt(self, done: int, state: Sequence[Floats]) -> int:
        agreed = self._comm.broadcast(np.array([done], np.int32), root=0, name="steps done")
        for index, array in enumerate(state):
            self._comm.broadcast(array, root=0, name=f"state {index}", out=array)
        self.resumed = int(agreed[0])
        return self.resumed

    def _sum(self, step: SgdStep, gradient: Floats) -> float:
        flying = []
        start = 0
        for name, tensor in step.backward(self._comm.rank, self._comm.size, gradient):
            self._recorder.contribution(step.number, start, tensor)
            handle = self._comm.allreduce_async(tensor, op=p4reduce.SUM, name=name, out=tensor)
            flying.append((start, tensor, handle))
            start += len(tensor)
        for start, tensor, handle in flying:
            handle.wait()
            self._recorder.result(step.number, start, tensor)
        return float(flying[0][1][0])


@dataclass(frozen=True)
class _Trained:
    """What came of one training.

    Attributes:
        model, curve: see :func:`~p4reduce_lab.demo.training.sgd.train`.
        moved: Bytes of frames sent and received up to each step's end, where it is compared.
        ends: When each step ended, on the monotonic clock.
        seconds: From the first step to the last.
    """

    model: Perceptron
    curve: Curve
    moved: list[float]
    ends: list[float]
    seconds: float

    @property
    def weights(self) -> str:
        """SHA-256 of the final weights."""
        return hashlib.sha256(np.ascontiguousarray(self.model.parameters).data).hexdigest()

    def compared(self) -> Compared:
        """Its name in reports, if it is not the run's main training."""
        return Compared(self.weights, self.curve.accuracies[-1], self.seconds)


class _Notices(logging.Handler):
    """Keeps what the library warns of, and leaves it in the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: list[Notice] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        self.add(record.getMessage())

    def add(self, text: str) -> None:
        """Keeps a text."""
        self.kept.append(Notice(time.monotonic(), text))
        _log(text)


class RankTraining:
    """One rank's training, or its two: uncompressed and compressed over one communicator."""

    def __init__(
        self, config: TrainingConfig, directory: Path, digits: Digits, comm: p4reduce.Communicator
    ) -> None:
        self._config = config
        self._directory = directory
        self._digits = digits
        self._comm = comm
        self._rank = comm.rank  # for the names of files: it is another one when ranks are lost
        self._sent_before = 0
        self._notices = _Notices()
        logging.getLogger("p4reduce").addHandler(self._notices)

    def run(self) -> None:
        """Trains, and leaves report, records and curves in the directory."""
        start = time.monotonic()
        recorder = self._recorder(self._directory)
        whole: _Trained | None = None
        link: SwitchLink | None = None
        if self._config.compares:
            apart = self._directory / COMPARED_STAGE
            whole = self._train(apart, SwitchAggregator(self._comm, self._recorder(apart)))
        if whole is not None and self._config.compresses:
            trained, link = self._compress(recorder, whole)
            resumed = None
        else:
            reform = self.reform if self._config.fault == KILL_WORKER else None
            aggregator = SwitchAggregator(self._comm, recorder, reform)
            trained = self._train(self._directory, aggregator)
            resumed = aggregator.resumed
        seconds = time.monotonic() - start
        if self._rank == 0:
            trained.curve.save(self._directory / CURVE_FILE)
        stats = self._comm.stats
        RankReport(
            weights=trained.weights,
            results=recorder.digest(since=resumed or 0),
            accuracy=trained.curve.accuracies[-1],
            sent=stats.frames_sent,
            retransmissions=stats.retransmissions,
            round_trip_us=1e6 * stats.round_trip_p50,
            seconds=trained.seconds,
            connected_seconds=seconds,
            compared=None if whole is None else whole.compared(),
            link=link,
            step_ends=trained.ends if self._config.faulty else (),
            notices=self._notices.kept,
            recoveries=stats.recoveries,
            resumed=resumed,
        ).save(self._directory, self._rank)
        self._comm.close()

    def reform(self, error: p4reduce.WorkerLostError) -> p4reduce.Communicator:
        """Continue with the remaining ranks."""
        who = f"rank {self._rank} of job {self._comm.job!r}"
        self._notices.add(f"{who}: {type(error).__name__}: {error}")
        self._sent_before = self.sent  # the next communicator counts from nothing
        self._comm = self._comm.reform()
        self._notices.add(f"{who}: is rank {self._comm.rank} of {self._comm.size} now")
        return self._comm

    def _compress(self, recorder: TensorRecorder, whole: _Trained) -> tuple[_Trained, SwitchLink]:
        link = measure_link(self._comm, blocks=ROUNDS * self._comm.slots)
        compressor = compressor_by_name(self._config.compression, self._comm.size, link)
        history = CompressionHistory()
        reduce = CompressedAllreduce(self._comm, compressor)
        trained = self._train(
            self._directory,
            CompressedAggregator(self._comm, reduce, recorder, history),
            self._config.compressed(),
        )
        history.moved, history.uncompressed_moved = trained.moved, whole.moved
        history.save(self._directory, self._comm.rank)
        return trained, link

    def _waits_for_fault(self, directory: Path, step: int) -> bool:
        """Whether the launcher, which sees the steps from time to time only, has not yet made the
        fault of this training, and the rest of it would soon be over."""
        config = self._config
        disturbed = config.faulty and directory == self._directory and self._rank == 0
        here = step == config.last_step_before_fault < config.steps
        return disturbed and here and not (directory / FAULT_FILE).exists()

    def _wait_for_fault(self) -> None:
        if not holds_within(FAULT_TIMEOUT, (self._directory / FAULT_FILE).exists, POLL):
            raise LabError(
                f"the launcher has made no {self._config.fault} within {FAULT_TIMEOUT:g} s"
            )

    def _recorder(self, directory: Path) -> TensorRecorder:
        sizes = tensor_sizes(self._digits.train_images.shape[1], self._config.hidden)
        return TensorRecorder(directory, self._rank, self._config.steps, sum(sizes.values()))

    def _train(
        self, directory: Path, aggregator: Aggregator, config: TrainingConfig | None = None
    ) -> _Trained:
        writer = ProgressWriter(directory, self._rank, self._config.steps)
        before = self._moved()
        moved: list[float] = []
        ends: list[float] = []

        def on_step(progress: SgdProgress) -> None:
            ends.append(time.monotonic())
            if self._config.compresses:
                moved.append(self._moved() - before)
            waits = self._waits_for_fault(directory, progress.step)
            if waits or writer.due(progress):
                writer.write(progress, self.sent)
            if waits:
                self._wait_for_fault()

        start = time.monotonic()
        trained = config or self._config
        _log(f"{trained.steps} steps begin")
        model, curve = train(trained, self._digits, aggregator, on_step)
        seconds = time.monotonic() - start
        writer.close()
        stats = self._comm.stats
        _log(
            f"{trained.steps} steps in {seconds:.2f} s, accuracy {curve.accuracies[-1]:.2%}; "
            f"{stats.frames_sent:,} frames sent, {stats.retransmissions:,} repeated, "
            f"{stats.recoveries} recoveries"
        )
        return _Trained(model, curve, moved, ends, seconds)

    @property
    def sent(self) -> int:
        """Contributions, with those of communicators before this one."""
        return self._sent_before + self._comm.stats.frames_sent

    def _moved(self) -> int:
        stats = self._comm.stats
        return stats.bytes_sent + stats.bytes_received


def run_worker(directory: Path) -> None:
    """Trains as one rank, and leaves its report and records in ``directory``, where the launcher
    has written the configuration and the data. All else is from the environment."""
    config = TrainingConfig.load(directory / CONFIG_FILE)
    digits = Digits.load(directory / DATA_FILE)
    # The launcher starts all processes at once, and on a busy machine any of them may be the first.
    for address in default_address().split(","):
        with ControlClient(address) as control:
            control.call(
                control.stub.ListSwitches,
                pb.ListSwitchesRequest(),
                timeout=CONTROLLER_TIMEOUT,
                wait=True,
            )
    with p4reduce.init(world_size=config.workers) as comm:
        _log(f"rank {comm.rank} of {comm.size} in job {comm.job!r}, process {os.getpid()}")
        RankTraining(config, directory, digits, comm).run()


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    try:
        run_worker(Path(sys.argv[1]))
    except (p4reduce.P4ReduceError, ControlError, LabError) as known:
        sys.exit(f"{type(known).__name__}: {known}")
