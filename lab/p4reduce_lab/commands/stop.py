# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab stop``."""

from __future__ import annotations

from pathlib import Path

import click

from p4reduce_lab.options import output_option


@click.command()
@output_option("build/lab", "Where the lab's logs are, which says which lab is meant.")
def command(output: Path) -> None:
    """Take down the network that `p4reduce-lab lab` has left up.

    \b
    Example:
      p4reduce-lab stop
    """
    from p4reduce_lab.lab import stop_lab

    stop_lab(output)
