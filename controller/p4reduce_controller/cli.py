# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller`: the daemon, and everything that operators ask of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from google.protobuf.message import Message
from p4reduce.control import control_pb2 as pb
from p4reduce.control.address import default_address
from p4reduce.control.client import ControlClient, ControlError, ControllerUnreachableError
from p4reduce.control.tls import ENVIRONMENT, OPTIONS, TlsError, TlsFiles
from rich.console import Console, RenderableType

from p4reduce_controller import render
from p4reduce_controller.addresses import is_host, is_station, parse_ip, parse_mac
from p4reduce_controller.exit_codes import Exit, Failure
from p4reduce_controller.job import DEFAULT_SLOTS, MAX_WORLD_SIZE, SLOTS
from p4reduce_controller.layout import CPU_PORT, LAST_PORT, HelloLimit
from p4reduce_controller.plain import plain

_F = TypeVar("_F", bound=Callable[..., Any])

PIPE_WIDTH = 1000  # columns where there is no terminal: lines are for grep, so none is wrapped


@dataclass
class Options:
    """What comes before the command."""

    controller: str | None
    json: bool
    tls: TlsFiles | None

    @property
    def address(self) -> str:
        """Where the controller is."""
        return self.controller or default_address()

    def connect(self) -> ControlClient:
        """Return a client of the controller."""
        return ControlClient(self.address, self.tls)


class _Group(click.Group):
    """Gives errors of the controller their exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TlsError as error:
            raise Failure(str(error), Exit.USAGE) from None
        except ControllerUnreachableError as error:
            raise Failure(
                f"{error}. Is it running? See 'p4reduce-controller serve --help'", Exit.UNREACHABLE
            ) from None
        except ControlError as error:
            code = {
                grpc.StatusCode.NOT_FOUND: Exit.NOT_FOUND,
                grpc.StatusCode.DEADLINE_EXCEEDED: Exit.DEADLINE,
            }.get(error.code, Exit.REFUSED)
            raise Failure(str(error), code) from None


def _exit_codes() -> str:
    lines = "\n".join(f"  {code.value}  {code.meaning}" for code in Exit)
    return f"\b\nExit codes:\n{lines}"


def _with_json(command: _F) -> _F:
    """Let --json stand after the command as well."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.find_root().obj.json = True

    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=remember,
        help="Print JSON, with the field names of control.proto.",
    )(command)


def _tls_options(prefix: str, whom: str) -> Callable[[_F], _F]:
    """--PREFIXtls-cert, -key and -ca; the first ones are in the environment as well."""
    helps = (
        f"Own TLS certificate towards {whom}: a PEM file.",
        "The certificate's key.",
        f"The CA of the certificates of {whom}.",
    )

    def add(command: _F) -> _F:
        for option, variable, text in reversed([*zip(OPTIONS, ENVIRONMENT, helps, strict=True)]):
            command = click.option(
                option.replace("--", f"--{prefix}"),
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                envvar=None if prefix else variable,
                show_envvar=True,
                help=text,
            )(command)
        return command

    return add


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def _put(
    options: Options, data: Message | list[Any] | dict[str, Any], view: RenderableType
) -> None:
    """Print one or the other."""
    if options.json:
        click.echo(json.dumps(plain(data) if isinstance(data, Message) else data, indent=2))
    else:
        _console().print(view)


