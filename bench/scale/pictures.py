# SPDX-License-Identifier: Apache-2.0
"""The pictures of `make scale`: the model against the number of ranks, measured, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import LARGEST_FANOUT, SWITCHES, PlannedLink
from p4reduce_lab.planning.picture import COLOURS
from p4reduce_lab.planning.schemes import Cluster, Estimate, by_ring, by_switches
from p4reduce_lab.plots import FAINT, GRID, INK, in_style, new_figure, save

from bench.program import Row
from bench.scale.measured import what
from bench.scale.simulation import Outcome

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 100_000)
TENSOR = PlannedTensor(25_000_000)
LINK = PlannedLink(10e9, 1e-6)
SIDE, NARROW = 4, 8
RING, WIDE, NARROW_TREE = "ring", "tree, 64 children each", f"tree, {NARROW} children each"
ONE, BESIDE = "one switch", f"{SIDE} switches side by side"
SCHEMES = {
    RING: COLOURS["ring"],
    WIDE: COLOURS["other"],
    NARROW_TREE: "#7A1F5C",
    ONE: COLOURS["switch"],
    BESIDE: COLOURS["side"],
}
"""Ways to sum, each with its colour."""
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def estimate(scheme: str, kind: str, ranks: int) -> Estimate:
    """What the model says of a way to sum with a kind of switch."""
    cluster = Cluster(ranks, LINK, LINK, SWITCHES[kind], host=0.0)
    if scheme == RING:
        return by_ring(cluster, TENSOR)
    if scheme in (ONE, BESIDE):
        return by_switches(cluster, TENSOR, cluster.star(SIDE if scheme == BESIDE else 1))
    fanned = replace(cluster, fanout=NARROW) if scheme == NARROW_TREE else cluster
    return by_switches(cluster, TENSOR, fanned.tree())


@in_style
def draw_scale(path: Path) -> None:
    """Time and bytes against the number of ranks, by the model."""
    figure, panels = _panels(3, 13.5, 4.7)
    titles = {
        "hardware": "Time (s), switches at line rate",
        "embedded-memory": "Time (s), software switches (1 µs for a frame)",
    }
    for axes, kind in zip(panels, (*titles, "hardware"), strict=True):
        for name, colour in SCHEMES.items():
            if kind == "hardware" and name == NARROW_TREE:
                continue  # the same but for microseconds
            most = LARGEST_FANOUT if name in (ONE, BESIDE) else RANKS[-1]
            ranks = [n for n in RANKS if n <= most]
            found = [estimate(name, kind, n) for n in ranks]
            values = [one.octets / 1e6 if axes is panels[2] else one.seconds for one in found]
            # The tree lies under the one switch that it is up to 64 ranks.
            style = {"linewidth": 4.5, "alpha": 0.45} if name == WIDE else {"linewidth": 1.6}
            axes.plot(ranks, values, color=colour, label=name, **style)
        _ranks_axis(axes, titles[kind])
    for axes in panels[:2]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(PLAIN)
    panels[2].set_title("Bytes that a rank sends (MB, whole frames)")
    panels[2].set_ylim(bottom=0)
    _legend(figure, panels[1], 5)
    title = (
        f"An all-reduce of {TENSOR.elements * 4 / 1e6:,.0f} MB by the model of time: links of "
        f"{LINK.rate / 1e9:g} Gbit/s each way, {1e6 * LINK.delay:g} µs; nothing is lost"
    )
    _save(figure, path, title, rows=1)


@in_style
def draw_measured(path: Path, found: Sequence[Row]) -> None:
    """Measured times as points with their range, the model's as lines."""
    found = [one for one in found if one["switches"] == 1]
    workers = sorted({one["workers"] for one in found})
    figure, (axes, off) = _panels(2, 11.5, 4.6)
    colours = ["#d1495b", "#E69F00", "#009E73", "#0072B2", "#7A1F5C", "#000000", "#56B4E9"]
    for case, colour in zip(dict.fromkeys(map(what, found)), colours, strict=False):
        some = [one for one in found if what(one) == case]
        counts = [one["workers"] for one in some]
        ms = {
            name: [1e3 * one[name] for one in some]
            for name in ("model", "median", "fastest", "slowest")
        }
        axes.plot(counts, ms["model"], color=colour, linewidth=1.3)
        low, high = (
            [abs(one - median) for one, median in zip(ms[name], ms["median"], strict=True)]
            for name in ("fastest", "slowest")
        )
        style = {"fmt": "o", "color": colour, "markersize": 5, "capsize": 3, "label": case}
        axes.errorbar(counts, ms["median"], [low, high], **style)
        off.plot(counts, [100 * one["off"] for one in some], "o-", color=colour, linewidth=1)
    for panel in (axes, off):
        panel.set_xticks(workers)
        panel.set_xlabel("ranks")
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(PLAIN)
    axes.yaxis.set_major_formatter(PLAIN)
    off.axhspan(-15, 15, color=GRID, alpha=0.6)
    off.axhline(0, color=FAINT, linewidth=1)
    axes.set_title("Time of an all-reduce (ms): measured, and the model as lines")
    off.set_title("The model's time beside the measured one (%)")
    _legend(figure, axes, 2)
    rate = found[0]["megabits"]
    title = f"Processes on links of {rate:g} Mbit/s, embedded switch, in Mininet"
    _save(figure, path, title, rows=3)


@in_style
def draw_simulated(path: Path, outcomes: Sequence[Outcome]) -> None:
    """What each contribution takes, against the number of ranks."""
    figure, (frames, cpu) = _panels(2, 10, 4.0)
    ranks = [one.ranks for one in outcomes]
    each = [one.frames_each for one in outcomes]
    frames.plot(ranks, each, "o-", color=COLOURS["switch"])
    frames.set_ylim(0, 1.2 * max(each))
    _ranks_axis(frames, "Frames on all links for each contribution needed", ranks)
    parts = (("switches", "switch", COLOURS["switch"]), ("ranks", "rank", COLOURS["side"]),
             ("links", "links", FAINT))  # fmt: skip
    for label, name, colour in parts:
        values = [1e6 * getattr(one, f"{name}_cpu") / one.sent for one in outcomes]
        cpu.plot(ranks, values, "o-", color=colour, label=label)
    cpu.plot(ranks, [one.microseconds for one in outcomes], "o-", color=INK, label="all")
    cpu.set_ylim(bottom=0)
    _ranks_axis(cpu, "Processor time for each that was sent (µs)", ranks)
    cpu.legend()
    _save(figure, path, "Simulated with the real programs and slot machines; every sum is exact")


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    figure = new_figure(width, height, layout=None)
    return figure, list(figure.subplots(1, count))


def _ranks_axis(
    axes: Any, title: str, ticks: Sequence[int] = (2, 8, 64, 512, 4096, 65_536)
) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks")
    axes.set_title(title)


def _legend(figure: Figure, axes: Any, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower left", ncols=columns)


def _save(figure: Figure, path: Path, title: str, rows: int = 0) -> None:
    """Write it, with room for that many rows of a legend below."""
    figure.tight_layout(rect=(0, 0.055 * rows, 1, 0.94))
    save(figure, path, title)
