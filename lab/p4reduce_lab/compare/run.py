# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab compare``: measures cell after cell, and writes the results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from p4reduce_lab.choice import LabChoice
from p4reduce_lab.compare.cells import UDP, CompareCase, CompareCell, expected_seconds
from p4reduce_lab.compare.contenders import ContenderRanks, ReductionCost
from p4reduce_lab.compare.pictures import QUESTIONS, draw
from p4reduce_lab.compare.results import (
    ResultRow,
    bytes_text,
    links_text,
    rows_of,
)
from p4reduce_lab.compare.starting import Network, started
from p4reduce_lab.errors import LabError
from p4reduce_lab.measured.machine import described, provenance
from p4reduce_lab.networks.links import QUEUE_BYTES
from p4reduce_lab.networks.routed import RoutedNetwork
from p4reduce_lab.networks.shaped import ShapedNetwork
from p4reduce_lab.processes.rundir import results_directory, run_directory
from p4reduce_lab.progress import LongWork, duration

RESULTS_FILE = "compare.json"
_WARM_SIZE = 256 << 10  # bytes of the reduction over links before a cell's first turn, at most
_FAST = 1000.0  # Mbit/s, while nothing is measured
# A turn may take this many seconds, and this many times its bound.
_LEAST_TIMEOUT, _TIMES_BOUND = 60.0, 20.0


@dataclass(frozen=True)
class ComparisonReport:
    """A whole comparison, as compare.json has it.

    Attributes:
        begun: `measured.machine.provenance`, from before the first process was started.
        settings: what it was measured with.
        rows: one for each case of each cell.
        seconds: it took.
    """

    begun: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[ResultRow, ...]
    seconds: float

    def json(self) -> dict[str, Any]:
        """Return the contents of compare.json."""
        return {
            **self.begun,
            "settings": self.settings,
            "seconds": self.seconds,
            "results": [asdict(row) for row in self.rows],
        }

    @staticmethod
    def read(path: Path) -> ComparisonReport:
        """Read compare.json. Raises LabError."""
        try:
            whole: dict[str, Any] = json.loads(path.read_text())
            rows = tuple(ResultRow(**row) for row in whole.pop("results"))
            return ComparisonReport(
                settings=whole.pop("settings"), seconds=whole.pop("seconds"), rows=rows, begun=whole
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path} is not a result of `p4reduce-lab compare`: {error}") from error


def compare(
    cells: Sequence[CompareCell],
    choice: LabChoice,
    congestion: str | None,
    output: Path,
    say: Callable[[str], None],
    within: float | None = None,
) -> ComparisonReport:
    """Measure all cells, and write compare.json and the pictures.

    Args:
        cells: what; all over the same kind of links.
        choice: which switch.
        congestion: TCP's congestion control in the namespaces; None: as the machine has it.
        output: a directory for the results.
        say: takes a line at a time.
        within: seconds; cells that would end later are left out. None: all are measured.

    Raises:
        LabError: something did not start or ended, a sum was wrong, or a tool failed. What had
            been measured by then is in compare.json.
    """
    begun = provenance("torch", "mpi4py")
    began = time.monotonic()
    settings: dict[str, Any] = {
        "switch": choice.switch,
        "links": cells[0].links,
        "queue_bytes": QUEUE_BYTES,
        "offloads": "on" if cells[0].links == UDP else "off",
        "mtu": 1500,
    }
    rows: list[ResultRow] = []
    with results_directory(output, replace=(RESULTS_FILE, "compare-*.png")) as place:
        count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        say(f"{described(begun)}\n{count}; about {duration(expected_seconds(cells))}\n")

        def so_far() -> ComparisonReport:
            return ComparisonReport(begun, settings, tuple(rows), time.monotonic() - began)

        def keep(found: list[ResultRow]) -> None:
            """What has been measured is kept, whatever comes after it."""
            _show(found, say)
            rows.extend(found)
            (place / RESULTS_FILE).write_text(json.dumps(so_far().json(), indent=2) + "\n")

        deadline = None if within is None else began + within
        work = LongWork(
            "cells",
            len(cells),
            work=expected_seconds(cells),
            kept=lambda: f"what was measured is in {place / RESULTS_FILE}" if rows else "",
        )
        with work:
            listener = _CompareListener(say, keep, work)
            # Processes stay while the number of ranks does: links can be given another rate.
            for (ranks, linked), some in groupby(_in_order(cells), key=_place):
                name = _measure(ranks, linked, some, choice, congestion, listener, deadline)
                if name:
                    settings["congestion_control"] = name
        keep([])  # the settings have the congestion control now
        if (name := begun["commit"]) and not name.endswith("+"):
            kept = place / f"compare-{name}.json"
            kept.write_text((place / RESULTS_FILE).read_text())
        report = so_far()
        draw(report.rows, place, foot(report), "compare")
    return report


@dataclass(frozen=True)
class _CompareListener:
    """The functions that report progress, take each cell's rows, and count the cells."""

    say: Callable[[str], None]
    keep: Callable[[list[ResultRow]], None]
    work: LongWork


def _place(cell: CompareCell) -> tuple[int, bool]:
    """What cells have to share to be measured by the same processes."""
    return cell.ranks, cell.linked


