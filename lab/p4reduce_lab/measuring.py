# SPDX-License-Identifier: Apache-2.0
"""The commands of ``p4reduce-lab`` that measure, and that show what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4reduce_lab.errors import ArgumentsError

if TYPE_CHECKING:
    from p4reduce_lab.compare.cells import Cell

# What a command needs is imported in it.

_CHOICES = {"contenders": ("p4reduce", "gloo", "mpi"), "precisions": ("int32", "int16", "int8")}


def _list_of(kind: type[int] | type[float], text: str, what: str) -> list[float]:
    """Take apart "2,4,8". Raises click.BadParameter."""
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r}: {what}, separated by commas, are needed") from None


def _whole_numbers(
    context: click.Context, option: click.Parameter, text: str | None
) -> list[int] | None:
    if text is None:
        return None
    numbers = [int(one) for one in _list_of(int, text, "whole numbers")]
    if not all(2 <= one <= 64 for one in numbers):
        raise click.BadParameter(f"{text!r}: 2 to 64 ranks are possible")
    return numbers


def _rates(context: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    from p4reduce_lab.errors import LabError
    from p4reduce_lab.networks.shaped import check_rate

    if text is None:
        return None
    rates = _list_of(float, text, "numbers of Mbit/s")
    try:
        for rate in filter(None, rates):
            check_rate(rate)
    except LabError as error:
        raise click.BadParameter(f"{error}, or 0 for no links") from None
    return rates


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def _sizes(context: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    from p4reduce_lab.compare.cells import check_block

    if text is None:
        return None
    sizes = []
    for word in text.upper().split(","):
        unit = word[-1:] if word[-1:] in ("K", "M") else ""
        number = word[: len(word) - len(unit)]
        try:
            size = round(float(number) * _UNITS[unit])
            check_block(size)
        except ValueError as error:
            raise click.BadParameter(f"{word!r}: {error}; write 4K, 2M or 2097152") from None
        sizes.append(size)
    return sizes


def _densities(
    context: click.Context, option: click.Parameter, text: str | None
) -> list[float] | None:
    if text is None:
        return None
    densities = _list_of(float, text, "numbers")
    if not all(0 < one <= 1 for one in densities):
        raise click.BadParameter(f"{text!r}: densities are above 0 and at most 1")
    return densities


def _names(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = text.split(",")
    known = _CHOICES[str(option.name)]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return names


@click.command()
@click.option("--ranks", "-n", callback=_whole_numbers, metavar="N,…", help="How many, like 2,4,8.")
@click.option(
    "--rates", callback=_rates, metavar="MBIT/S,…", help="Of the links, like 10,25,100; 0: none."
)
@click.option("--sizes", callback=_sizes, metavar="BYTES,…", help="Of the tensor, like 4K,2M.")
@click.option(
    "--precisions", callback=_names, metavar="NAME,…", help="Lanes, of int32, int16, int8."
)
@click.option("--densities", callback=_densities, metavar="D,…", help="Like 1,0.1,0.01.")
@click.option(
    "--contenders",
    callback=_names,
    metavar="NAME,…",
    help="Of p4reduce, gloo, mpi. [default: all that are installed; p4reduce and gloo at least]",
)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True, help="Of each.")
@click.option(
    "--switch",
    type=click.Choice(["embedded", "bmv2"]),
    default="embedded",
    envvar="SWITCH",
    show_default=True,
    help="Which one p4reduce goes by. [environment: SWITCH]",
)
@click.option(
    "--congestion", metavar="NAME", help="TCP's congestion control. [default: the machine's]"
)
@click.option(
    "--output",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/compare"),
    show_default=True,
    help="Where compare.json and the pictures go.",
)
@click.option(
    "--page",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write the tables into this page, between its markers, and the pictures into images/ "
    "beside it: docs/performance.md.",
)
@click.option(
    "--readme",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write the headline into this page, between its markers: README.md.",
)
@click.option(
    "--from",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing: draw pictures and write the page from this compare.json.",
)
def compare(
    ranks: list[int] | None,
    rates: list[float] | None,
    sizes: list[int] | None,
    precisions: list[str] | None,
    densities: list[float] | None,
    contenders: list[str] | None,
    turns: int,
    switch: str,
    congestion: str | None,
    output: Path,
    page: Path | None,
    readme: Path | None,
    earlier: Path | None,
) -> None:
    """Measure p4reduce beside PyTorch's Gloo and Open MPI, on the same links.

    Each rank is in a network namespace with two links of the same rate: one to the P4 switch, for
    p4reduce, and one to a plain Linux bridge, for the TCP of the others. The same tensors are
    reduced by each in turns. Takes root, and PyTorch. Without options a set is measured that takes
    about ten minutes; with --ranks, --rates or --sizes, all of these with each other.
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.compare.cells import STANDARD_SECONDS
    from p4reduce_lab.compare.results import AIMS_HEAD, aims_table, headline
    from p4reduce_lab.compare.run import RESULTS_FILE, Report, foot, write_page
    from p4reduce_lab.compare.run import compare as run_comparison
    from p4reduce_lab.compare.starting import check_possible, missing
    from p4reduce_lab.measured.pages import put_text

    if earlier is not None:
        from p4reduce_lab.compare.pictures import draw

        report = Report.read(earlier)
        draw(report.rows, earlier.parent, foot(report))
        output = earlier.parent
    else:
        if contenders is None:
            contenders = ["p4reduce", "gloo"]
            if (what := missing("mpi")) is None:
                contenders.append("mpi")
            else:
                click.echo(f"Without Open MPI, which takes {what}")
        wish = (ranks, rates, sizes, precisions, densities, contenders, turns)
        cells = _cells(*wish)
        check_possible(contenders, any(cell.rate for cell in cells))
        if switch == "bmv2" and not all(cell.rate for cell in cells):
            click.echo("BMv2 has no ports without links: these cells are left out")
            cells = [cell for cell in cells if cell.rate]
        choice = choose(switch, "local")
        limit = STANDARD_SECONDS if ranks is rates is sizes is None else None
        report = run_comparison(cells, choice, congestion, output, click.echo, limit)
    if page is not None:
        write_page(report, page, page.parent / "images")
    if readme is not None and (text := headline(report.rows)):
        put_text(readme, "headline", text)
    click.echo("")
    for line in (AIMS_HEAD, *aims_table(report.rows)):
        click.echo("".join(f"{cell:<46}" if not at else f"{cell:<14}" for at, cell in
                           enumerate((line[0], line[1], line[2], line[4]))) + line[3])  # fmt: skip
    click.echo(f"\n{output / RESULTS_FILE}")


