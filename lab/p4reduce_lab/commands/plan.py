# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.options import COUNT, RATE, SIZE, TIME

if TYPE_CHECKING:
    from p4reduce_lab.planning.advice import Question
    from p4reduce_lab.planning.training import TrainingStep

DDP_BUCKET = "25MiB"
DDP_BUCKET_BYTES = 25 * 2**20
MAX_RANKS = 64**3
MAX_HOSTS = 64


@click.command()
@click.option("--parameters", type=COUNT, help="The model's number of parameters, such as 25e6.")
@click.option("--compute", type=TIME, help="A step's computing time on one rank, such as 120ms.")
@click.option(
    "--profile",
    "script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A PyTorch training script to measure both with, in a few steps. Its own arguments "
    "follow --.",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How many steps to profile.",
)
@click.option(
    "--ranks",
    "-n",
    type=click.IntRange(1, MAX_RANKS),
    default=8,
    show_default=True,
    help="How many ranks train together, each with a link of its own to the switch.",
)
@click.option(
    "--hosts",
    type=click.IntRange(2, MAX_HOSTS),
    help="How many hosts train together, in place of --ranks. The answer says where switches "
    "should run.",
)
@click.option(
    "--ranks-per-host", type=click.IntRange(1, MAX_HOSTS), help="Of --hosts.  [default: 1]"
)
@click.option(
    "--host-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The hosts by name, in place of --hosts: a line is NAME, NAME slots=N or NAME:N, as for "
    "mpirun.",
)
@click.option(
    "--cores",
    type=click.FloatRange(0, min_open=True),
    help="Cores of a host that sums may use, with --hosts.  [default: 4]",
)
@click.option(
    "--every",
    type=click.IntRange(2),
    help="Steps from one average of DiLoCo to the next, with --hosts.  [default: 64]",
)
@click.option(
    "--bandwidth",
    type=RATE,
    default="1Gbit",
    show_default=True,
    help="The rate of each rank's link, or of each host's.",
)
@click.option(
    "--uplink", type=RATE, help="The rate of links between switches.  [default: as --bandwidth]"
)
@click.option(
    "--delay", type=TIME, default="10us", show_default=True, help="The one-way delay of a link."
)
@click.option("--batch", type=click.IntRange(1), help="Samples that each rank takes in a step.")
@click.option(
    "--bucket",
    type=SIZE,
    help="How much of the gradients is summed together.  "
    f"[default: {DDP_BUCKET}, as PyTorch's DDP]",
)
@click.option(
    "--density",
    type=click.FloatRange(0, 1),
    help="The share of the blocks of 256 gradients that are not all zeros.  [default: 1, or as "
    "--profile finds it]",
)
@click.option(
    "--overlap",
    type=click.Choice(["aligned", "independent"]),
    default="independent",
    show_default=True,
    help="Whether these blocks are the same on all ranks.",
)
@click.option(
    "--switch",
    type=click.Choice(
        ["hardware", "tofino2", "embedded", "embedded-udp", "embedded-memory", "python", "bmv2"]
    ),
    default="embedded-udp",
    show_default=True,
    help="The kind of switch.",
)
@click.option(
    "--one-interface",
    is_flag=True,
    help="The switch's host has one interface for all ranks, of the rate of a rank's link. Without "
    "the option each rank has a link of its own to the switch.",
)
@click.option(
    "--switch-link",
    type=RATE,
    help="The rate of the one interface that the switch's host has for all ranks, or of a spare "
    "host's with --hosts.",
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw this PNG.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all figures to this file.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    /,
    plot: Path | None,
    json_file: Path | None,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """Predict the speed-up from in-network aggregation, and show the commands to run.

    \b
    Examples:
      p4reduce-lab plan --hosts 3 --parameters 25e6 --compute 120ms
      p4reduce-lab plan --parameters 25e6 --ranks 8 --bandwidth 1Gbit \\
          --compute 120ms
      p4reduce-lab plan --profile train.py --ranks 8 -- --epochs 1
    """
    import json

    from p4reduce_lab.planning.advice import advise
    from p4reduce_lab.planning.report import as_json, text

    if arguments and given["script"] is None:
        raise ArgumentsError(f"{arguments[0]!r}: only a script (--profile) has arguments")
    if given["hosts"] is not None or given["host_file"] is not None:
        _plan_hosts(context, given, arguments, json_file)
        return
    for name in _OF_HOSTS:
        if given[name] is not None:
            raise ArgumentsError(f"{_option(name)} needs --hosts or --host-file")
    advice = advise(_question(given, arguments))
    click.echo(text(advice), nl=False)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(advice), indent=2) + "\n")
    if plot is not None:
        from p4reduce_lab.planning.picture import draw

        draw(plot, advice)
        click.echo(f"\n  {plot}")


