# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller`: the daemon, and everything that operators ask of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import click
from p4reduce.control import control_pb2 as pb
from p4reduce.control.tls import TlsFiles
from p4reduce_common.output import command, ends_with_reader

from p4reduce_controller.cli.common import (
    Group,
    Options,
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
from p4reduce_controller.terminal import render
from p4reduce_controller.terminal.json_output import plain


@click.group(
    cls=Group,
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
    """Controller of the switch that sums gradients: runs it, and shows what it does."""
    files = TlsFiles.given(tls_cert, tls_key, tls_ca)
    ctx.obj = Options(controller, as_json, files)


cli.add_command(serve)
cli.add_command(job)
cli.add_command(doctor)


# -- switch ----------------------------------------------------------------------------


@cli.group()
def switch() -> None:
    """The switch, as its controller sees it."""


@switch.command("status")
@with_json
@click.pass_obj
def switch_status(options: Options) -> None:
    """Show the switch, its program and what is free on it."""
    with options.connect() as client:
        status = client.call(client.stub.GetSwitch, pb.GetSwitchRequest())
    put(options, status, render.switch_details(status))


@switch.command("counters")
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that are zero.")
@with_json
@click.pass_obj
def switch_counters(options: Options, everything: bool) -> None:
    """Show what became of every frame."""
    with options.connect() as client:
        counters = client.call(client.stub.GetCounters, pb.GetCountersRequest())
    put(options, counters, render.counters_table(counters.counts, zeros=everything))


@switch.command("tables")
@click.argument("name", required=False)
@with_json
@click.pass_obj
def switch_tables(options: Options, name: str | None) -> None:
    """List the tables, or the entries of one."""
    with options.connect() as client:
        table = client.call(client.stub.GetTable, pb.GetTableRequest(name=name or ""))
    view = render.entries_table(table.entries) if name else "\n".join(table.names)
    put(options, table, view)


# -- watch -----------------------------------------------------------------------------


@cli.command()
@click.argument("name", required=False)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks at the counters.",
)
@with_json
@click.pass_obj
def watch(options: Options, name: str | None, interval: float) -> None:
    """Watch jobs (or one), rates and events until Ctrl-C.

    In a pipe, or with --json, only the events: one a line. A job that is not there yet is waited
    for.
    """
    from p4reduce_controller.cli.watch import follow, is_there, not_there, watch_live

    terminal = console()
    with options.connect() as client, contextlib.suppress(KeyboardInterrupt):
        # Says right away, and with its own exit code, if there is no controller.
        client.call(client.stub.GetSwitch, pb.GetSwitchRequest())
        if terminal.is_terminal and not options.json:
            watch_live(client, terminal, name or "", interval)
            return
        if name and not is_there(client, name):
            click.echo(not_there(name), err=True)
        with ends_with_reader():
            for event in follow(client, name or ""):
                if options.json:
                    click.echo(json.dumps(plain(event)))
                else:
                    click.echo(render.event_line(event).plain)


def main() -> None:
    """Run the command line."""
    with command("p4reduce-controller"):
        cli(prog_name="p4reduce-controller")


if __name__ == "__main__":
    main()