def _cells(
    ranks: list[int] | None,
    rates: list[float] | None,
    sizes: list[int] | None,
    precisions: list[str] | None,
    densities: list[float] | None,
    contenders: list[str],
    turns: int,
) -> list[Cell]:
    from p4reduce_lab.compare.cells import Wish, cells_of, standard

    if ranks is rates is sizes is None:
        if precisions is not None or densities is not None:
            raise ArgumentsError("--precisions and --densities take --ranks, --rates or --sizes")
        return list(standard(contenders))
    return cells_of(
        Wish(
            ranks=ranks or [4],
            rates=rates or [10.0],
            sizes=sizes or [2 << 20],
            precisions=precisions or ["int32"],
            densities=densities or [1.0],
            contenders=contenders,
            turns=turns,
        )
    )


@click.command()
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("timeline.png"),
    show_default=True,
    help="The picture.",
)
@click.option("--begin", type=click.FloatRange(0), default=0.0, help="Seconds; what to show.")
@click.option("--end", type=click.FloatRange(0), help="Seconds; what to show.")
def timeline(traces: tuple[Path, ...], output: Path, begin: float, end: float | None) -> None:
    """Draw TRACES, one for each rank, as `Communicator.trace` writes them: a row for each rank."""
    from p4reduce_lab.timeline import draw, read_trace

    draw([read_trace(path) for path in traces], output, begin, end)
    click.echo(str(output))


@click.command("bench-diff")
@click.argument("before")
@click.argument("after")
@click.option(
    "--noise",
    type=click.FloatRange(0),
    default=0.2,
    show_default=True,
    help="Share by which figures without a measured spread may differ.",
)
@click.option("--all", "everything", is_flag=True, help="Show what is within noise as well.")
def bench_diff(before: str, after: str, noise: float, everything: bool) -> None:
    """Show what got slower beyond noise from BEFORE to AFTER; exit code 1 if anything did.

    Each is a result file of `make bench` or `p4reduce-lab compare`, or a commit for which
    build/bench or build/compare has one.
    """
    from p4reduce_lab.measured.difference import difference, find_results, lines, read_results

    places = [Path("build/bench"), Path("build/compare")]
    paths = [find_results(name, places) for name in (before, after)]
    found = difference(read_results(paths[0]), read_results(paths[1]), noise)
    click.echo("\n".join(lines(found, [str(path) for path in paths], everything=everything)))
    if found.slower:
        raise click.exceptions.Exit(1)


COMMANDS = (compare, timeline, bench_diff)
