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
from p4reduce_lab.plots import FAINT, in_style, new_figure, save
from p4reduce_lab.units import in_words

TITLE_CHARACTERS = 140  # in a line
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


@in_style
def draw(path: Path, advice: Advice) -> None:
    """Write a PNG."""
    figure = new_figure(11, 2.2 + 0.42 * len(advice.options))
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    _bars(left, advice)
    _batches(right, advice)
    save(figure, path, textwrap.fill(title(advice), TITLE_CHARACTERS))


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
        axes.annotate(text, (option.time.after, place), va="center", fontsize=8)
    axes.set_yticks(places, [option.name for option in advice.options])
    axes.invert_yaxis()
    axes.set_xlim(right=1.75 * max(option.time.after for option in advice.options))
    axes.set_xlabel("a step, seconds")
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.28, -0.17),  # below: no corner is free of bars in every answer
        ncols=3,
    )
    axes.set_title("What a step is made of")


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
    axes.set_xlabel("batch, as a multiple of the present one")
    axes.legend()
    axes.set_title("Share of a step that waits (%)")
