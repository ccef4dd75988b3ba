# SPDX-License-Identifier: Apache-2.0
"""The picture of a training: loss and test accuracy over the steps, beside the reference; with
compression also what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p4reduce_lab.demo.ranks.compressed import CompressionHistory
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.plots import INK, in_style, new_figure, save

SWITCH_COLOUR = "#d1495b"
REFERENCE_COLOUR = "#8fb8de"
REFERENCE_LABEL = "reference: summed by numpy in one process"
SWITCH_LABEL = "summed by the switch"


COMPRESSED_LABEL = "compressed, summed by the switch"


@in_style
def plot(
    path: Path,
    switch: Curve,
    reference: Curve,
    history: CompressionHistory | None = None,
    *,
    title: str,
    caption: str,
    fault: tuple[int, str] | None = None,
) -> None:
    """Writes ``path`` (PNG). The reference lies under the switch's curve, broad and pale, so that
    both can be seen where they are the same. With a history, what was sent is shown below; with a
    fault (after how many steps, and what was killed), when that was."""
    height, rows = (4.4, 1) if history is None else (7.6, 2)
    figure = new_figure(10, height)
    grid = figure.subplots(rows, 2, squeeze=False)
    left, right = grid[0]
    label = SWITCH_LABEL if history is None else COMPRESSED_LABEL

    steps = range(1, len(switch.losses) + 1)
    _curve(left, range(1, len(reference.losses) + 1), reference.losses, REFERENCE_LABEL, True)
    _curve(left, steps, switch.losses, label, False)
    left.set_yscale("log")
    _over_steps(left, "Training loss (cross-entropy)")

    _curve(right, reference.accuracy_steps, _percent(reference), REFERENCE_LABEL, True)
    _curve(right, switch.accuracy_steps, _percent(switch), label, False)
    right.set_ylim(max(0, min(_percent(switch) + _percent(reference)) - 3), 101)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    _over_steps(right, "Accuracy on the test images")
    # In this order the curves overlap well, although the picture is about the switch.
    handles, labels = right.get_legend_handles_labels()
    # Outside of the panels, as no corner of them is free of curves in every training.
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.27 / height),  # in the line below the title
        ncols=2,
    )
    if fault is not None:
        for axes in (left, right):
            _mark(axes, *fault)
    right.annotate(
        f"{100 * switch.accuracies[-1]:.1f} %",
        (switch.accuracy_steps[-1], 100 * switch.accuracies[-1]),
        xytext=(-2, -14),
        textcoords="offset points",
        ha="right",
        color=SWITCH_COLOUR,
        fontsize=10,
        fontweight="bold",
    )
    if history is not None:
        _levels(grid[1][0], history)
        _bytes(grid[1][1], history)

    figure.supxlabel(caption, x=0.012, ha="left", fontsize=8.5)
    save(figure, path, f"{title}\n")


def _mark(axes: Any, step: int, text: str) -> None:
    """When something was killed."""
    axes.axvline(step, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.annotate(
        text,
        (step, 0.5),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        fontsize=9,
    )


def _levels(axes: Any, history: CompressionHistory) -> None:
    """Blocks over the steps, against all there are."""
    steps = range(1, len(history.blocks) + 1)
    axes.axhline(history.total_blocks, color=REFERENCE_COLOUR, linewidth=6, alpha=0.8)
    axes.plot(list(steps), history.blocks, color=SWITCH_COLOUR, linewidth=1.3)
    axes.set_ylim(0, 1.15 * history.total_blocks)
    axes.annotate(
        f"all {history.total_blocks} blocks",
        (len(history.blocks), history.total_blocks),
        xytext=(-2, 6),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    _over_steps(axes, "Level: blocks that a rank sends in a step (mean of the ranks)")


def _bytes(axes: Any, history: CompressionHistory) -> None:
    """Bytes so far, with and without compression."""
    for counted, reference in ((history.uncompressed_moved, True), (history.moved, False)):
        megabytes = [count / 1e6 for count in counted]
        label = f"{'uncompressed' if reference else 'compressed'}: {megabytes[-1]:.1f} MB"
        _curve(axes, range(1, len(megabytes) + 1), megabytes, label, reference)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")
    _over_steps(axes, "Bytes moved so far by a rank, up and down (MB)")


def _curve(axes: Any, x: Any, y: list[float], label: str, reference: bool) -> None:
    style: dict[str, Any] = (
        {"color": REFERENCE_COLOUR, "linewidth": 6, "alpha": 0.8}
        if reference
        else {"color": SWITCH_COLOUR, "linewidth": 1.3}
    )
    axes.plot(list(x), y, label=label, **style)


def _percent(curve: Curve) -> list[float]:
    return [100 * accuracy for accuracy in curve.accuracies]


def _over_steps(axes: Any, title: str) -> None:
    axes.set(title=title, xlabel="optimiser step")
    axes.margins(x=0.01)
