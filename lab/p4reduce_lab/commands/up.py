# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab up``."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab.options import RANKS, SystemWish, output_option, system_options


@click.command()
@click.option(
    "--ports",
    type=RANKS,
    default=8,
    show_default=True,
    help="How many ports each switch has. Each rank of a job takes one.",
)
@output_option("build/up", "Where the logs go.")
@system_options("bandwidth")
@click.pass_context
def command(context: click.Context, ports: int, output: Path, wish: SystemWish) -> None:
    """Leave a switch and a controller running until Ctrl-C, for ranks of your own.

    Prints what to export in other shells. There `p4reduce-lab exec` starts any number of jobs at
    the same time, as long as there are ports.

    \b
    Examples:
      p4reduce-lab up
      p4reduce-lab up --net udp --ports 16
    """
    from p4reduce_lab.up import run_until_signal

    topology = wish.topology(context, "ports", ports)
    run_until_signal(wish.choose(), topology, output)
