# SPDX-License-Identifier: Apache-2.0
"""The picture of `sparsity`: time against density, a panel for each number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, NullLocator
from p4reduce_lab.plots import in_style, new_figure, save

from bench.program import Row

COLOURS = {"aligned": "tab:blue", "independent": "tab:orange", "TCP ring": "black"}
SWITCHES = {"embedded": ("embedded switch", "o", 0.96), "bmv2": ("BMv2", "^", 1.04)}
"""Name, marker, and a factor of densities: side by side, where they would hide each other."""
LOWEST, HIGHEST = 0.008, 1.25  # densities


@in_style
def plot(results: Sequence[Row], title: str, path: Path) -> None:
    """Draw models as lines, and measurements as points with their range.

    The title says the tensor's size and the links' rate.
    """
    counts = sorted({one["workers"] for one in results})
    figure = new_figure(1 + 3.6 * len(counts), 5.0, layout=None)
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)
    for axes, workers in zip(panels[0], counts, strict=True):
        some = [one for one in results if one["workers"] == workers]
        _models(axes, some)
        _measurements(axes, some)
        axes.set(title=f"{workers} workers", xscale="log", yscale="log", xlim=(LOWEST, HIGHEST))
        axes.set_xticks([0.01, 0.1, 0.4, 1.0], ["0.01", "0.1", "0.4", "1"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0][0].set_ylabel("time of an all-reduce, ms")
    handles, labels = panels[0][-1].get_legend_handles_labels()
    figure.supxlabel("density: share of the blocks that a rank has", y=0.165, fontsize=10)
    figure.legend(handles, labels, loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.155, 1, 0.96))
    save(figure, path, title)


def _models(axes: Any, results: Sequence[Row]) -> None:
    workers = results[0]["workers"]
    dense = results[0]["model_ms"] / results[0]["union"]
    densities = np.geomspace(LOWEST, 1, 100)
    unions = {"aligned": densities, "independent": 1 - (1 - densities) ** workers}
    ring = results[0]["ring_bound_ms"]
    axes.axhline(ring, color="black", linestyle="--", label="ring, dense: 2(n-1)/n S/B")
    for overlap, union in unions.items():
        formula = "D S/B" if overlap == "aligned" else "(1 - (1-D)$^n$) S/B"
        axes.plot(densities, union * dense, color=COLOURS[overlap], label=f"{overlap}: {formula}")


def _measurements(axes: Any, results: Sequence[Row]) -> None:
    for switch, (name, marker, apart) in SWITCHES.items():
        for overlap, colour in COLOURS.items():
            some = [one for one in results if (one["switch"], one["overlap"]) == (switch, overlap)]
            if not some:
                continue
            densities, median, fastest, slowest = (
                np.array([one[key] for one in some])
                for key in ("density", "median_ms", "fastest_ms", "slowest_ms")
            )
            axes.errorbar(
                apart * densities,
                median,
                [median - fastest, slowest - median],
                fmt=marker,
                color=colour,
                markersize=6,
                markerfacecolor="white" if switch == "bmv2" else colour,
                capsize=3,
                linewidth=1,
                label=f"{name}, {overlap}",
                zorder=3,
            )