def _in_order(cells: Sequence[CompareCell]) -> list[CompareCell]:
    """Those of one place after each other, the places as they come."""
    places = list(dict.fromkeys(map(_place, cells)))
    return sorted(cells, key=lambda cell: places.index(_place(cell)))


def foot(report: ComparisonReport) -> str:
    """Return a picture's footer: the switch, the machine and the day."""
    machine = report.begun["machine"]
    return (
        f"{report.settings['switch']} switch, {machine['cpu']}, {machine['cores']} cores, "
        f"{report.begun['time'][:10]}"
    )


def _measure(
    ranks: int,
    linked: bool,
    some: Iterable[CompareCell],
    choice: LabChoice,
    congestion: str | None,
    listener: _CompareListener,
    deadline: float | None,
) -> str:
    """Measure the cells of a number of ranks in one network. Returns TCP's congestion control."""

    def in_time(cell: CompareCell, *, started: bool) -> bool:
        seconds = expected_seconds([cell], started=started)
        if deadline is None or time.monotonic() + seconds < deadline:
            return True
        listener.say(f"{named(cell)}: left out, the time is up")
        listener.work.advance(expected_seconds([cell]))
        return False

    def named(cell: CompareCell) -> str:
        links = f"{cell.rate:g} Mbit/s" if cell.rate else "no limit"
        return f"{ranks} ranks, {links}, {bytes_text(cell.size)}"

    cells = [cell for cell in some if in_time(cell, started=False)]
    if not cells:
        return ""
    contenders = list(dict.fromkeys(case.contender for cell in cells for case in cell.cases))
    listener.work.now(f"{ranks} ranks are starting")
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory())
        network: Network | None = None
        if linked and cells[0].links == UDP:
            network = stack.enter_context(RoutedNetwork(ranks, _FAST, congestion))
        elif linked:
            network = stack.enter_context(ShapedNetwork(ranks, _FAST, congestion))
        groups = stack.enter_context(started(contenders, choice, ranks, network, directory))
        for cell in cells:
            if not in_time(cell, started=True):
                continue
            listener.work.now(named(cell))
            if network is not None:
                network.set_rate(cell.rate)
            listener.keep(rows_of(cell, _alternate(cell, groups)))
            listener.work.advance(expected_seconds([cell]))
            if network is not None:
                network.set_rate(_FAST)  # what is left in queues goes before the next cell
        return "" if network is None else network.congestion


def _alternate(
    cell: CompareCell, groups: Mapping[str, ContenderRanks]
) -> dict[CompareCase, list[ReductionCost]]:
    """Measure a cell's cases one after the other, each as often as the cell says."""

    def once(case: CompareCase, size: int, turn: int, *, check: bool) -> ReductionCost:
        bound = case.bound(cell.ranks, size, cell.rate or 1000.0, cell.links)
        group = groups[case.contender]
        return group.turn(case, size, turn, _LEAST_TIMEOUT + _TIMES_BOUND * bound, check=check)

    # Connections are made, and windows and timers have seen the links. On one machine memory is the
    # link, so there all of it has been touched: buffers of this size, on both sides.
    warm = min(cell.size, _WARM_SIZE) if cell.linked else cell.size
    for case in cell.cases:
        once(case, warm, 0, check=False)
    turns: dict[CompareCase, list[ReductionCost]] = {case: [] for case in cell.cases}
    for turn in range(cell.turns):
        for case in cell.cases:
            turns[case].append(once(case, cell.size, turn, check=turn == 0))
    return turns


def _show(rows: list[ResultRow], say: Callable[[str], None]) -> None:
    for row in rows:
        links = links_text(row)
        times = f"{row.times_gloo:8.2f} times Gloo" if row.times_gloo else ""
        bound = f"{row.share_of_bound:5.2f} of its bound" if row.bound_seconds else " " * 18
        say(
            f"{row.ranks} ranks, {links:>11}, {bytes_text(row.bytes):>7}  {row.name:26}"
            f"{row.seconds * 1e3:11.2f} ms  {bound} {times}  "
            f"CPU {row.cpu_seconds * 1e3:8.1f} ms, busy {row.machine_busy:4.0%}  limit: {row.limit}"
        )


def introduction(report: ComparisonReport) -> str:
    """Return the text above a comparison's table."""
    used = report.settings
    links = ""
    if congestion := used.get("congestion_control"):
        queues = f"queues of {used['queue_bytes'] >> 10} KiB at both ends of each link"
        links = f"; TCP by {congestion}; {queues}"
    return (
        f"{described(report.begun)} The run took {report.seconds / 60:.1f} minutes; "
        f"{used['switch']} switch{links}.\n\n"
    )


def draw_pictures(report: ComparisonReport, images: Path, prefix: str) -> str:
    """Draw into `images`; return the Markdown that shows them on a page beside that folder."""
    images.mkdir(parents=True, exist_ok=True)
    text = ""
    for picture in draw(report.rows, images, foot(report), prefix):
        question = QUESTIONS[picture.stem.removeprefix(f"{prefix}-")]
        text += f"![{question}]({images.name}/{picture.name})\n"
    return text
