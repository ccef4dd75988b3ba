# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab compare``."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab import units
from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.options import Listed, Measured, output_option


def _rate(text: str) -> float:
    """Mbit/s; 0: no links."""
    from p4reduce_lab.networks.links import check_rate

    if text == "none":
        return 0.0
    try:
        rate = units.bits_per_second(text) / 1e6
        check_rate(rate)
    except (LabError, ValueError) as error:
        raise ValueError(f"{error}, or none for no links") from None
    return rate


_UNITS = {"K": 1 << 10, "M": 1 << 20}


def _size(text: str) -> int:
    from p4reduce_lab.compare.cells import check_block

    unit = _UNITS.get(text[-1:].upper(), 1)
    try:
        size = round(float(text[:-1] if unit > 1 else text) * unit)
        check_block(size)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; write 4K, 2M or 2097152") from None
    return size


@click.command()
@click.option(
    "--ranks",
    "-n",
    type=Listed(click.IntRange(2, 64)),
    metavar="N,…",
    help="How many ranks, such as 2,4,8.",
)
@click.option(
    "--rates",
    type=Listed(Measured("rate", _rate)),
    metavar="RATE,…",
    help="The links' rates, such as 10Mbit,1Gbit; none: no limit, and no links with --links "
    "ethernet.",
)
@click.option(
    "--sizes",
    type=Listed(Measured("size", _size)),
    metavar="BYTES,…",
    help="The tensor's sizes, such as 4K,2M.",
)
@click.option(
    "--precisions",
    type=Listed(click.Choice(["int32", "int16", "int8", "int4"])),
    metavar="NAME,…",
    help="Which lanes: int32, int16, int8, int4.",
)
@click.option(
    "--densities",
    type=Listed(click.FloatRange(0, 1, min_open=True)),
    metavar="SHARE,…",
    help="The tensor's share of blocks that are not zero, such as 1,0.1,0.01.",
)
@click.option(
    "--contenders",
    type=Listed(click.Choice(["p4reduce", "gloo", "mpi"])),
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
    from p4reduce_lab.compare.cells import STANDARD_SECONDS, cells_of, standard, standard_udp
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
    is_standard = ranks is rates is sizes is None
    if is_standard:
        if precisions is not None or densities is not None:
            raise ArgumentsError("--precisions and --densities require --ranks, --rates or --sizes")
        cells = list((standard_udp if links == "udp" else standard)(contenders))
    else:
        cells = cells_of(
            ranks=ranks or [4],
            rates=rates or [10.0],
            sizes=sizes or [2 << 20],
            precisions=precisions or ["int32"],
            densities=densities or [1.0],
            contenders=contenders,
            turns=turns,
            links=links,
        )
    check_possible(contenders, any(cell.linked for cell in cells))
    if switch == "bmv2" and not all(cell.rate for cell in cells):
        click.echo("BMv2 has no ports without links: these cells are left out")
        cells = [cell for cell in cells if cell.rate]
    choice = choose(switch, "local")
    limit = STANDARD_SECONDS if is_standard else None
    report = compare(cells, choice, congestion, output, click.echo, limit)
    if aims := aims_table(report.rows):
        click.echo("")
        for aim, least, measured, where, reached in (AIMS_HEAD, *aims):
            click.echo(f"{aim:<46}{least:<14}{measured:<14}{reached:<14}{where}")
    click.echo(f"\n{output / RESULTS_FILE}")
