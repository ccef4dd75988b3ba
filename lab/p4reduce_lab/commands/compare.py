# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.options import output_option

if TYPE_CHECKING:
    from p4reduce_lab.compare.cells import CompareCell

_CHOICES = {
    "contenders": ("p4reduce", "gloo", "mpi"),
    "precisions": ("int32", "int16", "int8", "int4"),
}


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
    """Mbit/s; 0: no links."""
    from p4reduce_lab.errors import LabError
    from p4reduce_lab.networks.links import check_rate
    from p4reduce_lab.units import bits_per_second

    if text is None:
        return None
    words = text.split(",")
    try:
        rates = [0.0 if word == "none" else bits_per_second(word) / 1e6 for word in words]
        for word, rate in zip(words, rates, strict=True):
            if word != "none":
                check_rate(rate)
    except (LabError, ValueError) as error:
        raise click.BadParameter(f"{error}, or none for no links") from None
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
            raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}")
    return names


@click.command()
@click.option(
    "--ranks", "-n", callback=_whole_numbers, metavar="N,…", help="How many ranks, such as 2,4,8."
)
@click.option(
    "--rates",
    callback=_rates,
    metavar="RATE,…",
    help="The links' rates, such as 10Mbit,1Gbit; none: no limit, and no links with --links "
    "ethernet.",
)
@click.option(
    "--sizes", callback=_sizes, metavar="BYTES,…", help="The tensor's sizes, such as 4K,2M."
)
@click.option(
    "--precisions", callback=_names, metavar="NAME,…", help="Which lanes: int32, int16, int8, int4."
)
@click.option(
    "--densities",
    callback=_densities,
    metavar="SHARE,…",
    help="The tensor's share of blocks that are not zero, such as 1,0.1,0.01.",
)
@click.option(
    "--contenders",
    callback=_names,
    metavar="NAME,…",
    help="The systems to compare: p4reduce, gloo, mpi.  [default: all that are installed; p4reduce "
    "and gloo at least]",
)
@click.option(
    "--turns",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often each is measured.",
)
@click.option(
    "--switch",
    type=click.Choice(["embedded", "bmv2"]),
    default="embedded",
    envvar="SWITCH",
    show_envvar=True,
    show_default=True,
    help="Which switch sums for p4reduce.",
)
@click.option(
    "--congestion",
    metavar="NAME",
    help="TCP's congestion control.  [default: the machine's]",
)
@click.option(
    "--links",
    type=click.Choice(["ethernet", "udp"]),
    default="ethernet",
    envvar="LINKS",
    show_envvar=True,
    show_default=True,
    help="Which links. ethernet: interfaces of the switch, without offloads, and a bridge for "
    "TCP. udp: one link with offloads from each rank to a router, for UDP and TCP alike.",
)
@output_option("build/compare", "Where compare.json and the pictures go.")
def command(
    ranks: list[int] | None,
    rates: list[float] | None,
    sizes: list[int] | None,
    precisions: list[str] | None,
    densities: list[float] | None,
    contenders: list[str] | None,
    turns: int,
    switch: str,
    congestion: str | None,
    links: str,
    output: Path,
) -> None:
    """Measure p4reduce beside PyTorch's Gloo and Open MPI, on the same links.

    Each rank is in a network namespace with two links of the same rate. One leads to the P4 switch,
    for p4reduce, the other to a plain Linux bridge, for the TCP of the others. The same tensors are
    reduced by each in turns. With --links udp the rank's only link leads to a router, on which the
    switch has UDP ports. Needs root, and PyTorch. Without options a set is measured that takes
    about ten minutes. With --ranks, --rates or --sizes, all of these are combined.

    \b
    Examples:
      p4reduce-lab compare
      p4reduce-lab compare --ranks 4 --rates 100Mbit --sizes 2M
      p4reduce-lab compare --links udp --rates 1Gbit,none --sizes 64K,16M
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.compare.cells import STANDARD_SECONDS
    from p4reduce_lab.compare.results import AIMS_HEAD, aims_table
    from p4reduce_lab.compare.run import RESULTS_FILE, compare
    from p4reduce_lab.compare.starting import check_possible, missing

    if contenders is None:
        contenders = ["p4reduce", "gloo"]
        if (what := missing("mpi")) is None:
            contenders.append("mpi")
        else:
            click.echo(f"Without Open MPI, which takes {what}")
    if links == "udp" and switch == "bmv2":
        raise ArgumentsError("--links udp requires --switch embedded: BMv2 has no UDP ports")
    wish = (ranks, rates, sizes, precisions, densities, contenders, turns)
    cells = _cells(*wish, links)
    check_possible(contenders, any(cell.linked for cell in cells))
    if switch == "bmv2" and not all(cell.rate for cell in cells):
        click.echo("BMv2 has no ports without links: these cells are left out")
        cells = [cell for cell in cells if cell.rate]
    choice = choose(switch, "local")
    limit = STANDARD_SECONDS if ranks is rates is sizes is None else None
    report = compare(cells, choice, congestion, output, click.echo, limit)
    if aims := aims_table(report.rows):
        click.echo("")
        for aim, least, measured, where, reached in (AIMS_HEAD, *aims):
            click.echo(f"{aim:<46}{least:<14}{measured:<14}{reached:<14}{where}")
    click.echo(f"\n{output / RESULTS_FILE}")


def _cells(
    ranks: list[int] | None,
    rates: list[float] | None,
    sizes: list[int] | None,
    precisions: list[str] | None,
    densities: list[float] | None,
    contenders: list[str],
    turns: int,
    links: str,
) -> list[CompareCell]:
    from p4reduce_lab.compare.cells import CellOptions, cells_of, standard, standard_udp

    if ranks is rates is sizes is None:
        if precisions is not None or densities is not None:
            raise ArgumentsError("--precisions and --densities require --ranks, --rates or --sizes")
        return list((standard_udp if links == "udp" else standard)(contenders))
    return cells_of(
        CellOptions(
            ranks=ranks or [4],
            rates=rates or [10.0],
            sizes=sizes or [2 << 20],
            precisions=precisions or ["int32"],
            densities=densities or [1.0],
            contenders=contenders,
            turns=turns,
            links=links,
        )
    )
