# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab timeline``: the traces of a job's ranks (`Communicator.trace`) in one picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p4reduce_lab.errors import LabError

PARTS = {
    "preparing": "#c9b458",
    "queueing": "#b8c4cf",
    "waiting for ranks": "#f2a65a",
    "receiving": "#8fb8de",
    "sending": "#2e6f9e",
}
"""What a collective consists of, in the order in which they are drawn, and their colours."""
_INK, _GRID, _TIMER, _LATE = "#1f2933", "#e4e7eb", "#d1495b", "#a63446"
_LABELLED = 60  # collectives in sight, beyond which names would only hide each other
_OTHER_CLOCK = 0.05  # seconds between two clocks' offsets, from which on they are two hosts'


@dataclass
class Shown:
    """A collective of one rank, in seconds since the beginning.

    Attributes:
        name: with what was reduced.
        begin, end: of all of it.
        parts: name, begin and end of each.
        lane: the row within the rank, as several are under way at once.
    """

    name: str
    begin: float
    end: float
    parts: list[tuple[str, float, float]] = field(default_factory=list)
    lane: int = 0


@dataclass
class RankShown:
    """A rank's collectives, its repeated frames, and the ranks that were waited for."""

    rank: int
    host: str
    offset: float
    collectives: list[Shown]
    again: list[float]
    waits: list[tuple[str, float, float]]


def read_trace(path: Path) -> RankShown:
    """Read what `Communicator.trace` has written. Raises LabError."""
    try:
        whole = json.loads(path.read_text())
        about, events = whole["otherData"], whole["traceEvents"]
        found: dict[str, Shown] = {}
        begun: dict[tuple[str, str], dict[str, Any]] = {}
        shown = RankShown(
            int(about["rank"]), str(about["host"]), float(about["wall_minus_monotonic"]), [], [], []
        )
        for event in events:
            if event["ph"] == "i":
                shown.again.append(event["ts"] / 1e6)
            if event["ph"] == "b":
                begun[event["id"], event["name"]] = event
            if event["ph"] != "e":
                continue
            first = begun.pop((event["id"], event["name"]))
            span = event["name"], first["ts"] / 1e6, event["ts"] / 1e6
            if event["cat"] == "waiting":
                shown.waits.append(span)
            elif event["name"] in PARTS:
                found.setdefault(event["id"], Shown("", 0, 0)).parts.append(span)
            else:
                one = found.setdefault(event["id"], Shown("", 0, 0))
                one.name, one.begin, one.end = span
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is not a trace of `Communicator.trace`: {error!r}") from error
    shown.collectives = sorted(found.values(), key=lambda one: one.begin)
    _arrange(shown.collectives)
    return shown


def _arrange(collectives: Sequence[Shown]) -> None:
    """Give each the first row that is free when it begins."""
    free: list[float] = []
    for one in collectives:
        for lane, until in enumerate(free):
            if until <= one.begin:
                one.lane, free[lane] = lane, one.end
                break
        else:
            one.lane = len(free)
            free.append(one.end)


def last_ranks(ranks: Sequence[RankShown]) -> dict[str, int]:
    """Return, per collective, the rank that called it last, which the others waited for."""
    latest: dict[str, tuple[float, int]] = {}
    for shown in ranks:
        for one in shown.collectives:
            called = max((end for part, _, end in one.parts if part == "preparing"), default=0.0)
            latest[one.name] = max(latest.get(one.name, (0.0, -1)), (called, shown.rank))
    return {name: rank for name, (_, rank) in latest.items()}


def align(ranks: Sequence[RankShown]) -> float:
    """Align the clocks of several hosts, with the first event at 0.

    On one host all processes have the same clock. Those of several are compared by their wall
    clocks, which is only as good as those are.

    Returns:
        The last moment of all, in seconds.
    """
    reference = ranks[0].offset
    for shown in ranks:
        shift = shown.offset - reference
        _shift(shown, shift if abs(shift) > _OTHER_CLOCK else 0.0)
    starts = [one.begin for shown in ranks for one in shown.collectives]
    if not starts:
        raise LabError("there are no collectives in these traces")
    for shown in ranks:
        _shift(shown, -min(starts))
    return max(one.end for shown in ranks for one in shown.collectives)


def _shift(shown: RankShown, by: float) -> None:
    for one in shown.collectives:
        one.begin, one.end = one.begin + by, one.end + by
        one.parts = [(name, begin + by, end + by) for name, begin, end in one.parts]
    shown.again = [at + by for at in shown.again]
    shown.waits = [(name, begin + by, end + by) for name, begin, end in shown.waits]


def draw(
    ranks: Sequence[RankShown], path: Path, begin: float = 0.0, end: float | None = None
) -> None:
    """Write a PNG.

    Args:
        ranks: as read; their times are shifted by `align`.
        path: of the file.
        begin, end: seconds from the first event; what to show. None: to the last one.
    """
    # Imported here: it takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    ranks = sorted(ranks, key=lambda shown: shown.rank)
    last = align(ranks)
    end = last if end is None else end
    if not begin < end:
        raise LabError(f"nothing is between {begin:g} and {end:g} s; the traces last {last:.3g} s")
    scale, unit = (1e3, "ms") if end - begin < 10 else (1.0, "s")
    heights = [max((one.lane for one in shown.collectives), default=0) + 1 for shown in ranks]
    figure = Figure(
        figsize=(12, 1.6 + 0.34 * (sum(heights) + len(ranks))), dpi=120, layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    in_sight = sum(
        one.end > begin and one.begin < end for shown in ranks for one in shown.collectives
    )
    slowest = last_ranks(ranks)
    base, ticks = 0.0, []
    for shown, height in zip(ranks, heights, strict=True):
        for one in shown.collectives:
            if one.end <= begin or one.begin >= end:
                continue
            y = base + one.lane
            for part, colour in PARTS.items():
                spans = [(b * scale, (e - b) * scale) for name, b, e in one.parts if name == part]
                thick = 0.4 if part == "sending" else 0.8
                axes.broken_barh(spans, (y + 0.1, thick), color=colour, linewidth=0)
            if in_sight <= _LABELLED:
                axes.text(
                    max(one.begin, begin) * scale,
                    y + 0.5,
                    f" {_short(one.name)}, last: rank {slowest[one.name]}",
                    fontsize=6,
                    va="center",
                    color=_INK,
                    clip_on=True,
                )
        for name, b, e in shown.waits:
            axes.plot([b * scale, e * scale], [base + 0.05] * 2, color=_LATE, linewidth=2)
            axes.text(
                b * scale, base, f" {name}", fontsize=6, color=_LATE, va="bottom", clip_on=True
            )
        again = [at * scale for at in shown.again]
        axes.plot(again, [base + 0.05] * len(again), "|", color=_TIMER, markersize=8)
        ticks.append((base + height / 2, f"rank {shown.rank}"))
        base += height + 0.5
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(base, -0.3)
    axes.set_xlim(begin * scale, end * scale)
    axes.set_xlabel(unit)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    legend = [Patch(color=colour, label=part) for part, colour in PARTS.items()]
    legend += [Patch(color=_TIMER, label="sent again by a timer (|)")]
    axes.legend(
        handles=legend, ncols=6, fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0, 1)
    )
    figure.savefig(path)


def _short(name: str) -> str:
    """ "allreduce 7 ('grad')" of "allreduce 7 ('grad', SUM of 1,000 float32)"."""
    head, _, inside = name.partition(" (")
    label = inside.partition(",")[0].rstrip(")")
    return f"{head} {label}" if label.startswith("'") else head
