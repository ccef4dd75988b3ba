# SPDX-License-Identifier: Apache-2.0
"""A picture for each question that a comparison answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p4reduce_lab.compare.cells import CONTENDERS, GLOO, P4REDUCE, UDP, CompareCase
from p4reduce_lab.compare.results import PROCESSOR, ResultRow, bytes_text
from p4reduce_lab.plots import INK, in_style, new_figure, save

COLOURS = {"p4reduce": "#d1495b", "gloo": "#2e6f9e", "mpi": "#7a9e3b"}
NAMES = {"p4reduce": "p4reduce", "gloo": "Gloo", "mpi": "Open MPI"}
QUESTIONS = {
    "sizes": "How long does a tensor take, by its size?",
    "ranks": "How much faster than Gloo, by the number of ranks?",
    "rates": "What of its link does each use, by the link's rate?",
    "lanes": "What do fewer bits a number bring?",
    "densities": "What do blocks of zeros bring?",
}
"""By the name of the picture."""

_RANK_COLOURS = {2: "#e0a458", 4: "#d1495b", 8: "#6d3b73"}
_HOLLOW = "hollow: the processor was the limit"


@in_style
def draw(rows: Sequence[ResultRow], directory: Path, where: str, prefix: str) -> list[Path]:
    """Write a PNG for each question that the rows have something for.

    Args:
        rows: all.
        directory: for the files, PREFIX-….png.
        where: the switch and the machine, for the pictures' feet.
        prefix: of the files' names: "compare", or "compare-udp".

    Returns:
        The files.
    """
    questions: tuple[tuple[str, Callable[[Any, Sequence[ResultRow]], str | None]], ...] = (
        ("ranks", _ranks),
        ("rates", _rates),
        ("lanes", _lanes),
        ("densities", _densities),
    )
    sizes = _sizes(rows, directory / f"{prefix}-sizes.png", where)
    others = [
        _picture(question, rows, directory / f"{prefix}-{name}.png", where)
        for name, question in questions
    ]
    return [path for path in (sizes, *others) if path is not None]


def _picture(
    question: Callable[[Any, Sequence[ResultRow]], str | None],
    rows: Sequence[ResultRow],
    path: Path,
    where: str,
) -> Path | None:
    figure = new_figure(8, 5)
    axes = figure.subplots()
    title = question(axes, rows)
    if title is None:
        return None
    _finish(axes, title)
    return _save(figure, path, where)


def _finish(axes: Any, title: str, *, legend: bool = True) -> None:
    axes.set_title(title)
    if legend:
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        axes.legend(once.values(), once.keys())


def _save(figure: Any, path: Path, where: str) -> Path:
    figure.supxlabel(f"{where}; {_HOLLOW}", fontsize=7)
    save(figure, path)
    return path


def _points(
    axes: Any,
    rows: Sequence[ResultRow],
    x: Callable[[ResultRow], float],
    y: str,
    label: str,
    colour: str,
) -> None:
    """A line through rows, with their spread where there is one; hollow: no claim."""
    rows = sorted(rows, key=x)
    least, most = {
        "times_gloo": ("least_times_gloo", "most_times_gloo"),
        "seconds": ("fastest_seconds", "slowest_seconds"),
    }.get(y, (y, y))
    middle = [getattr(row, y) for row in rows]
    axes.plot([x(row) for row in rows], middle, color=colour, linewidth=1.2, label=label)
    for row, value in zip(rows, middle, strict=True):
        axes.errorbar(
            [x(row)],
            [value],
            [[max(value - getattr(row, least), 0)], [max(getattr(row, most) - value, 0)]],
            fmt="o",
            color=colour,
            markerfacecolor="white" if row.limit == PROCESSOR else colour,
            markersize=6,
            capsize=3,
            linewidth=1,
            zorder=3,
        )


def _dense(rows: Sequence[ResultRow]) -> list[ResultRow]:
    return [row for row in rows if row.wire in ("int32", "float32") and row.density == 1]


def _large(rows: Sequence[ResultRow]) -> list[ResultRow]:
    return [row for row in rows if row.is_large]


def _most_common(rows: Sequence[ResultRow], *names: str) -> list[ResultRow]:
    """The rows of the values of some attributes that most rows share."""
    if not rows:
        return []
    values = [tuple(getattr(row, name) for name in names) for row in rows]
    best = max(values, key=values.count)
    return [row for row, value in zip(rows, values, strict=True) if value == best]


def _sizes(rows: Sequence[ResultRow], path: Path, where: str) -> Path | None:
    """A panel for each rate that several sizes were measured at, for one number of ranks."""
    dense = [row for row in _dense(rows) if row.rate_mbit or row.links == UDP]
    by_rate: dict[float, list[ResultRow]] = {}
    for row in _most_common(dense, "ranks"):
        by_rate.setdefault(row.rate_mbit or math.inf, []).append(row)
    panels = [some for _, some in sorted(by_rate.items()) if len({row.bytes for row in some}) > 1]
    if not panels:
        return None
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure = new_figure(8 if columns == 1 else 11, 5 if lines == 1 else 8)
    every = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes, some in zip(every, panels, strict=False):
        _size_panel(axes, some)
        _finish(
            axes,
            f"Links of {some[0].rate_mbit:g} Mbit/s"
            if some[0].rate_mbit
            else "Links without a limit",
            legend=axes is every[0],
        )
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(
        f"How long does a tensor take? {panels[0][0].ranks} ranks, float32", fontsize=12
    )
    return _save(figure, path, where)


def _size_panel(axes: Any, some: Sequence[ResultRow]) -> None:
    ranks, rate, links = some[0].ranks, some[0].rate_mbit, some[0].links
    sizes = sorted({row.bytes for row in some})
    for contender in CONTENDERS:
        mine = [row for row in some if row.contender == contender]
        if mine:
            _points(
                axes, mine, lambda row: row.bytes, "seconds", NAMES[contender], COLOURS[contender]
            )
    for case in (CompareCase(P4REDUCE, "int32"), CompareCase(GLOO, "float32")) if rate else ():
        axes.plot(
            sizes,
            [case.bound(ranks, size, rate, links) for size in sizes],
            "--",
            color=COLOURS[case.contender],
            linewidth=0.8,
            label="bound: S/B" if case.contender == P4REDUCE else "bound: 2(n-1)/n S/B",
        )
    axes.set(xscale="log", yscale="log", ylabel="seconds of an all-reduce")
    axes.set_xticks(sizes, [bytes_text(size) for size in sizes])
    axes.minorticks_off()


def _ranks(axes: Any, rows: Sequence[ResultRow]) -> str | None:
    some = [row for row in _large(_dense(rows)) if row.contender == P4REDUCE and row.times_gloo]
    counts = sorted({row.ranks for row in some})
    if len(counts) < 2:
        return None
    shades = ("#f2a65a", "#d1495b", "#6d3b73", "#2e6f9e", "#7a9e3b")
    for rate, colour in zip(sorted({row.rate_mbit for row in some}), shades, strict=False):
        mine = _most_common([row for row in some if row.rate_mbit == rate], "bytes")
        _points(axes, mine, lambda row: row.ranks, "times_gloo", f"{rate:g} Mbit/s", colour)
    axes.plot(
        counts,
        [
            CompareCase(GLOO, "float32").bound(n, 1 << 20, 1)
            / CompareCase(P4REDUCE, "int32").bound(n, 1 << 20, 1)
            for n in counts
        ],
        "--",
        color=INK,
        linewidth=0.8,
        label="by the links' bounds alone",
    )
    axes.axhline(1, color=INK, linewidth=0.6)
    axes.set(xlabel="ranks", ylabel="times as fast as Gloo", ylim=(0, None))
    axes.set_xticks(counts)
    return "How much faster than Gloo, by the number of ranks? float32, dense"


def _rates(axes: Any, rows: Sequence[ResultRow]) -> str | None:
    some = _most_common(_large(_dense(rows)), "ranks")
    rates = sorted({row.rate_mbit for row in some})
    if len(rates) < 2:
        return None
    for contender in CONTENDERS:
        mine = [
            one
            for rate in rates
            for one in _most_common(
                [row for row in some if row.rate_mbit == rate and row.contender == contender],
                "bytes",
            )[:1]
        ]
        if mine:
            _points(
                axes,
                mine,
                lambda row: row.rate_mbit,
                "share_of_bound",
                NAMES[contender],
                COLOURS[contender],
            )
    axes.axhline(1, color=INK, linewidth=0.6)
    axes.set(xscale="log", xlabel="links, Mbit/s", ylim=(0, 1.1))
    axes.set_ylabel("share of the bound that each has by its own bytes")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    return f"What of its link does each use? {some[0].ranks} ranks, float32, dense"


def _lanes(axes: Any, rows: Sequence[ResultRow]) -> str | None:
    large = [row for row in _large(rows) if row.density == 1 and row.times_gloo]
    narrow = _most_common(
        [row for row in large if row.wire in ("int16", "int8", "int4")], "rate_mbit"
    )
    if not narrow:
        return None
    rate = narrow[0].rate_mbit
    some = [row for row in large if row.rate_mbit == rate]
    counts = sorted({row.ranks for row in narrow})
    order = (
        "gloo",
        "gloo float16",
        "mpi",
        "p4reduce",
        "p4reduce int16",
        "p4reduce int8",
        "p4reduce int4",
    )
    names = [name for name in order if any(row.name == name for row in some)]
    width = 0.8 / len(counts)
    for place, ranks in enumerate(counts):
        for at, name in enumerate(names):
            mine = [row for row in some if row.name == name and row.ranks == ranks]
            if not mine:
                continue
            colour = _RANK_COLOURS.get(ranks, INK)
            hollow = mine[0].limit == PROCESSOR
            bar = axes.bar(
                at + (place - (len(counts) - 1) / 2) * width,
                mine[0].times_gloo,
                width,
                color="white" if hollow else colour,
                edgecolor=colour,
                label=None if hollow else f"{ranks} ranks",
            )
            axes.bar_label(bar, [f"{mine[0].times_gloo:.2g}"], fontsize=8)
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_ylabel("times as fast as Gloo's float32")
    return f"What do fewer bits a number bring? Links of {rate:g} Mbit/s, dense"


def _densities(axes: Any, rows: Sequence[ResultRow]) -> str | None:
    mine = [row for row in _large(rows) if row.name.startswith("p4reduce") and row.wire == "int32"]
    sparse = _most_common([row for row in mine if row.density < 1 and row.times_gloo], "rate_mbit")
    if not sparse:
        return None
    rate = sparse[0].rate_mbit
    for ranks in sorted({row.ranks for row in sparse}):
        for overlap, style in (("aligned", "-"), ("independent", "--")):
            some = [
                row
                for row in mine
                if (row.rate_mbit, row.ranks) == (rate, ranks)
                and (row.overlap == overlap or row.density == 1)
            ]
            _points(
                axes,
                some,
                lambda row: row.density,
                "times_gloo",
                f"{ranks} ranks, {overlap}",
                _RANK_COLOURS.get(ranks, INK),
            )
            for line in axes.lines:
                if line.get_label() == f"{ranks} ranks, {overlap}":
                    line.set_linestyle(style)
    axes.set(xscale="log", yscale="log", xlabel="density: share of the blocks that a rank has")
    axes.set_ylabel("times as fast as Gloo, dense")
    densities = sorted({row.density for row in sparse} | {1.0})
    axes.set_xticks(densities, [f"{density:g}" for density in densities])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    return f"What do blocks of zeros bring? Links of {rate:g} Mbit/s, float32"
