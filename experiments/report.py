# SPDX-License-Identifier: Apache-2.0
"""Tables, step-by-step figures and pictures of the experiments."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from p4reduce_lab.plots import in_style
from PIL import Image
from simulate import Trace
from study import AGREED, BANDWIDTH, CAT, MEMORY_CAT, RADIO, UNCOMPRESSED, Outcome

from bench.pages import table

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

WIDTH, DPI = 11.0, 100  # inches, dots an inch: read at the width of a page
# One colour is one thing in all pictures: a link here, a method in STYLES. Most are Okabe and
# Ito's, which the colour-blind can tell apart.
LINK_COLOURS = {
    "payload": "#5F6B7A",
    "affine": "#A6761D",
    "Ethernet packets": "#56B4E9",
    "IEEE 802.15.4": "#CC79A7",
    "this system": "#D1495B",  # as the switch has in the demo's picture
}
TOP_BLOCKS_COLOUR = "#0072B2"
_DASHED = (0, (4, 2))
# What is compared lies over the sweep. The paper's rule is thin and dashed, over ours, so that
# both are seen where they are the same.
STYLES: dict[str, dict[str, Any]] = {
    UNCOMPRESSED: {"color": "#000000", "linewidth": 1.8, "zorder": 3},
    MEMORY_CAT: {"color": "#E69F00", "linewidth": 3.2, "zorder": 4},
    CAT: {"color": "#7A1F5C", "linewidth": 1.6, "linestyle": _DASHED, "zorder": 7},
    MEMORY_CAT + AGREED: {"color": "#009E73", "linewidth": 2.4, "zorder": 5},
    CAT + AGREED: {"color": "#D55E00", "linewidth": 1.4, "linestyle": _DASHED, "zorder": 6},
}
RULES: dict[str, dict[str, Any]] = {  # in the picture of levels, where a colour is a link
    MEMORY_CAT: {"linewidth": 3.0, "alpha": 0.45},
    CAT: {"linewidth": 1.2, "linestyle": _DASHED},
}
# From pale to dark, so that it can be read without colour too.
FIXED_COLOURS = LinearSegmentedColormap.from_list("levels", ["#c6dbef", "#4292c6", "#08306b"])
FIXED_NORM = LogNorm(1, 4096)
LIMITED = {"Ethernet packets": BANDWIDTH, "IEEE 802.15.4": RADIO}


def number(value: float | None) -> str:
    """Three digits, or a dash for what was not reached."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}".replace("e+0", "e")


def groups(outcomes: list[Outcome]) -> dict[tuple[str, str, bool], list[Outcome]]:
    """By task, link and feedback, in the order of the runs."""
    result: dict[tuple[str, str, bool], list[Outcome]] = {}
    for outcome in outcomes:
        result.setdefault((outcome.task, outcome.link, outcome.feedback), []).append(outcome)
    return result


def _levels(outcome: Outcome) -> str:
    levels = np.array(outcome.trace.levels)
    return f"{levels.min()} / {np.median(levels):.0f} / {levels.max()}"


def comparison(outcomes: list[Outcome]) -> str:
    """CAT against the best fixed level, one row a task, link, feedback and kind of CAT."""
    rows = []
    for (task, link, feedback), group in groups(outcomes).items():
        reached = [one for one in group if one.fixed and one.cost is not None]
        best = min(reached, key=lambda one: one.cost or 0.0, default=None)
        dense = next(one for one in group if one.method == UNCOMPRESSED)
        for cat in (one for one in group if one.method.startswith(CAT)):
            comparable = best is not None and best.cost is not None and cat.cost is not None
            ratio = f"{cat.cost / best.cost:.2f}" if comparable else "-"  # type: ignore[operator,union-attr]
            saved = f"{dense.cost / cat.cost:.1f}" if dense.cost and cat.cost else "-"
            rows.append(
                [
                    task,
                    link + (" (s)" if link == "this system" else " (bits)"),
                    "yes" if feedback else "no",
                    number(dense.cost),
                    f"{number(best.cost)} ({best.method}, {best.steps})" if best else "-",
                    cat.method,
                    f"{number(cat.cost)} ({cat.steps}{'' if cat.cost else ', not reached'})",
                    _levels(cat),
                    f"**{ratio}**",
                    saved,
                ]
            )
    head = [
        "task",
        "link",
        "feedback",
        "uncompressed",
        "best fixed (level, steps)",
        "method",
        "its cost (steps)",
        "T min / median / max",
        "CAT / best fixed",
        "uncompressed / CAT",
    ]
    return table(head, rows)


