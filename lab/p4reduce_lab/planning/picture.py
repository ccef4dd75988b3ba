# SPDX-License-Identifier: Apache-2.0
"""The planner's picture: the parts of a step, and the batch from which on sums hide."""

from __future__ import annotations

import textwrap
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np

from p4reduce_lab.planning.advice import Advice
from p4reduce_lab.planning.report import title
from p4reduce_lab.planning.training import step_time
from p4reduce_lab.units import in_words

TITLE_CHARACTERS = 140  # in a line
INK = "#1f2933"
FAINT = "#9aa5b1"
GRID = "#e4e7eb"
COMPUTE = "#c8d1da"
WAITING = "#b07d12"  # of no way to sum
COLOURS = {"ring": "#000000", "switch": "#d1495b", "side": "#0072B2", "other": "#009E73"}
"""One colour is one way to sum in all pictures of planning and of scale."""


def colour_of(name: str) -> str:
    """The colour of a way to sum."""
    if name.startswith("ring"):
        return COLOURS["ring"]
    if "side by side" in name:
        return COLOURS["side"]
    return COLOURS["switch"] if name in ("one switch",) else COLOURS["other"]


def draw(path: Path, advice: Advice) -> None:
    """Write a PNG."""
    # Imported here: it takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.2 + 0.42 * len(advice.options)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    _bars(left, advice)
    _batches(right, advice)
    text = textwrap.fill(title(advice), TITLE_CHARACTERS)
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=10, fontweight="bold")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _bars(axes: Any, advice: Advice) -> None:
    """A step of each way to sum: computing, waiting where it overlaps, and the rest."""
    places = np.arange(len(advice.options))
    compute = np.array([option.time.compute for option in advice.options])
    waits = np.array([option.time.exposed for option in advice.options])
    hidden = np.array([option.time.after for option in advice.options]) - compute - waits
    axes.barh(places, compute, color=COMPUTE, label="computing")
    text = "waiting for sums that overlap with backward"
    axes.barh(places, waits, left=compute, color=WAITING, label=text)
    text = "waiting besides where they do not"
    axes.barh(places, hidden, left=compute + waits, color=WAITING, alpha=0.3, label=text)
    for place, option in zip(places, advice.options, strict=True):
        text = f" {in_words(option.time.overlapped)}, {_against_the_ring(option.faster)}"
        axes.annotate(text, (option.time.after, place), va="center", fontsize=8, color=INK)
    axes.set_yticks(places, [option.name for option in advice.options], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(right=1.75 * max(option.time.after for option in advice.options))
    axes.set_xlabel("a step, seconds", fontsize=9, color=INK)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.28, -0.17),  # below: no corner is free of bars in every answer
        ncols=3,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    style(axes, "What a step is made of")


def _against_the_ring(faster: float) -> str:
    return "the ring" if faster == 1.0 else f"{faster:.2f} times as fast as the ring"


def _batches(axes: Any, advice: Advice) -> None:
    """The share of a step that waits, against the batch."""
    factors = np.geomspace(0.25, 64, 60)
    step = advice.question.step
    shown = [advice.options[0], advice.options[1]]
    if advice.best not in shown:
        shown.append(advice.best)
    for option in shown:
        share = option.time.communication / sum(step.buckets)
        waits = []
        for factor in factors:
            time = step_time(step.with_compute(factor), partial(mul, share))
            waits.append(100 * time.exposed / time.overlapped)
        axes.plot(factors, waits, color=colour_of(option.name), label=option.name)
    axes.axvline(1, color=FAINT, linewidth=1, linestyle=(0, (3, 2)))
    axes.set(xscale="log", ylim=(0, 100))
    axes.set_xticks([0.25, 1, 4, 16, 64], ["¼", "1", "4", "16", "64"])
    axes.minorticks_off()
    axes.set_xlabel("batch, as a multiple of the present one", fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    style(axes, "Share of a step that waits (%)")


def style(axes: Any, text: str) -> None:
    """Give axes a title, and the look of all pictures here."""
    axes.set_title(text, loc="left", color=INK, fontsize=9.5)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8.5, length=0, which="both")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
