# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab``: the demo, the user's scripts with a switch, and a switch that stays up."""

from __future__ import annotations

import sys

import click
from p4reduce.errors import ConfigurationError
from p4reduce_common.command_group import CommandGroup
from p4reduce_common.output import command
from p4reduce_native import frame_lanes

from p4reduce_lab.commands import find
from p4reduce_lab.errors import Interrupted, LabError
from p4reduce_lab.processes.foreground import raise_on_signals

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=CommandGroup, context_settings=CONTEXT)
@click.version_option(package_name="p4reduce", prog_name="p4reduce-lab")
def commands() -> None:
    """Run a P4 switch, its controller and ranks on this machine.

    \b
    Examples:
      p4reduce-lab run
      p4reduce-lab exec -n 4 -- python examples/allreduce.py
    """


for _name, _command in find():
    commands.add_command(_command, _name)


def main() -> None:
    """Run the command line and end the process with an exit code.

    It is 0, 1 (failed; the message says why), 2 (wrong or impossible arguments), or 128 + the
    signal that ended it. `p4reduce_common.output` has the codes for output that cannot be written.
    """
    raise_on_signals()
    with command("p4reduce-lab"):
        sys.exit(_run())


def _run() -> int:
    if frame_lanes.PROBLEM:
        click.echo(f"p4reduce-lab: {frame_lanes.PROBLEM}", err=True)
        return 2
    try:
        code = commands(standalone_mode=False, prog_name="p4reduce-lab")
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ConfigurationError as error:  # of the environment
        click.echo(f"p4reduce-lab: {error}", err=True)
        return 2
    except LabError as error:
        click.echo(f"p4reduce-lab: {error}", err=True)
        return error.exit_code
    except Interrupted as interruption:
        click.echo(f"p4reduce-lab: ended by {interruption}", err=True)
        return interruption.exit_code
    return code if isinstance(code, int) else 0
