# SPDX-License-Identifier: Apache-2.0
"""The overview: for each task the gap against bytes, and what each method took altogether."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from p4reduce_lab.plots import in_style, new_figure, save

from bench.methods.single import TARGET, Row, Way

WIDTH, HEIGHT = 12.0, 3.1  # inches; height is of one task


@in_style
def draw(done: Sequence[tuple[Row, Way]], path: Path) -> None:
    """Draw a PNG of the scorecard's rows, each with how its method went."""
    rows = [row for row, _ in done]
    tasks = list(dict.fromkeys(row.task for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    palette = [mpl.colormaps["tab20"](number) for number in (*range(0, 20, 2), *range(1, 20, 2))]
    colours = {method: palette[number % 20] for number, method in enumerate(methods)}
    figure = new_figure(WIDTH, 0.8 + HEIGHT * len(tasks), layout=None)
    panels = figure.subplots(len(tasks), 2, squeeze=False)
    for (left, right), task in zip(panels, tasks, strict=True):
        some = [row for row in rows if row.task == task]
        for row, way in done:
            if row.task == task:
                _, gaps, moved = zip(*way.points, strict=True)
                megabytes = [number / 1e6 for number in moved]
                left.plot(megabytes, gaps, color=colours[row.method], label=row.method, lw=1.5)
        left.axhline(TARGET, color="black", lw=0.6, ls=":")
        left.set(xscale="log", yscale="log", ylabel="objective gap")
        left.set_ylim(bottom=TARGET / 3)
        left.set_title(f"{task}, {some[0].ranks} ranks")
        _bars(right, some, colours)
    panels[-1][0].set_xlabel("MB up and down of all ranks")
    panels[-1][1].set_xlabel("MB up (dark) and down (light) of all ranks; modelled seconds")
    handles, labels = [], []
    for left, _ in panels:
        for handle, label in zip(*left.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="lower center", ncols=7)
    figure.tight_layout(rect=(0, 0.8 / (0.8 + HEIGHT * len(tasks)), 1, 1))
    save(figure, path)


def _bars(axes: Any, rows: Sequence[Row], colours: dict[str, Any]) -> None:
    for place, row in enumerate(rows):
        for shift, bytes_, alpha in ((-0.2, row.bytes_up, 1.0), (0.2, row.bytes_down, 0.45)):
            axes.barh(place + shift, bytes_ / 1e6, 0.4, color=colours[row.method], alpha=alpha)
        text = (
            f" {row.seconds:.3g} s" if row.arrived else f" {row.seconds:.3g} s, gap {row.gap:.1g}"
        )
        axes.text(max(row.bytes_up, row.bytes_down) / 1e6, place, text, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.method for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    most = max(max(row.bytes_up, row.bytes_down) for row in rows) / 1e6
    least = min(row.bytes_up for row in rows) / 1e6
    axes.set_xlim(least / 3, most * 20)
    axes.grid(visible=False, axis="y")
