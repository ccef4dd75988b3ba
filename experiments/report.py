# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the experiments."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from p4reduce_common.rows import markdown_table
from p4reduce_lab.plots import in_style, new_figure
from PIL import Image
from study import AGREED, BANDWIDTH, CAT, MEMORY_CAT, RADIO, SYSTEM, UNCOMPRESSED, Outcome

WIDTH, DPI = 11.0, 100  # inches, dots an inch: read at the width of a page
# One colour is one thing in all pictures: a link here, a method in STYLES. Most are Okabe and
# Ito's, which the colour-blind can tell apart.
LINK_COLOURS = {
    "payload": "#5F6B7A",
    "affine": "#A6761D",
    "Ethernet packets": "#56B4E9",
    "IEEE 802.15.4": "#CC79A7",
    SYSTEM: "#D1495B",  # as the switch has in the demo's picture
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
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 999.5 else f"{value:.2e}".replace("e+0", "e")


def quotient(cost: float | None, other: float | None, digits: int) -> str:
    """One cost by another, or a dash where one of them was not reached."""
    return "-" if cost is None or other is None else f"{cost / other:.{digits}f}"


def groups(outcomes: list[Outcome]) -> dict[tuple[str, str, bool], list[Outcome]]:
    """By task, link and feedback, in the order of the runs."""
    result: dict[tuple[str, str, bool], list[Outcome]] = {}
    for outcome in outcomes:
        result.setdefault((outcome.task, outcome.link, outcome.feedback), []).append(outcome)
    return result


def cats(outcomes: list[Outcome]) -> Iterator[tuple[Outcome, Outcome, Outcome | None]]:
    """Each run of CAT, with the uncompressed one and the best fixed level that arrived."""
    for group in groups(outcomes).values():
        reached = [one for one in group if one.fixed and one.cost is not None]
        best = min(reached, key=lambda one: one.cost or 0.0, default=None)
        dense = next(one for one in group if one.method == UNCOMPRESSED)
        for cat in group:
            if cat.method.startswith(CAT):
                yield cat, dense, best


def comparison(outcomes: list[Outcome]) -> str:
    """CAT against the best fixed level, one row a task, link, feedback and kind of CAT."""
    rows = []
    for cat, dense, best in cats(outcomes):
        levels = np.array(cat.trace.levels)
        rows.append(
            [
                cat.task,
                cat.link + (" (s)" if cat.link == SYSTEM else " (bits)"),
                "yes" if cat.feedback else "no",
                number(dense.cost),
                f"{number(best.cost)} ({best.method}, {best.steps})" if best else "-",
                cat.method,
                f"{number(cat.cost)} ({cat.steps}{'' if cat.cost else ', not reached'})",
                f"{levels.min()} / {np.median(levels):.0f} / {levels.max()}",
                f"**{quotient(cat.cost, best.cost if best else None, 2)}**",
                quotient(dense.cost, cat.cost, 1),
            ]
        )
    head = ("task", "link", "feedback", "uncompressed", "best fixed (level, steps)", "method",
            "its cost (steps)", "T min / median / max", "CAT / best fixed",
            "uncompressed / CAT")  # fmt: skip
    return markdown_table(head, rows)


def short_comparison(outcomes: list[Outcome]) -> str:
    """A run of CAT in each cell: its cost by the best fixed level's, uncompressed's cost by its."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for cat, dense, best in cats(outcomes):
        column = cat.link + AGREED * cat.method.endswith(AGREED)
        columns[column] = None
        told = "not reached"
        if cat.cost is not None:
            by_best = quotient(cat.cost, best.cost if best else None, 2)
            told = f"{by_best}, {quotient(dense.cost, cat.cost, 1)}"
        key = (cat.task, "yes" if cat.feedback else "no", cat.method.removesuffix(AGREED))
        rows.setdefault(key, {})[column] = told
    cells = [[*key, *(row.get(column, "") for column in columns)] for key, row in rows.items()]
    return markdown_table(["task", "feedback", "method", *columns], cells)


def save(figure: Any, path: Path) -> None:
    """PNG with a palette, a third of the size: these are lines on white."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
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
def plot_grid(outcomes: list[Outcome], feedback: bool, path: Path, *, seconds: bool) -> None:
    """Loss against bits, or seconds on the limited links: a row a task, a column a link.

    Without a run there is no file.
    """
    kept = {
        key: group
        for key, group in groups(outcomes).items()
        if key[2] == feedback and (not seconds or key[1] in (*LIMITED, SYSTEM))
    }
    if not kept:
        return
    tasks = list(dict.fromkeys(task for task, _, _ in kept))
    links = list(dict.fromkeys(link for _, link, _ in kept))
    figure = new_figure(WIDTH, 1.9 * len(tasks) + 1.2)
    grid = figure.subplots(len(tasks), len(links), squeeze=False, sharey="row")
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
            own = link == SYSTEM
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
    scale = ScalarMappable(FIXED_NORM, FIXED_COLOURS)
    bar = figure.colorbar(scale, ax=grid, location="right", fraction=0.02, aspect=60, pad=0.01)
    bar.set_label("fixed level T (elements; this system: blocks)")
    save(figure, path)


@in_style
def plot_levels(outcomes: list[Outcome], path: Path) -> None:
    """T and alpha over the steps of CAT with feedback: the paper's rule dashed, ours broad."""
    shown = [one for one in outcomes if one.method in (CAT, MEMORY_CAT) and one.feedback]
    tasks = list(dict.fromkeys(one.task for one in shown))
    links = list(dict.fromkeys(one.link for one in shown))
    if not shown:
        return
    figure = new_figure(WIDTH, 5.4)
    grid = figure.subplots(2, len(tasks), squeeze=False, sharex="col", sharey="row")
    for j, task in enumerate(tasks):
        above, below = grid[0][j], grid[1][j]
        for one in (one for one in shown if one.task == task):
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


@in_style
def plot_switch(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Loss against bytes that a rank's communicator counted, up and down together."""
    figure = new_figure(WIDTH, 4.6)
    grid = figure.subplots(1, len(runs), squeeze=False)
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
    place = {"loc": "outside upper center", "ncols": columns}
    figure.legend(handles=lines, fontsize=10, handlelength=3.2, **place)
