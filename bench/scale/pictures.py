# SPDX-License-Identifier: Apache-2.0
"""The pictures of `make scale`: the model against the number of ranks, measured, simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from p4reduce_lab.planning.framing import PlannedTensor
from p4reduce_lab.planning.network import LARGEST_FANOUT, SWITCHES, PlannedLink, SwitchCost
from p4reduce_lab.planning.picture import COLOURS
from p4reduce_lab.planning.schemes import Cluster, Estimate, by_ring, by_switches
from p4reduce_lab.plots import FAINT, GRID, INK, in_style, new_figure, save

from bench.program import Row
from bench.scale.measured import what
from bench.scale.simulation import Outcome

RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16_384, 65_536, 100_000)
ELEMENTS = 25_000_000
LINK = PlannedLink(10e9, 1e-6)
UPLINK = PlannedLink(10e9, 1e-6)
SIDE = 4
NARROW = 8
NARROW_COLOUR = "#7A1F5C"

Scheme = Callable[[int], Estimate]


def schemes(switch: SwitchCost) -> dict[str, tuple[Scheme, str, int]]:
    """For each way to sum: its time by the number of ranks, its colour, and its most ranks."""
    tensor = PlannedTensor(ELEMENTS)

    def cluster(ranks: int) -> Cluster:
        return Cluster(ranks, LINK, UPLINK, switch, host=0.0)

    narrow = f"tree, {NARROW} children each"
    return {
        "ring": (lambda n: by_ring(cluster(n), tensor), COLOURS["ring"], RANKS[-1]),
        "tree, 64 children each": (
            lambda n: by_switches(cluster(n), tensor, cluster(n).tree()),
            COLOURS["other"],
            RANKS[-1],
        ),
        narrow: (
            lambda n: by_switches(cluster(n), tensor, replace(cluster(n), fanout=NARROW).tree()),
            NARROW_COLOUR,
            RANKS[-1],
        ),
        "one switch": (
            lambda n: by_switches(cluster(n), tensor, cluster(n).star()),
            COLOURS["switch"],
            LARGEST_FANOUT,
        ),
        f"{SIDE} switches side by side": (
            lambda n: by_switches(cluster(n), tensor, cluster(n).star(SIDE)),
            COLOURS["side"],
            LARGEST_FANOUT,
        ),
    }


def predictions() -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """By kind of switch and way to sum: ranks, seconds, bytes that a rank sends."""
    found: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for kind in ("hardware", "embedded-memory"):
        found[kind] = {}
        for name, (scheme, _, most) in schemes(SWITCHES[kind]).items():
            if kind == "hardware" and name.startswith(f"tree, {NARROW}"):
                continue  # the same but for microseconds
            points = [(n, scheme(n)) for n in RANKS if n <= most]
            found[kind][name] = [(n, one.seconds, one.octets) for n, one in points]
    return found


@in_style
def draw_scale(path: Path) -> None:
    """Time and bytes against the number of ranks, by the model."""
    figure, panels = _panels(3, 13.5, 4.7)
    found = predictions()
    titles = {
        "hardware": "Time (s), switches at line rate",
        "embedded-memory": "Time (s), software switches (1 µs for a frame)",
    }
    for axes, kind in zip(panels, titles, strict=False):
        for name, points in found[kind].items():
            _line(axes, name, [(n, seconds) for n, seconds, _ in points], kind)
        _ranks_axis(axes, titles[kind])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for name, points in found["hardware"].items():
        _line(panels[2], name, [(n, octets / 1e6) for n, _, octets in points], "hardware")
    _ranks_axis(panels[2], "Bytes that a rank sends (MB, whole frames)")
    panels[2].set_ylim(bottom=0)
    _legend(figure, panels[1], 5)
    _save(
        figure,
        path,
        f"An all-reduce of {ELEMENTS * 4 / 1e6:,.0f} MB by the model of time: links of "
        f"{LINK.rate / 1e9:g} Gbit/s each way, {1e6 * LINK.delay:g} µs; nothing is lost",
        rows=1,
    )


@in_style
def draw_measured(path: Path, found: Sequence[Row]) -> None:
    """Measured times as points with their range, the model's as lines."""
    found = [one for one in found if one["switches"] == 1]
    workers = sorted({one["workers"] for one in found})
    cases = list(dict.fromkeys(what(one) for one in found))
    figure, (axes, off) = _panels(2, 11.5, 4.6)
    colours = ["#d1495b", "#E69F00", "#009E73", "#0072B2", "#7A1F5C", "#000000", "#56B4E9"]
    for case, colour in zip(cases, colours, strict=False):
        some = {one["workers"]: one for one in found if what(one) == case}
        counts = [count for count in workers if count in some]
        axes.plot(counts, [1e3 * some[n]["model"] for n in counts], color=colour, linewidth=1.3)
        median = [1e3 * some[n]["median"] for n in counts]
        spread = [
            [1e3 * (some[n]["median"] - some[n]["fastest"]) for n in counts],
            [1e3 * (some[n]["slowest"] - some[n]["median"]) for n in counts],
        ]
        axes.errorbar(
            counts, median, spread, fmt="o", color=colour, markersize=5, capsize=3, label=case
        )
        off.plot(counts, [100 * some[n]["off"] for n in counts], "o-", color=colour, linewidth=1)
    for panel in (axes, off):
        panel.set_xticks(workers)
        panel.set_xlabel("ranks")
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    off.axhspan(-15, 15, color=GRID, alpha=0.6)
    off.axhline(0, color=FAINT, linewidth=1)
    axes.set_title("Time of an all-reduce (ms): measured, and the model as lines")
    off.set_title("The model's time beside the measured one (%)")
    _legend(figure, axes, 2)
    rate = found[0]["megabits"]
    _save(
        figure, path, f"Processes on links of {rate:g} Mbit/s, embedded switch, in Mininet", rows=3
    )