@click.group(
    cls=_Group,
    epilog=_exit_codes(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--controller",
    metavar="ADDR",
    help="The controller's address: unix:PATH or HOST:PORT.  [default: $P4REDUCE_CONTROLLER, else "
    "a Unix socket of this user]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
@_tls_options("", "the controller, or for serve of its clients")
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


# -- serve -----------------------------------------------------------------------------


def _read_ports(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Read `1-4,7`."""
    ports: set[int] = set()
    for part in value.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.strip().isdecimal() and last.strip().isdecimal()):
            raise click.BadParameter(f"{part!r} is no port or range of ports, like 1-4,7")
        if int(first) > int(last) or int(last) > LAST_PORT:
            raise click.BadParameter(f"{part!r} is no range of ports within 0 and {LAST_PORT}")
        ports.update(range(int(first), int(last) + 1))
    if CPU_PORT in ports:
        raise click.BadParameter(f"port {CPU_PORT} is the controller's own")
    return tuple(sorted(ports))


def _checked(parse: Callable[[str], int], fits: Callable[[int], bool]) -> Any:
    def check(ctx: click.Context, param: click.Parameter, value: str) -> str:
        try:
            number = parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if not fits(number):
            raise click.BadParameter(f"{value} is no address that a switch can have")
        return value

    return check


@cli.command()
@click.option(
    "--switch",
    required=True,
    metavar="ADDR",
    help="The switch's P4Runtime server: its gRPC address.",
)
@_tls_options("switch-", "the switch")
@_tls_options("", "workers and operators")
@click.option("--device-id", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--election-id",
    type=click.IntRange(min=1, max=(1 << 128) - 1),
    default=1,
    show_default=True,
    help="The controller with the highest one is primary; a lower one refuses to serve.",
)
@click.option(
    "--listen",
    metavar="ADDR",
    help="Where to serve workers and operators: unix:PATH, or HOST:PORT, which takes TLS unless "
    "it is on loopback.  [default: as --controller]",
)
@click.option(
    "--ports",
    callback=_read_ports,
    required=True,
    metavar="LIST",
    help="The switch's ports with workers or other stations, like 1-4,7.",
)
@click.option(
    "--switch-ip",
    default="10.77.255.254",
    show_default=True,
    callback=_checked(parse_ip, is_host),
    help="The switch's own address, which workers send to.",
)
@click.option(
    "--switch-mac",
    default="02:70:34:72:65:64",
    show_default=True,
    callback=_checked(parse_mac, is_station),
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0.1, max=86400.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A rank without a heartbeat for that long is lost.",
)
@click.option(
    "--default-slots",
    type=click.IntRange(1, SLOTS),
    default=DEFAULT_SLOTS,
    show_default=True,
    help="Of a job that does not say how many it wants. More keep a fast switch busier; BMv2 "
    "queues 64 frames a port and drops the rest.",
)
@click.option(
    "--hello-rate",
    type=click.IntRange(1, 1_000_000),
    default=HelloLimit.rate,
    show_default=True,
    help="How many HELLOs a second the switch takes from one port; it drops the rest.",
)
@click.option(
    "--hello-burst",
    type=click.IntRange(1, 1_000_000),
    default=HelloLimit.burst,
    show_default=True,
    help="How many HELLOs it takes from one port at once.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the last job incarnation id is kept.  [default: ~/.local/state/p4reduce]",
)
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0.1, max=3600.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the switch.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write FILE when ready: JSON with pid and address.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.pass_obj
def serve(
    options: Options,
    switch: str,
    switch_tls_cert: Path | None,
    switch_tls_key: Path | None,
    switch_tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    device_id: int,
    election_id: int,
    listen: str | None,
    ports: tuple[int, ...],
    switch_ip: str,
    switch_mac: str,
    lease: float,
    default_slots: int,
    hello_rate: int,
    hello_burst: int,
    state_dir: Path | None,
    connect_timeout: float,
    ready_file: Path | None,
    log_level: str,
) -> None:
    """Take a switch, put the program on it, and serve jobs until SIGINT or SIGTERM.

    All that was on the switch is replaced. Prints one line when ready, and logs to stderr.
    """
    # These take long to load, and no other command needs them.
    from p4reduce_controller import serving
    from p4reduce_controller.controller import Settings
    from p4reduce_controller.incarnation import default_state_directory

    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    serving.serve(
        Settings(
            switch=switch,
            device_id=device_id,
            election_id=election_id,
            listen=listen or options.address,
            ports=ports,
            switch_ip=switch_ip,
            switch_mac=switch_mac.lower(),
            lease=lease,
            default_slots=default_slots,
            hello_limit=HelloLimit(hello_rate, hello_burst),
            state_directory=state_dir or default_state_directory(),
            connect_timeout=connect_timeout,
            tls=TlsFiles.given(tls_cert, tls_key, tls_ca) or options.tls,
            switch_tls=TlsFiles.given(
                switch_tls_cert,
                switch_tls_key,
                switch_tls_ca,
                ("--switch-tls-cert", "--switch-tls-key", "--switch-tls-ca"),
            ),
        ),
        ready_file,
    )


# -- job -------------------------------------------------------------------------------


@cli.group()
def job() -> None:
    """Jobs: groups of workers that reduce together."""


@job.command("create")
@click.argument("name")
@click.option(
    "--world-size",
    "-n",
    type=int,
    required=True,
    help=f"How many ranks it has, at most {MAX_WORLD_SIZE}.",
)
@click.option(
    "--slots",
    type=int,
    default=0,
    help=f"How many of the switch's {SLOTS} slots it gets.  [default: {DEFAULT_SLOTS}]",
)
@_with_json
@click.pass_obj
def job_create(options: Options, name: str, world_size: int, slots: int) -> None:
    """Make a job ahead of its ranks (the first rank to join would make it as well)."""
    _not_negative("world size", world_size)
    _not_negative("number of slots", slots)
    with options.connect() as client:
        request = pb.CreateJobRequest(name=name, world_size=world_size, slots=slots)
        made = client.call(client.stub.CreateJob, request)
    _put(options, made, render.job_details(made, {}))


@job.command("list")
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that are over.")
@_with_json
@click.pass_obj
def job_list(options: Options, everything: bool) -> None:
    """List the jobs."""
    with options.connect() as client:
        jobs = list(client.call(client.stub.ListJobs, pb.ListJobsRequest()).jobs)
    if not everything:
        jobs = [each for each in jobs if each.state in (pb.FORMING, pb.RUNNING)]
    _put(options, {"jobs": [plain(each) for each in jobs]}, render.jobs_table(jobs))


@job.command("show")
@click.argument("name")
@_with_json
@click.pass_obj
def job_show(options: Options, name: str) -> None:
    """Show a job (the latest of that name), its ranks and what the switch counted for them."""
    with options.connect() as client:
        statistics = client.call(client.stub.GetStatistics, pb.GetStatisticsRequest(job=name))
    ranks = {each.rank: each for each in statistics.ranks}
    _put(options, statistics, render.job_details(statistics.job, ranks))


@job.command("delete")
@click.argument("name")
@_with_json
@click.pass_obj
def job_delete(options: Options, name: str) -> None:
    """End a job whatever it is doing; its workers are told with their next heartbeat."""
    with options.connect() as client:
        gone = client.call(client.stub.DeleteJob, pb.DeleteJobRequest(name=name))
    _put(options, gone, render.jobs_table([gone]))


# -- switch ----------------------------------------------------------------------------


@cli.group()
def switch() -> None:
    """The switch, as its controller sees it."""


@switch.command("status")
@_with_json
@click.pass_obj
def switch_status(options: Options) -> None:
    """Show the switch, its program and what is free on it."""
    with options.connect() as client:
        status = client.call(client.stub.GetSwitch, pb.GetSwitchRequest())
    _put(options, status, render.switch_details(status))


@switch.command("counters")
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that are zero.")
@_with_json
@click.pass_obj
def switch_counters(options: Options, everything: bool) -> None:
    """Show what became of every frame."""
    with options.connect() as client:
        counters = client.call(client.stub.GetCounters, pb.GetCountersRequest())
    _put(options, counters, render.counters_table(counters.counts, zeros=everything))


@switch.command("tables")
@click.argument("name", required=False)
@_with_json
@click.pass_obj
def switch_tables(options: Options, name: str | None) -> None:
    """List the tables, or the entries of one."""
    with options.connect() as client:
        table = client.call(client.stub.GetTable, pb.GetTableRequest(name=name or ""))
    view = render.entries_table(table.entries) if name else "\n".join(table.names)
    _put(options, table, view)


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
@_with_json
@click.pass_obj
def watch(options: Options, name: str | None, interval: float) -> None:
    """Watch jobs (or one), rates and events until Ctrl-C.

    In a pipe, or with --json, only the events: one a line.
    """
    from p4reduce_controller.watch import watch_live

    console = _console()
    with options.connect() as client, contextlib.suppress(KeyboardInterrupt):
        # Says right away, and with its own exit code, if there is no controller.
        client.call(client.stub.GetSwitch, pb.GetSwitchRequest())
        if console.is_terminal and not options.json:
            watch_live(client, console, name or "", interval)
            return
        for event in client.watch(name or ""):
            if options.json:
                click.echo(json.dumps(plain(event)))
            else:
                click.echo(render.event_line(event).plain)


def _not_negative(what: str, number: int) -> None:
    # Negative numbers do not fit the message; all else the controller judges.
    if number < 0:
        raise click.UsageError(f"{what} {number} is negative")


def main() -> None:
    """Run the command line."""
    # gRPC's own log repeats, at length, what the errors here say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    cli(prog_name="p4reduce-controller")


if __name__ == "__main__":
    main()