_OF_HOSTS = ("ranks_per_host", "cores", "every")
_OF_RANKS = ("ranks", "switch", "uplink", "one_interface", "density", "overlap", "plot")


def _plan_hosts(
    context: click.Context,
    given: dict[str, Any],
    arguments: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """Answer about hosts, each with one link for all of its ranks."""
    import json

    from p4reduce_lab.planning.home import Home, answer
    from p4reduce_lab.planning.home_report import as_json, text
    from p4reduce_lab.planning.hosts import equal_hosts, read_host_file
    from p4reduce_lab.planning.network import PlannedLink

    for name in _OF_RANKS:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise ArgumentsError(
                f"{_option(name)} does not go with --hosts and --host-file: it is for --ranks"
            )
    if given["host_file"] is not None:
        if given["hosts"] is not None or given["ranks_per_host"] is not None:
            raise ArgumentsError(
                "--host-file has hosts and their ranks: leave out --hosts and --ranks-per-host"
            )
        hosts = read_host_file(given["host_file"])
    else:
        hosts = equal_hosts(given["hosts"], given["ranks_per_host"] or 1)
    step, _ = _step(given, arguments, _bucket(given))
    try:
        link = PlannedLink(given["bandwidth"], given["delay"])
        rate = given["switch_link"]
        spare = PlannedLink(given["bandwidth"] if rate is None else rate, given["delay"])
    except ValueError as error:
        raise ArgumentsError(str(error)) from None
    found = answer(Home(hosts, link, spare, given["cores"] or 4), step, given["every"] or 64)
    click.echo(text(found), nl=False)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(found), indent=2) + "\n")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _bucket(given: dict[str, Any]) -> int:
    """Numbers that are summed together."""
    from p4reduce_lab.planning.framing import NUMBER_BYTES

    octets = DDP_BUCKET_BYTES if given["bucket"] is None else given["bucket"]
    if octets < NUMBER_BYTES:
        raise ArgumentsError(f"--bucket {octets:g}: {NUMBER_BYTES} bytes at least are needed")
    return int(octets / NUMBER_BYTES)


def _question(given: dict[str, Any], arguments: tuple[str, ...]) -> Question:
    from p4reduce_lab.planning.advice import Question
    from p4reduce_lab.planning.network import SWITCHES, PlannedLink
    from p4reduce_lab.planning.schemes import Cluster

    step, density = _step(given, arguments, _bucket(given))
    try:
        link = PlannedLink(given["bandwidth"], given["delay"])
        uplink = (
            PlannedLink(given["uplink"], given["delay"]) if given["uplink"] is not None else None
        )
        rate = given["switch_link"]
        if rate is None and given["one_interface"]:
            rate = given["bandwidth"]
        trunk = PlannedLink(rate, given["delay"]) if rate is not None else None
    except ValueError as error:
        raise ArgumentsError(str(error)) from None
    cluster = Cluster(
        given["ranks"],
        link,
        uplink,
        switch=SWITCHES[given["switch"]],
        trunk=trunk,
    )
    return Question(cluster, step, density, given["overlap"])


def _step(
    given: dict[str, Any], arguments: tuple[str, ...], bucket: int
) -> tuple[TrainingStep, float]:
    """What a rank computes, and how dense its gradients are."""
    from p4reduce_lab.planning.training import even_step

    density, batch = given["density"], given["batch"] or 0
    if given["script"] is not None:
        from p4reduce_lab.planning.profile import profile

        if given["parameters"] is not None or given["compute"] is not None:
            raise ArgumentsError(
                "--profile measures --parameters and --compute: give one or the other"
            )
        found = profile([str(given["script"]), *arguments], given["steps"])
        return found.step(bucket, batch), found.density if density is None else density
    if given["parameters"] is None or given["compute"] is None:
        raise ArgumentsError("give --parameters and --compute, or --profile SCRIPT")
    try:
        step = even_step(given["compute"], int(given["parameters"]), bucket, batch)
    except ValueError as error:
        raise ArgumentsError(str(error)) from None
    return step, 1.0 if density is None else density