@in_style
def draw_simulated(path: Path, outcomes: Sequence[Outcome]) -> None:
    """What each contribution takes, against the number of ranks."""
    figure, (frames, cpu) = _panels(2, 10, 4.0)
    ranks = [one.ranks for one in outcomes]
    each = [one.frames_each for one in outcomes]
    frames.plot(ranks, each, "o-", color=COLOURS["switch"])
    frames.set_ylim(0, 1.2 * max(each))
    _ranks_axis(frames, "Frames on all links for each contribution needed", ranks)
    parts = {
        "switches": [1e6 * one.switch_cpu / one.sent for one in outcomes],
        "ranks": [1e6 * one.rank_cpu / one.sent for one in outcomes],
        "links": [1e6 * one.links_cpu / one.sent for one in outcomes],
    }
    colours = (COLOURS["switch"], COLOURS["side"], FAINT)
    for (name, values), colour in zip(parts.items(), colours, strict=True):
        cpu.plot(ranks, values, "o-", color=colour, label=name)
    cpu.plot(ranks, [one.microseconds for one in outcomes], "o-", color=INK, label="all")
    cpu.set_ylim(bottom=0)
    _ranks_axis(cpu, "Processor time for each that was sent (µs)", ranks)
    cpu.legend()
    _save(figure, path, "Simulated with the real programs and slot machines; every sum is exact")


def _line(axes: Any, name: str, points: Sequence[tuple[int, float]], kind: str) -> None:
    colour = schemes(SWITCHES[kind])[name][1]
    wide = name.startswith("tree, 64")
    width = 4.5 if wide else 1.6  # under the one switch that it is up to 64 ranks
    axes.plot(
        [n for n, _ in points],
        [value for _, value in points],
        color=colour,
        linewidth=width,
        alpha=0.45 if wide else 1,
        label=name,
    )


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
