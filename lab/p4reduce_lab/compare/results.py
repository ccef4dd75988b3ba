# SPDX-License-Identifier: Apache-2.0
"""The results of a comparison: rows for a file, tables for people, and aims."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from p4reduce_lab.compare.cells import ETHERNET, GLOO, P4REDUCE, CompareCase, CompareCell
from p4reduce_lab.compare.contenders import ReductionCost
from p4reduce_lab.units import in_words

LINK, PROCESSOR, WAITING = "link", "CPU", "waiting"
_AT_THE_LINK = 0.75  # share of the link's bound from which on the link is the limit
_LARGE = 0.1  # seconds on the link, from which on round trips do not matter
_BUSY = 0.85  # share of a core, or of all of them, from which on it is the processor


@dataclass(frozen=True)
class ResultRow:
    """A case of a cell. Seconds are of a whole reduction, until the last rank has the sum.

    Attributes:
        ranks, rate_mbit, bytes, links: the cell; a rate of 0: not limited. See `CompareCell`.
        name, contender, wire, density, overlap: the case.
        turns: how often it was measured.
        seconds, fastest_seconds, slowest_seconds: the median, and its spread.
        bound_seconds: the least that the links allow, with the contender's own framing; 0: none.
        share_of_bound: of the median; the nearer to 1, the less is left to gain; 0: no bound.
        times_plain: the median in units of S/B, the time that the tensor takes on the link once,
            without headers; 0: no link.
        cpu_seconds: of a rank's process.
        switch_cpu_seconds: of the switch's.
        busiest_thread: the largest share of the time for which one thread computed.
        machine_busy: share of all cores' time that was spent, by whatever.
        limit: "link", "CPU", or "waiting" (for round trips and other ranks).
        times_gloo, least_times_gloo, most_times_gloo: how many times faster than Gloo's float32 in
            the same cell: of the medians, and the least and greatest of the turns; 0: no Gloo.
        megabytes_up, megabytes_down: through the links of the rank that moved most.
        repeated: frames that timers sent again, of all ranks and turns.
    """

    ranks: int
    rate_mbit: float
    bytes: int
    name: str
    contender: str
    wire: str
    density: float
    overlap: str
    turns: int
    seconds: float
    fastest_seconds: float
    slowest_seconds: float
    bound_seconds: float
    share_of_bound: float
    times_plain: float
    cpu_seconds: float
    switch_cpu_seconds: float
    busiest_thread: float
    machine_busy: float
    limit: str
    times_gloo: float
    least_times_gloo: float
    most_times_gloo: float
    megabytes_up: float
    megabytes_down: float
    repeated: int
    links: str = ETHERNET  # records of before have only these

    @property
    def is_large(self) -> bool:
        """Whether the tensor is so large for the link that round trips do not matter."""
        return self.rate_mbit > 0 and self.bytes * 8 / self.rate_mbit / 1e6 >= _LARGE


def rows_of(cell: CompareCell, turns: dict[CompareCase, list[ReductionCost]]) -> list[ResultRow]:
    """Return a cell's rows."""
    gloo = turns.get(CompareCase(GLOO, "float32"))
    return [_row(cell, case, some, gloo) for case, some in turns.items()]


def _row(
    cell: CompareCell,
    case: CompareCase,
    turns: Sequence[ReductionCost],
    gloo: Sequence[ReductionCost] | None,
) -> ResultRow:
    seconds = [turn.seconds for turn in turns]
    median = statistics.median(seconds)
    bound = cell.bound(case) if cell.rate else 0.0
    busiest = statistics.median(turn.busiest for turn in turns)
    # Over all turns: the kernel counts in ticks of ten milliseconds.
    machine = sum(turn.machine * turn.seconds for turn in turns) / sum(seconds)
    share = bound / median
    times = [0.0, 0.0, 0.0]
    if gloo:
        each = [theirs.seconds / ours for theirs, ours in zip(gloo, seconds, strict=True)]
        whole = statistics.median(turn.seconds for turn in gloo) / median
        times = [whole, min(each), max(each)]
    return ResultRow(
        ranks=cell.ranks,
        rate_mbit=cell.rate or 0.0,
        bytes=cell.size,
        name=case.name,
        contender=case.contender,
        wire=case.wire,
        density=case.density,
        overlap=case.overlap,
        turns=len(turns),
        seconds=median,
        fastest_seconds=min(seconds),
        slowest_seconds=max(seconds),
        bound_seconds=bound,
        share_of_bound=share,
        times_plain=median / (cell.size * 8 / cell.rate / 1e6) if cell.rate else 0.0,
        cpu_seconds=statistics.median(turn.cpu for turn in turns),
        switch_cpu_seconds=statistics.median(turn.switch_cpu for turn in turns),
        busiest_thread=busiest,
        machine_busy=machine,
        limit=limit_of(share, busiest, machine),
        times_gloo=times[0],
        least_times_gloo=times[1],
        most_times_gloo=times[2],
        megabytes_up=statistics.median(turn.up for turn in turns) / 1e6,
        megabytes_down=statistics.median(turn.down for turn in turns) / 1e6,
        repeated=sum(turn.repeated for turn in turns),
        links=cell.links,
    )


def limit_of(share: float, busiest: float, machine: float) -> str:
    """Return what limited a reduction."""
    if share >= _AT_THE_LINK:
        return LINK
    return PROCESSOR if max(busiest, machine) >= _BUSY else WAITING


HEAD = (
    "links",
    "ranks",
    "tensor",
    "by",
    "median (fastest to slowest)",
    "of the bound",
    "by S/B",
    "CPU per rank",
    "times Gloo (turns)",
    "limit",
)


