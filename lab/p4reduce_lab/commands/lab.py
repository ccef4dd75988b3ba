# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab lab``."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab.options import SystemWish, output_option, ranks_option, system_options


@click.command()
@ranks_option("How many ranks there is room for: one host for each.")
@output_option("build/lab", "Where the logs go. `p4reduce-lab stop` finds the lab by it.")
@system_options("switches", "cores", "tree", "web")
def command(ranks: int, output: Path, wish: SystemWish) -> None:
    """Leave a Mininet network with a switch and its controller up, with Mininet's prompt.

    On its hosts you can ping, capture, and start ranks by hand. Needs root.

    \b
    Examples:
      p4reduce-lab lab
      p4reduce-lab lab --ranks 8 --bandwidth 100Mbit
    """
    from p4reduce_lab.lab import run_lab

    run_lab(wish.choose(nearest_to_real=True, only_mininet=True), ranks, output)
