# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab exec``."""

from __future__ import annotations

import sys

import click

from p4reduce_lab.errors import ArgumentsError
from p4reduce_lab.options import SystemWish, ranks_option, system_options


# What stands behind COMMAND is its own, whatever it is called.
@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("program", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@ranks_option()
@click.option(
    "--first-port",
    type=click.IntRange(1),
    metavar="PORT",
    envvar="P4REDUCE_FIRST_PORT",
    show_envvar=True,
    help="Under `p4reduce-lab up`: take this port of the switch for rank 0, and those that follow "
    "for the others.  [default: ports that no other job has]",
)
@system_options()
@click.pass_context
def command(
    context: click.Context,
    program: tuple[str, ...],
    ranks: int,
    first_port: int | None,
    wish: SystemWish,
) -> None:
    """Start COMMAND once for each rank, like mpirun or torchrun.

    Each process finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its
    environment, as torchrun sets them, and what p4reduce.init() needs. Its output is prefixed by
    its rank. When one process fails, the others are ended, and its exit code is this command's.

    A switch and a controller run for as long as the processes do; several switches with --tree or
    --switches. Where P4REDUCE_CONTROLLER is set (see `p4reduce-lab up`), the processes join that
    controller, at ports that no other job has. --pcap leaves captures in build/exec.

    \b
    Examples:
      p4reduce-lab exec -n 4 -- python examples/allreduce.py
      p4reduce-lab exec --tree 2x2 -- python examples/allreduce.py
    """
    from p4reduce_lab.execute import execute, running_system

    topology = wish.topology(context, "ranks", ranks)
    running = running_system()
    if running is None:
        if first_port is not None:
            raise ArgumentsError(
                "--first-port is for a switch that runs (`p4reduce-lab up`); this command starts "
                "one of its own, whose ports are all free"
            )
        sys.exit(execute(list(program), topology, wish.choose()))
    # `make` sets variables for --switch, --net and --bandwidth: only what is typed counts.
    typed = {
        name
        for name in ("switch", "net", "bandwidth")
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for option, given in (
        ("--switch", "switch" in typed),
        ("--net", "net" in typed),
        ("--bandwidth", "bandwidth" in typed),
        ("--pcap", wish.pcap),
        ("--web", wish.web),
        ("--tree", wish.tree),
        ("--switches", wish.switches > 1),
        ("--cores", wish.cores > 1),
    ):
        if given:
            raise ArgumentsError(f"{option} belongs to `p4reduce-lab up`, whose switch this uses")
    sys.exit(execute(list(program), topology, running, first_port))