def short_comparison(outcomes: list[Outcome]) -> str:
    """Cost by that of the best fixed level, and how many times less it is than uncompressed."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    columns: list[str] = []
    for (task, link, feedback), group in groups(outcomes).items():
        costs = [one.cost for one in group if one.fixed and one.cost is not None]
        dense = next(one for one in group if one.method == UNCOMPRESSED)
        for cat in (one for one in group if one.method.startswith(CAT)):
            column = link + AGREED * cat.method.endswith(AGREED)
            if column not in columns:
                columns.append(column)
            told = "not reached"
            if costs and cat.cost and dense.cost:
                told = f"{cat.cost / min(costs):.2f}, {dense.cost / cat.cost:.1f}"
            key = (task, "yes" if feedback else "no", cat.method.removesuffix(AGREED))
            rows.setdefault(key, {})[column] = told
    cells = [[*key, *(row.get(column, "") for column in columns)] for key, row in rows.items()]
    return table(["task", "feedback", "method", *columns], cells)


def write_steps(outcomes: list[Outcome], path: Path) -> None:
    """CSV: T, alpha, cost and loss of each step of each run."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["task", "link", "feedback", "method", "step", "mean T", "alpha", "cost so far", "loss"]
        )
        for outcome in outcomes:
            trace = outcome.trace
            losses = dict(zip(trace.steps, trace.losses, strict=True))
            for step, (level, alpha) in enumerate(
                zip(trace.levels, trace.alphas, strict=True), start=1
            ):
                writer.writerow(
                    [
                        outcome.task,
                        outcome.link,
                        int(outcome.feedback),
                        outcome.method,
                        step,
                        f"{np.mean(level):g}",
                        f"{alpha:.4g}",
                        f"{outcome.paid[step - 1]:.6g}",
                        f"{losses[step]:.6g}" if step in losses else "",
                    ]
                )


