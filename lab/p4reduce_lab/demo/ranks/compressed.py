# SPDX-License-Identifier: Apache-2.0
"""The demo with compressed gradients: what is sent per step, and the cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.compression import CompressedAllreduce

from p4reduce_lab.demo.ranks.record import TensorRecorder
from p4reduce_lab.demo.training.model import Floats
from p4reduce_lab.demo.training.sgd import SgdStep

TENSOR = "gradient"


@dataclass
class CompressionHistory:
    """What one rank, or the mean of the ranks, sent in each step.

    Attributes:
        blocks: how many blocks of the gradient this rank has sent.
        alphas: share of the gradient's energy in what was chosen; None where the compressor does
            not estimate it.
        moved: bytes of frames sent and received, retransmissions and all, up to the step's end.
        uncompressed_moved: the same of the training that is compared with.
        total_blocks: how many blocks the gradient has.
    """

    blocks: list[float] = field(default_factory=list)
    alphas: list[float | None] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    uncompressed_moved: list[float] = field(default_factory=list)
    total_blocks: int = 0

    def save(self, directory: Path, rank: int) -> None:
        """Write it as JSON."""
        _path(directory, rank).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, directory: Path, rank: int) -> CompressionHistory:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(_path(directory, rank).read_text()))

    @classmethod
    def mean(cls, histories: Sequence[CompressionHistory]) -> CompressionHistory:
        """Return the mean of several ranks' histories of the same training."""

        def means(values: Sequence[Sequence[float | None]]) -> list[Any]:
            columns = zip(*values, strict=True)
            return [None if None in one else float(np.mean(one)) for one in columns]

        return cls(
            means([history.blocks for history in histories]),
            means([history.alphas for history in histories]),
            means([history.moved for history in histories]),
            means([history.uncompressed_moved for history in histories]),
            histories[0].total_blocks,
        )


class CompressedAggregator:
    """Stands for one rank; the whole gradient is one tensor, of which the compressor chooses.

    As one tensor, because a level is a choice among all blocks: a layer that has little to say in
    this step then sends little. That gives up the overlap with the backward pass.
    """

    def __init__(
        self,
        comm: p4reduce.Communicator,
        reduce: CompressedAllreduce,
        recorder: TensorRecorder,
        history: CompressionHistory,
    ) -> None:
        self._comm = comm
        self._reduce = reduce
        self._recorder = recorder
        self._history = history

    def aggregate(self, step: SgdStep, gradient: Floats) -> float:
        """Aggregate a gradient: see :class:`~p4reduce_lab.demo.training.sgd.Aggregator`."""
        parts = step.backward(self._comm.rank, self._comm.size, gradient)
        _, loss = next(parts)
        self._recorder.contribution(step.number, 0, loss)
        handle = self._comm.allreduce_async(loss, name="loss", out=loss)
        for _ in parts:  # the layers write into the gradient
            pass
        gradient[...] = self._reduce.sum(gradient, TENSOR)
        sent = self._reduce.latest[TENSOR]
        handle.wait()
        self._recorder.result(step.number, 0, loss)
        self._recorder.contribution(step.number, 1, sent.values)
        self._recorder.result(step.number, 1, gradient)
        self._history.blocks.append(sent.blocks)
        self._history.alphas.append(sent.alpha)
        self._history.total_blocks = sent.total_blocks
        return float(loss[0])


def _path(directory: Path, rank: int) -> Path:
    return directory / f"compression-history-{rank}.json"