def cells_of_table(rows: Sequence[ResultRow], *, bold: bool = True) -> list[list[str]]:
    """Return rows for `HEAD`. Rows that the processor limits are not bold, and claim nothing."""
    return [
        [
            links_text(row),
            str(row.ranks),
            bytes_text(row.bytes),
            f"**{row.name}**" if bold and row.contender == P4REDUCE else row.name,
            f"{in_words(row.seconds)} ({in_words(row.fastest_seconds)} to "
            f"{in_words(row.slowest_seconds)})",
            f"{row.share_of_bound:.2f}" if row.bound_seconds else "-",
            f"{row.times_plain:.2f}" if row.times_plain else "-",
            in_words(row.cpu_seconds),
            _times_text(row),
            row.limit,
        ]
        for row in rows
    ]


def links_text(row: ResultRow) -> str:
    """Return "10 Mbit/s", "no limit" (UDP) or "none" (Ethernet: all on one machine)."""
    if row.rate_mbit:
        return f"{row.rate_mbit:g} Mbit/s"
    return "none" if row.links == ETHERNET else "no limit"


def _times_text(row: ResultRow) -> str:
    if not row.times_gloo or (row.contender, row.wire) == (GLOO, "float32"):
        return "-"
    spread = f"({row.least_times_gloo:.3g} to {row.most_times_gloo:.3g})"
    return f"{row.times_gloo:.3g} {spread}"


def bytes_text(number: int) -> str:
    """Return a size such as "4 KiB" or "2 MiB"."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} B"


@dataclass(frozen=True)
class Aim:
    """An aim, and the rows that show whether it was reached.

    Attributes:
        text: for people.
        least: what `figure` has to be at least.
        figure: name of a row's attribute.
        where: attributes that a row has to have.
    """

    text: str
    least: float
    figure: str
    where: dict[str, Any]


_DENSE = {"name": "p4reduce"}
AIMS = (
    Aim("float32, 4 ranks, times Gloo", 1.45, "times_gloo", {**_DENSE, "ranks": 4}),
    Aim("float32, 8 ranks, times Gloo", 1.6, "times_gloo", {**_DENSE, "ranks": 8}),
    Aim("float32, share of our own wire bound", 0.95, "share_of_bound", {**_DENSE}),
    Aim(
        "int8, 8 ranks, times Gloo's float32",
        5.5,
        "times_gloo",
        {"name": "p4reduce int8", "ranks": 8},
    ),
    Aim(
        "1 % of the blocks, aligned, times Gloo",
        50.0,
        "times_gloo",
        {"name": "p4reduce 0.01 aligned", "ranks": 8},
    ),
    Aim(
        "1 % of the blocks, independent, times Gloo",
        8.0,
        "times_gloo",
        {"name": "p4reduce 0.01 independent", "ranks": 8},
    ),
)
NEARNESS = ((4 << 20, 2.0), (64 << 20, 3.0))
"""Without links: bytes, and at most so many times as long as Gloo."""
AIMS_HEAD = ("aim", "at least", "measured", "where", "reached")


def aims_table(rows: Sequence[ResultRow]) -> list[list[str]]:
    """Return rows for `AIMS_HEAD`: each aim at each place where its figure was measured."""
    lines = []
    for aim in AIMS:
        some = [
            row
            for row in rows
            if row.is_large
            and getattr(row, aim.figure)  # 0: Gloo is not among the contenders
            and all(getattr(row, name) == value for name, value in aim.where.items())
        ]
        for row in some:
            figure = getattr(row, aim.figure)
            reached = "yes" if figure >= aim.least else "no"
            if row.limit == PROCESSOR:
                reached = "no claim: CPU"
            where = f"{row.ranks} ranks, {row.rate_mbit:g} Mbit/s, {bytes_text(row.bytes)}"
            lines.append([aim.text, f"{aim.least:g}", f"{figure:.3g}", where, reached])
    for size, most in NEARNESS:
        here = [row for row in rows if not row.rate_mbit and row.bytes == size]
        for row in here:
            if row.name != "p4reduce" or not row.times_gloo:
                continue
            slower = 1 / row.times_gloo
            lines.append(
                [
                    f"{bytes_text(size)} without links, times as long as Gloo",
                    f"at most {most:g}",
                    f"{slower:.3g}",
                    f"{row.ranks} ranks, one machine",
                    "yes" if slower <= most else "no",
                ]
            )
    return lines


_COMMENTS = (
    ("p4reduce", "float32 gradients"),
    ("p4reduce int8", "rounded to lanes of 8 bits"),
    ("p4reduce 0.01 aligned", "with 1 % of the blocks not zero, the same on all ranks"),
    ("p4reduce 0.01 independent", "with 1 %, others on each rank"),
)


def headline(rows: Sequence[ResultRow]) -> str:
    """Return a sentence for the README, from rows that the processor does not limit; else "".

    It is of the cell with most ranks, and among these of the one with the most claims.
    """
    comments = dict(_COMMENTS)
    claims = [
        row
        for row in rows
        if row.is_large and row.name in comments and row.times_gloo and row.limit != PROCESSOR
    ]
    if not claims:
        return ""
    cells = [(row.ranks, row.rate_mbit, row.bytes) for row in claims]
    best = max(cells, key=lambda cell: (cell[0], cells.count(cell)))
    of_best = {row.name: row for row, cell in zip(claims, cells, strict=True) if cell == best}
    parts = [
        f"{what} **{row.times_gloo:.2g} times as fast**"
        for name, what in _COMMENTS
        if (row := of_best.get(name)) is not None
    ]
    ranks, rate, size = best
    return (
        f"Measured beside PyTorch's Gloo on the same links ({ranks} ranks, {rate:g} Mbit/s, "
        f"{bytes_text(size)}): {'; '.join(parts)}. "
        "[All figures](docs/figures.md#beside-gloo-and-open-mpi).\n"
    )
