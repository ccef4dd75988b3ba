# SPDX-License-Identifier: Apache-2.0
"""Tables, step-by-step figures and pictures of the experiments."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from study import AGREED, BANDWIDTH, CAT, MEMORY_CAT, RADIO, UNCOMPRESSED, Outcome

mpl.use("Agg")
from matplotlib import pyplot as plt

CAT_COLOURS = {
    CAT: "tab:red",
    CAT + AGREED: "tab:orange",
    MEMORY_CAT: "tab:green",
    MEMORY_CAT + AGREED: "tab:olive",
}
LIMITED = {"Ethernet packets": BANDWIDTH, "IEEE 802.15.4": RADIO}


def number(value: float | None) -> str:
    """Three digits, or a dash for what was not reached."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.3g}" if value < 1000 else f"{value:.2e}".replace("e+0", "e")


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


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


def _curve(axes: Any, outcome: Outcome, scale: float, shade: float) -> None:
    trace = outcome.trace
    x = outcome.paid[np.array(trace.steps) - 1] * scale
    if outcome.method == UNCOMPRESSED:
        style = {"color": "black", "linewidth": 1.5, "zorder": 3}
    elif outcome.fixed:
        style = {"color": plt.get_cmap("Blues")(shade), "linewidth": 1.0}
    else:
        style = {"color": CAT_COLOURS[outcome.method], "linewidth": 2.0, "zorder": 4}
    axes.plot(x, trace.losses, label=outcome.method, **style)


def _panel(axes: Any, group: list[Outcome], scale: float, unit: str) -> None:
    fixed = [one for one in group if one.fixed]
    for outcome in group:
        shade = 0.3 + 0.6 * (fixed.index(outcome) / len(fixed) if outcome.fixed else 0)
        _curve(axes, outcome, scale, shade)
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel("training loss")
    # A run that diverges would squeeze all others.
    start = max(one.trace.losses[0] for one in group if one.method == UNCOMPRESSED)
    axes.set_ylim(top=1.1 * start)
    axes.grid(alpha=0.3)


def plot_grid(outcomes: list[Outcome], feedback: bool, path: Path, *, seconds: bool) -> None:
    """Loss against bits, or seconds on the limited links: a row a task, a column a link."""
    kept = {
        key: group
        for key, group in groups(outcomes).items()
        if key[2] == feedback and (not seconds or key[1] in (*LIMITED, "this system"))
    }
    tasks = list(dict.fromkeys(task for task, _, _ in kept))
    links = list(dict.fromkeys(link for _, link, _ in kept))
    figure, grid = plt.subplots(
        len(tasks), len(links), figsize=(4 * len(links), 3.1 * len(tasks)), squeeze=False
    )
    for i, task in enumerate(tasks):
        for j, link in enumerate(links):
            group = kept.get((task, link, feedback))
            if group is None:
                grid[i][j].axis("off")
                continue
            own = link == "this system"
            scale = 1 / LIMITED[link] if seconds and not own else 1.0
            unit = "modelled seconds" if seconds or own else "bits sent by a rank"
            _panel(grid[i][j], group, scale, unit)
            grid[i][j].set_title(f"{task}: {link}", fontsize=9)
            grid[i][j].legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_levels(outcomes: list[Outcome], path: Path) -> None:
    """T and alpha over the steps of CAT with feedback: the paper's rule, dashed, and ours."""
    cats = [one for one in outcomes if one.method in (CAT, MEMORY_CAT) and one.feedback]
    tasks = list(dict.fromkeys(one.task for one in cats))
    figure, grid = plt.subplots(
        2, len(tasks), figsize=(4.5 * len(tasks), 5.5), squeeze=False, sharex="col"
    )
    for j, task in enumerate(tasks):
        links = list(dict.fromkeys(cat.link for cat in cats))
        for one in (cat for cat in cats if cat.task == task):
            steps = np.arange(1, len(one.trace.levels) + 1)
            colour = f"C{links.index(one.link)}"
            style = {"color": colour, "linestyle": "--" if one.method == CAT else "-"}
            label = one.link if one.method == MEMORY_CAT else None
            grid[0][j].plot(steps, np.mean(one.trace.levels, axis=1), label=label, **style)
            grid[1][j].plot(steps, one.trace.alphas, **style)
        grid[0][j].set_title(task)
        grid[0][j].set_yscale("log")
        grid[0][j].set_xscale("log")
        grid[0][j].set_ylabel("T, mean of the ranks")
        grid[1][j].set_ylabel("alpha of what was sent")
        grid[1][j].set_xlabel("step")
        grid[0][j].legend(fontsize=7)
        for axes in (grid[0][j], grid[1][j]):
            axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_switch(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Loss against bytes that a rank's communicator counted, up and down together."""
    figure, grid = plt.subplots(1, len(runs), figsize=(5 * len(runs), 3.6), squeeze=False)
    for axes, (task, results) in zip(grid[0], runs.items(), strict=True):
        for result in results:
            moved = np.array(result["moved"])[np.array(result["steps"]) - 1]
            axes.plot(moved, result["losses"], label=result["method"])
        axes.set_xscale("log")
        axes.set_xlabel("bytes counted by rank 0, up and down")
        axes.set_ylabel("training loss")
        axes.set_title(f"{task}, 4 workers over the switch")
        axes.legend(fontsize=7)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
