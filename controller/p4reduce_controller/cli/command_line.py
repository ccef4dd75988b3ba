# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller`: the daemon and the operator's commands."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click
from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ControlClient
from p4reduce.control.tls import TlsFiles
from p4reduce_common.output import command, ends_with_reader
from p4reduce_native import frame_lanes
from rich.console import Group as RenderGroup

from p4reduce_controller.cli.common import (
    CliOptions,
    ControllerGroup,
    console,
    exit_codes,
    put,
    read_address,
    tls_options,
    with_json,
)
from p4reduce_controller.cli.doctor_command import doctor
from p4reduce_controller.cli.job_commands import job
from p4reduce_controller.cli.serve import serve
from p4reduce_controller.cli.shell import shell
from p4reduce_controller.terminal import render
from p4reduce_controller.terminal.json_output import plain


@click.group(
    cls=ControllerGroup,
    epilog=exit_codes(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--controller",
    metavar="ADDR",
    callback=read_address,
    help="The controller's address: unix:PATH or HOST:PORT.  [default: $P4REDUCE_CONTROLLER, else "
    "a Unix socket of this user]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@tls_options("", "the controller, or for serve of its clients")
@click.version_option(package_name="p4reduce", prog_name="p4reduce-controller")
@click.pass_context
def cli(
    ctx: click.Context,
    controller: str | None,
    as_json: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
) -> None:
    """Run the controller of the switches that sum gradients, and show what they do.

    \b
    Examples:
      p4reduce-controller serve --switch unix:/tmp/p4r/switch.sock --ports 1-4
      p4reduce-controller watch
    """
    files = TlsFiles.given(tls_cert, tls_key, tls_ca)
    ctx.obj = CliOptions(controller, as_json, files)


cli.add_command(serve)
cli.add_command(job)
cli.add_command(doctor)
cli.add_command(shell)


# -- switch ----------------------------------------------------------------------------


@cli.group()
def switch() -> None:
    """Show the switches, as their controller sees them.

    With several switches, each command shows all of them, or the one that is named.

    \b
    Example:
      p4reduce-controller switch status
    """


_which = click.option(
    "--switch", "which", default="", metavar="NAME", help="One of several switches, by its name."
)


@switch.command("status")
@_which
@with_json
@click.pass_obj
def switch_status(options: CliOptions, which: str) -> None:
    """Show the switches, their program and what is free on them.

    \b
    Example:
      p4reduce-controller switch status
    """
    with options.connect() as client:
        found = _switches(client, which)
    if len(found) == 1:
        put(options, found[0], render.switch_details(found[0]))
        return
    views = [each for status in found for each in (render.switch_details(status), "")]
    put(options, pb.ListSwitchesReply(switches=found), RenderGroup(*views[:-1]))


def _switches(client: ControlClient, which: str) -> list[pb.Switch]:
    """Return the one that is meant, or all."""
    if which:
        return [client.call(client.stub.GetSwitch, pb.GetSwitchRequest(switch=which))]
    return list(client.call(client.stub.ListSwitches, pb.ListSwitchesRequest()).switches)


def _names(client: ControlClient, which: str) -> list[str]:
    """Return the name of the one that is meant, or of all."""
    return [which] if which else [each.name for each in _switches(client, "")]


@switch.command("counters")
@click.option(
    "--all", "-a", "everything", is_flag=True, help="Show counters that are zero as well."
)
@click.option(
    "--name", default="", metavar="COUNTER", help="A counter of the P4 program, such as delivered."
)
@_which
@with_json
@click.pass_obj
def switch_counters(options: CliOptions, everything: bool, name: str, which: str) -> None:
    """Show how many frames had each outcome, or any counter of the P4 program.

    A table's counter has a line per entry, other counters have a line per cell. A wrong name lists
    the names of all counters.

    \b
    Examples:
      p4reduce-controller switch counters --all
      p4reduce-controller switch counters --name delivered
    """
    with options.connect() as client:
        names = _names(client, which)
        counters = {
            at: client.call(client.stub.GetCounters, pb.GetCountersRequest(switch=at, name=name))
            for at in names
        }
    of = name or "outcome"
    tables = {
        at: render.counters_table(each.counts, of, zeros=everything)
        for at, each in counters.items()
    }
    if len(counters) == 1:
        [(at, only)] = counters.items()
        put(options, only, tables[at])
        return
    views = [part for at, table in tables.items() for part in (f"switch {at}", table, "")]
    data = {"switches": [{"name": at, **plain(each)} for at, each in counters.items()]}
    put(options, data, RenderGroup(*views[:-1]))


@switch.command("tables")
@click.argument("name", required=False)
@_which
@with_json
@click.pass_obj
def switch_tables(options: CliOptions, name: str | None, which: str) -> None:
    """List the tables, or the entries of one table.

    \b
    Examples:
      p4reduce-controller switch tables
      p4reduce-controller switch tables admission
    """
    with options.connect() as client:
        if not which and not name:  # they are the same on all
            which = _names(client, "")[0]
        request = pb.GetTableRequest(name=name or "", switch=which)
        table = client.call(client.stub.GetTable, request)
    view = render.entries_table(table.entries) if name else "\n".join(table.names)
    put(options, table, view)


@switch.command("slots")
@click.argument("job", required=False)
@_which
@with_json
@click.pass_obj
def switch_slots(options: CliOptions, job: str | None, which: str) -> None:
    """Show what each slot of the running jobs (or of one) is doing.

    The embedded switch shows its registers by P4Runtime. BMv2 shows them by Thrift, if it is built
    with Thrift and runs on the controller's machine (docs/bmv2.md).

    \b
    Example:
      p4reduce-controller switch slots training
    """
    with options.connect() as client:
        names = _names(client, which)
        slots = {
            name: client.call(client.stub.GetSlots, pb.GetSlotsRequest(switch=name, job=job or ""))
            for name in names
        }
    views = [
        render.slots_view(name if len(names) > 1 else "", each) for name, each in slots.items()
    ]
    data = {"switches": [{"name": name, **plain(each)} for name, each in slots.items()]}
    put(options, data, RenderGroup(*views))


# -- watch -----------------------------------------------------------------------------


@cli.command()
@click.argument("name", required=False)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between two readings of the counters.",
)
@with_json
@click.pass_obj
def watch(options: CliOptions, name: str | None, interval: float) -> None:
    """Watch jobs (or one), rates and events until Ctrl-C.

    In a pipe, or with --json, only events are printed, one per line. The command waits for a job
    that does not exist yet, and for a controller that restarts.

    \b
    Examples:
      p4reduce-controller watch
      p4reduce-controller watch training --json
    """
    from p4reduce_controller.cli.event_stream import follow
    from p4reduce_controller.cli.watch import is_there, not_there, watch_live

    terminal = console()
    with options.connect() as client, contextlib.suppress(KeyboardInterrupt):
        # Says right away, and with its own exit code, if there is no controller.
        client.call(client.stub.ListSwitches, pb.ListSwitchesRequest())
        if terminal.is_terminal and not options.json:
            watch_live(client, terminal, name or "", interval)
            return
        if name and not is_there(client, name):
            click.echo(not_there(name), err=True)
        with ends_with_reader():
            for event in follow(client, name or "", lambda said: click.echo(said, err=True)):
                if options.json:
                    click.echo(json.dumps(plain(event)))
                else:
                    click.echo(render.event_line(event).plain)


def main() -> None:
    """Run the command line."""
    with command("p4reduce-controller"):
        if frame_lanes.PROBLEM:
            raise SystemExit(f"p4reduce-controller: {frame_lanes.PROBLEM}")
        cli(prog_name="p4reduce-controller")


if __name__ == "__main__":
    main()
