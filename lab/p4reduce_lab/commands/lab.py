# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab lab``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from p4reduce_lab.options import (
    bandwidth_option,
    network_option,
    output_option,
    pcap_option,
    ranks_option,
    switch_option,
)


@click.command()
@ranks_option("How many ranks there is room for: one host for each.")
@output_option("build/lab", "Where the logs go. `p4reduce-lab stop` finds the lab by it.")
@switch_option
@network_option
@bandwidth_option
@pcap_option
def command(
    ranks: int, output: Path, switch: str, net: str, bandwidth: float | None, pcap: bool
) -> None:
    """Leave a Mininet network with a switch and its controller up, with Mininet's prompt.

    On its hosts you can ping, capture, and start ranks by hand. Needs root.

    \b
    Examples:
      p4reduce-lab lab
      p4reduce-lab lab --ranks 8 --bandwidth 100Mbit
    """
    from p4reduce_lab.choice import choose
    from p4reduce_lab.lab import run_lab

    choice = choose(switch, net, bandwidth=bandwidth, nearest_to_real=True, only_mininet=True)
    run_lab(replace(choice, pcap=pcap), ranks, output)
