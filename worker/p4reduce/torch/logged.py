# SPDX-License-Identifier: Apache-2.0
"""The network cost of each training step, written to TensorBoard, MLflow or wandb.

Lightning and transformers are imported only by what makes callbacks for them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from p4reduce.communicator import Communicator
from p4reduce.statistics import Statistics
from p4reduce.torch.hooks.state import channel_of

_Write = Callable[[Mapping[str, float], int], None]


class StepLog:
    """Writes what happened between two calls. `log_statistics` makes it.

    Args:
        writer: see `log_statistics`.
        group: see `log_statistics`.
        prefix: of the names.
    """

    def __init__(self, writer: Any, group: Any, prefix: str) -> None:
        self._write = _way_to(writer)
        self._group = group
        self._prefix = prefix
        self._comm: Communicator | None = None
        self._before = Statistics()
        self._time = 0.0

    def start(self) -> None:
        """Start counting. The callbacks call it when training begins.

        Raises TypeError, ValueError: the group has no way through the switch.
        """
        comm: Communicator = channel_of(self._group).comm
        self._comm, self._before, self._time = comm, comm.stats, time.monotonic()

    def __call__(self, step: int) -> dict[str, float]:
        """Write what happened since the last call, and return it."""
        if self._comm is None:
            raise RuntimeError("call start() before the first step is logged")
        now, at = self._comm.stats, time.monotonic()
        figures = _between(self._before, now, at - self._time)
        self._before, self._time = now, at
        named = {self._prefix + name: value for name, value in figures.items()}
        self._write(named, step)
        return named

    def lightning(self) -> Any:
        """Return a callback for Lightning's `Trainer(callbacks=[…])`.

        Raises ImportError: neither `lightning` nor `pytorch_lightning` is installed.
        """
        try:
            base: Any = importlib.import_module("lightning.pytorch").Callback
        except ImportError:
            base = importlib.import_module("pytorch_lightning").Callback
        log = self

        class P4reduceCallback(base):
            def on_train_start(self, trainer: Any, pl_module: Any) -> None:
                log.start()

            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                log(trainer.global_step)

        return P4reduceCallback()

    def trainer(self) -> Any:
        """Return a callback for Hugging Face's `Trainer(callbacks=[…])`.

        Raises ImportError: `transformers` is not installed.
        """
        base: Any = importlib.import_module("transformers").TrainerCallback
        log = self

        class P4reduceCallback(base):
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                log.start()

            def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
                log(state.global_step)

        return P4reduceCallback()


def log_statistics(writer: Any, group: Any = None, *, prefix: str = "p4reduce/") -> StepLog:
    """Return a writer of this rank's bytes, time, level and retransmissions per step.

    For example:

        log = p4reduce.torch.log_statistics(SummaryWriter())
        log.start()
        for step, batch in enumerate(batches):
            train(batch)
            log(step)

    Names are bytes_sent, bytes_received, step_seconds, retransmissions, and level: the share of the
    step's blocks that this rank sent, 1 without compression. A step without blocks has none.

    Args:
        writer: TensorBoard's `SummaryWriter`, the module `mlflow`, the module `wandb` or one of
            its runs, or a logger of Lightning; None, on ranks that write nothing.
        group: a process group of the backend "p4reduce", or a communicator; None: the default.
        prefix: of the names.

    Raises:
        TypeError: the writer is not one of these.
    """
    return StepLog(writer, group, prefix)


def _between(before: Statistics, now: Statistics, seconds: float) -> dict[str, float]:
    figures = {
        "bytes_sent": float(now.bytes_sent - before.bytes_sent),
        "bytes_received": float(now.bytes_received - before.bytes_received),
        "step_seconds": seconds,
        "retransmissions": float(now.retransmissions - before.retransmissions),
    }
    if blocks := now.blocks - before.blocks:
        figures["level"] = (now.blocks_sent - before.blocks_sent) / blocks
    return figures


def _way_to(writer: Any) -> _Write:
    if writer is None:
        return lambda figures, step: None
    if hasattr(writer, "add_scalar"):  # TensorBoard

        def scalars(figures: Mapping[str, float], step: int) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, step)

        return scalars
    if hasattr(writer, "log_metrics"):  # the module mlflow, Lightning's loggers
        return lambda figures, step: writer.log_metrics(dict(figures), step=step)
    if hasattr(writer, "log") and hasattr(writer, "define_metric"):  # wandb; logging has log too
        return lambda figures, step: writer.log(dict(figures), step=step)
    raise TypeError(
        f"writer={writer!r}: TensorBoard's SummaryWriter, the module mlflow, the module wandb or "
        "one of its runs, or a logger of Lightning is needed"
    )