def read_steps(path: Path) -> list[Outcome]:
    """What `write_steps` wrote, as far as the pictures need it."""
    runs: dict[tuple[str, str, bool, str], list[dict[str, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["task"], row["link"], row["feedback"] == "1", row["method"])
            runs.setdefault(key, []).append(row)
    outcomes = []
    for (task, link, feedback, method), rows in runs.items():
        measured = [row for row in rows if row["loss"]]
        trace = Trace(
            levels=[[float(row["mean T"])] for row in rows],  # type: ignore[list-item]
            alphas=[float(row["alpha"]) for row in rows],
            steps=[int(row["step"]) for row in measured],
            losses=[float(row["loss"]) for row in measured],
        )
        paid = np.array([float(row["cost so far"]) for row in rows])
        outcomes.append(Outcome(task, link, method, feedback, None, len(rows), trace, paid))
    return outcomes


def save(figure: Any, path: Path) -> None:
    """PNG with a palette, a third of the size: these are lines on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    plt.close(figure)
    with Image.open(buffer) as image:
        image.convert("RGB").quantize(128).save(path, optimize=True)


def _curve(axes: Any, outcome: Outcome, scale: float) -> None:
    trace = outcome.trace
    x = outcome.paid[np.array(trace.steps) - 1] * scale
    if outcome.fixed:
        level = int(outcome.method.removeprefix("T = "))
        style = {"color": FIXED_COLOURS(FIXED_NORM(level)), "linewidth": 0.9}
    else:
        style = STYLES[outcome.method]
    axes.plot(x, trace.losses, **style)


def _limits(group: list[Outcome]) -> tuple[float, float]:
    """Of the loss: a fixed level that diverges would squeeze all others."""
    shown = [loss for one in group if not one.fixed for loss in one.trace.losses]
    low, high = min(shown), max(shown)
    return low - 0.06 * (high - low), high + 0.06 * (high - low)


@in_style
def plot_grid(outcomes: list[Outcome], feedback: bool, path: Path, *, seconds: bool) -> list[Path]:
    """Loss against bits, or seconds on the limited links: a row a task, a column a link.

    Returns the file drawn, if there is something to draw.
    """
    kept = {
        key: group
        for key, group in groups(outcomes).items()
        if key[2] == feedback and (not seconds or key[1] in (*LIMITED, "this system"))
    }
    if not kept:
        return []
    tasks = list(dict.fromkeys(task for task, _, _ in kept))
    links = list(dict.fromkeys(link for _, link, _ in kept))
    figure, grid = plt.subplots(
        len(tasks),
        len(links),
        figsize=(WIDTH, 1.9 * len(tasks) + 1.2),
        squeeze=False,
        sharey="row",
        layout="constrained",
    )
    for i, task in enumerate(tasks):
        low, high = _limits([one for key, group in kept.items() if key[0] == task for one in group])
        for j, link in enumerate(links):
            axes = grid[i][j]
            group = kept.get((task, link, feedback))
            if i == 0:
                axes.set_title(link)
            if j == 0:
                axes.set_ylabel(f"{task}\ntraining loss")
            axes.set_ylim(low, high)
            if group is None:
                axes.axis("off")
                continue
            own = link == "this system"
            for outcome in group:
                _curve(axes, outcome, 1 / LIMITED[link] if seconds and not own else 1.0)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(numticks=5))
            axes.xaxis.set_minor_locator(NullLocator())
            if all((other, link, feedback) not in kept for other in tasks[i + 1 :]):
                unit = "modelled seconds" if seconds or own else "bits sent by a rank"
                axes.set_xlabel(unit)
    methods = dict.fromkeys(one.method for group in kept.values() for one in group if not one.fixed)
    _legend(figure, [(method, STYLES[method]) for method in STYLES if method in methods])
    bar = figure.colorbar(
        ScalarMappable(FIXED_NORM, FIXED_COLOURS),
        ax=grid,
        location="right",
        fraction=0.02,
        aspect=60,
        pad=0.01,
    )
    bar.set_label("fixed level T (elements; this system: blocks)")
    save(figure, path)
    return [path]


@in_style
def plot_levels(outcomes: list[Outcome], path: Path) -> list[Path]:
    """T and alpha over the steps of CAT with feedback: the paper's rule dashed, ours broad.

    Returns the file drawn, if there is something to draw.
    """
    cats = [one for one in outcomes if one.method in (CAT, MEMORY_CAT) and one.feedback]
    tasks = list(dict.fromkeys(one.task for one in cats))
    links = list(dict.fromkeys(cat.link for cat in cats))
    if not cats:
        return []
    figure, grid = plt.subplots(
        2,
        len(tasks),
        figsize=(WIDTH, 5.4),
        squeeze=False,
        sharex="col",
        sharey="row",
        layout="constrained",
    )
    for j, task in enumerate(tasks):
        above, below = grid[0][j], grid[1][j]
        for one in (cat for cat in cats if cat.task == task):
            steps = np.arange(1, len(one.trace.levels) + 1)
            style = {"color": LINK_COLOURS[one.link], **RULES[one.method]}
            above.plot(steps, np.mean(one.trace.levels, axis=1), **style)
            below.plot(steps, one.trace.alphas, **style)
        above.set_title(task)
        above.set_yscale("log")
        above.set_xscale("log")
        below.set_ylim(0, 1.03)
        below.set_xlabel("step")
    grid[0][0].set_ylabel("T, mean of the ranks")
    grid[1][0].set_ylabel("alpha of what was sent")
    styles: list[tuple[str, dict[str, Any]]] = [
        (link, {"color": LINK_COLOURS[link], "linewidth": 4.0}) for link in links
    ]
    styles += [(method, {"color": "0.2", **rule}) for method, rule in RULES.items()]
    _legend(figure, styles)
    save(figure, path)
    return [path]


@in_style
def plot_switch(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Loss against bytes that a rank's communicator counted, up and down together."""
    figure, grid = plt.subplots(
        1, len(runs), figsize=(WIDTH, 4.6), squeeze=False, layout="constrained"
    )
    methods = dict.fromkeys(result["method"] for results in runs.values() for result in results)
    styles = {method: STYLES.get(method) or _other_style(method) for method in methods}
    for axes, (task, results) in zip(grid[0], runs.items(), strict=True):
        for result in results:
            moved = np.array(result["moved"])[np.array(result["steps"]) - 1]
            axes.plot(moved, result["losses"], **styles[result["method"]])
        axes.set_xscale("log")
        axes.set_xlabel("bytes counted by rank 0, up and down")
        axes.set_title(f"{task}, 4 workers over the switch")
    grid[0][0].set_ylabel("training loss")
    _legend(figure, list(styles.items()))
    save(figure, path)


def _other_style(method: str) -> dict[str, Any]:
    """Of a rule that has a link's costs in mind: the link's colour."""
    links = (colour for link, colour in LINK_COLOURS.items() if method.endswith(link))
    return {"color": next(links, TOP_BLOCKS_COLOUR), "linewidth": 1.4}


def _legend(figure: Any, styles: list[tuple[str, dict[str, Any]]]) -> None:
    """One for all panels, above them."""
    lines = [Line2D([], [], label=label, **style) for label, style in styles]
    columns = len(lines) if len(lines) <= 5 else -(-len(lines) // 2)
    figure.legend(
        handles=lines,
        loc="outside upper center",
        ncols=columns,
        fontsize=10,
        handlelength=3.2,
    )
