# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab deploy``."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab.deploy.settings import LEAST_LEASE, LONGEST_LEASE
from p4reduce_lab.options import RATE


@click.command()
@click.option(
    "--ranks",
    "-n",
    type=click.IntRange(1, 4096),
    required=True,
    help="How many ranks there will be. Each has a port of the switch.",
)
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="The IP address by which ranks on other hosts reach this one; implies TLS.  [default: "
    "all ranks are on this host]",
)
@click.option(
    "--rank-hosts",
    default="",
    metavar="NAMES",
    help="The hosts of all ranks, by name, this one first, with commas between. --host is then "
    "the address of this host's interface to the others.",
)
@click.option(
    "--switches",
    type=click.IntRange(1, 16),
    help="How many switches side by side.  [default: as many as keep this host's interface busy]",
)
@click.option(
    "--tree",
    default="",
    metavar="LEAVESxRANKS",
    help="A root switch above leaves: 2x4 has two leaves of four ranks each.",
)
@click.option(
    "--link-rate",
    type=RATE,
    default=0.0,
    help="The rate of this host's interface, such as 10Gbit.  [default: what Linux says]",
)
@click.option(
    "--first-port",
    type=click.IntRange(1, 65535),
    help="The first UDP port of the ranks, and the controller's TCP port.  [default: any]",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1024),
    help="Slots of a job that asks for no number.  [default: 128; with Unix ports a quarter of "
    "those that are free, 32 to 256]",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=LEAST_LEASE, max=LONGEST_LEASE),
    metavar="SECONDS",
    envvar="P4REDUCE_LEASE",
    show_envvar=True,
    help="How long a rank may be silent before it is declared lost.  [default: 10]",
)
@click.option(
    "--variables",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what ranks need as a shell script to this file, for this user alone. It goes with "
    "the network.",
)
@click.option("--logs", default="", metavar="DIR", help="Keep the logs in this directory.")
def command(
    ranks: int,
    host: str,
    rank_hosts: str,
    switches: int | None,
    tree: str,
    link_rate: float,
    first_port: int | None,
    slots: int | None,
    lease: float | None,
    variables: Path | None,
    logs: str,
) -> None:
    """Keep a network up for ranks that another launcher starts, on this host or on others.

    Starts switch and controller with fresh keys, and starts them again if they end. Ends by Ctrl-C
    or SIGTERM. Prints what ranks need in their environment, which holds secrets; with --variables
    it goes to a file instead.

    \b
    Examples:
      p4reduce-lab deploy -n 4
      p4reduce-lab deploy -n 8 --host 10.0.0.1 --variables net.sh &
    """
    from p4reduce.errors import ConfigurationError
    from p4reduce.hosts import address_towards

    from p4reduce_lab.deploy.command_line import run_until_signal
    from p4reduce_lab.deploy.settings import DeploySettings
    from p4reduce_lab.errors import ArgumentsError

    names = [name.strip() for name in rank_hosts.split(",")]
    if rank_hosts and not all(names):
        raise ArgumentsError(
            f"--rank-hosts {rank_hosts!r} has an empty name: give names with single commas between"
        )
    if rank_hosts and not host:
        try:
            host = address_towards(names, names[0])
        except ConfigurationError as error:
            raise ArgumentsError(str(error)) from None
    settings = DeploySettings(
        ranks=ranks,
        host=host,
        switches=switches or 0,
        tree=tree,
        link_rate=link_rate,
        first_port=first_port or 0,
        slots=slots or 0,
        lease=lease or 0.0,
        logs=logs,
    )
    run_until_signal(settings, variables)
