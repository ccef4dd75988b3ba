# SPDX-License-Identifier: Apache-2.0
"""The picture of `accuracy`: loss against time, a panel for each model and rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.plots import in_style, new_figure, save

COLOURS = {
    "Gloo float32": "#2e6f9e",
    "Gloo, dense": "#2e6f9e",
    "Gloo, fp16 hook": "#6fa8cf",
    "Gloo, sparse": "#6fa8cf",
    "Gloo, PowerSGD": "#7a9e3b",
    "p4reduce float32": "#f2a65a",
    "p4reduce, dense": "#f2a65a",
    "p4reduce int8, feedback": "#d1495b",
    "p4reduce int4, feedback": "#e8a0a8",
    "p4reduce signs, feedback": "#7d5a5f",
    "p4reduce, sparse": "#d1495b",
    "p4reduce CAT": "#6d3b73",
    "Gloo, local SGD, H = 8": "#9db17c",
    "Gloo, local SGD, fp16, H = 8": "#3f5b1d",
    "Gloo, PowerSGD, fp16, H = 8": "#1f4e4a",
    "p4reduce PowerSGD, int16": "#b3541e",
    "p4reduce int8, H = 8": "#e06c9f",
    "p4reduce PowerSGD, int8, H = 8": "#3a0f3d",
}


@in_style
def plot(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the test loss of each run over the time that training took; a dot: the target.

    `runs` are as `accuracy_rank.train` returns them, with their rate.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    models = list(dict.fromkeys(run["model"] for run in runs))
    rates = list(dict.fromkeys(run["rate_mbit"] for run in runs))
    figure = new_figure(5.5 * len(rates), 3.6 * len(models))
    panels = figure.subplots(len(models), len(rates), squeeze=False)
    for row, model in zip(panels, models, strict=True):
        for axes, rate in zip(row, rates, strict=True):
            some = [run for run in runs if (run["model"], run["rate_mbit"]) == (model, rate)]
            for run in some:
                seconds, losses = ([point[at] for point in run["curve"]] for at in (1, 2))
                first = run["seed"] == 0
                axes.plot(
                    seconds[1:],
                    losses[1:],
                    color=COLOURS[run["method"]],
                    linewidth=1.6 if first else 0.6,
                    label=run["method"] if first else None,
                )
                if run["seconds"] is not None:
                    axes.plot(seconds[-1], losses[-1], "o", color=COLOURS[run["method"]],
                              markersize=4)  # fmt: skip
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):  # 1, 2, 5, 10, … whatever the range
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.set_minor_formatter(NullFormatter())
            axes.set_title(f"{model}, {rate:g} Mbit/s, to {some[0]['target']:.0%}")
            axes.set_xlabel("seconds of training")
            axes.set_ylabel("test loss")
            axes.legend(fontsize=7)
    save(figure, path)
