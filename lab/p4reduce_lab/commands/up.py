# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab up``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from p4reduce_lab.options import (
    RANKS,
    cores_option,
    network_option,
    output_option,
    pcap_option,
    ranks_of,
    switch_option,
    switches_option,
    tree_option,
    web_option,
)

if TYPE_CHECKING:
    from p4reduce_lab.tree import TreeShape


@click.command()
@click.option(
    "--ports",
    type=RANKS,
    default=8,
    show_default=True,
    help="How many ports each switch has. Each rank of a job takes one.",
)
@output_option("build/up", "Where the logs go.")
@switch_option
@network_option
@switches_option
@cores_option
@tree_option
@pcap_option
@web_option
@click.pass_context
def command(
    context: click.Context,
    ports: int,
    output: Path,
    switch: str,
    net: str,
    switches: int,
    cores: int,
    tree: TreeShape | None,
    pcap: bool,
    web: bool,
) -> None:
    """Leave a switch and a controller running until Ctrl-C, for ranks of your own.

    Prints what to export in other shells. There `p4reduce-lab exec` starts any number of jobs at
    the same time, as long as there are ports.

    \b
    Examples:
      p4reduce-lab up
      p4reduce-lab up --net udp --ports 16
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.several import switches_of
    from p4reduce_lab.up import run_until_signal

    ranks = ranks_of(context, "ports", ports, tree)
    choice = replace(choose(switch, net), pcap=pcap, web=web).with_cores(cores)
    run_until_signal(choice, ranks, output, switches_of(switches, tree, cores))
