# SPDX-License-Identifier: Apache-2.0
"""Runs of methods to a gap, as a table and a picture: what examples of this folder have in common.

The task is the synthetic one of GADMM's authors; every process knows all parts, to tell how far the
ranks are from the minimum, and trains on its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
from p4reduce.methods import in_process
from p4reduce.methods.exact import sum_floats
from p4reduce.methods.problems import LeastSquares, gadmm_synthetic

GAP = 1e-4
Method = Callable[..., Any]


class Curves:
    """Runs methods over the switch, and once more in one process.

    Args:
        comm: the ranks.
        seed: of the task.
    """

    def __init__(self, comm: p4reduce.Communicator, seed: int) -> None:
        self._comm = comm
        self._parts = [LeastSquares(*part) for part in gadmm_synthetic(comm.size, seed)]
        features = np.vstack([part.features for part in self._parts])
        targets = np.concatenate([part.targets for part in self._parts])
        best = np.linalg.lstsq(features, targets, rcond=None)[0]
        self._best = sum(part.value(best) for part in self._parts)
        self.rate = 1 / float(np.linalg.norm(features, 2)) ** 2
        self._drawn: list[tuple[str, Any, Any]] = []

    def run(self, label: str, method: Method, **settings: Any) -> None:
        """Run until the gap |Σ f_i(θ_i) − F*| is reached; rank 0 prints what came of it."""
        comm = self._comm
        gaps: list[float] = []
        uploads: list[int] = []
        seen = [0, 0, 0]  # counts of what is not the method's: the gap's

        def counts() -> tuple[int, int, int]:
            stats = comm.stats
            return stats.blocks_sent, stats.bytes_sent, stats.bytes_received

        def watch(_step: int, model: Any) -> bool:
            before = counts()
            uploads.append(before[0] - start[0] - seen[0])
            gaps.append(self._gap(comm, model))
            for place, (after, earlier) in enumerate(zip(counts(), before, strict=True)):
                seen[place] += after - earlier
            return gaps[-1] <= GAP

        start = counts()
        method(comm, self._parts[comm.rank], watch=watch, **settings)
        spent = np.subtract(counts(), start) - seen
        total = comm.allreduce(spent.astype(np.float64)) / [1, 1e3 * comm.size, 1e3 * comm.size]
        sent = comm.allreduce(np.array(uploads, np.int32))
        self._drawn.append((label, sent, np.array(gaps)))
        if comm.rank == 0:
            alone = self._alone(method, settings, len(gaps))
            print(
                f"{label:12} {len(gaps):6} iterations, gap {gaps[-1]:.3e} (one process "
                f"{alone:.3e}), {total[0]:7.0f} blocks, per rank {total[1]:8.1f} kB sent, "
                f"{total[2]:8.1f} kB received",
                flush=True,
            )

    def _gap(self, comm: Any, model: Any) -> float:
        value = np.array([self._parts[comm.rank].value(model)])
        return abs(float(sum_floats(comm, value, "value")[0]) - self._best)

    def _alone(self, method: Method, settings: dict[str, Any], steps: int) -> float:
        """The gap after as many iterations, without a switch."""

        def work(comm: in_process.InProcess) -> float:
            part = self._parts[comm.rank]
            return part.value(method(comm, part, **settings).model)

        settings = settings | {"steps": steps}
        return abs(sum(in_process.run(self._comm.size, work)) - self._best)

    def draw(self, title: str, path: Path) -> None:
        """Draw all runs: the gap against iterations and against blocks sent. Only rank 0 does."""
        if self._comm.rank:
            return
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        figure, panels = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
        for label, uploads, gaps in self._drawn:
            panels[0].plot(np.arange(1, len(gaps) + 1), gaps, label=label)
            panels[1].plot(np.maximum(uploads, 1), gaps, label=label)
        for axes, what in zip(panels, ("iterations", "blocks sent by all ranks"), strict=True):
            axes.set(xscale="log", yscale="log", xlabel=what)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("gap to the minimum")
        panels[1].legend(fontsize=8)
        figure.suptitle(f"{title}, {self._comm.size} ranks")
        figure.tight_layout()
        figure.savefig(path, dpi=110)


def options(text: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line: --seed, --picture, and a number for each default."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the task")
    parser.add_argument("--picture", type=Path, help="a PNG to write")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    return parser.parse_args()
