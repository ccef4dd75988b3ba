# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch`: the embedded switch as a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from p4reduce_common.grpc_channels import uses_proxy
from p4reduce_common.logs import FORMATS, LogFormat, configure
from p4reduce_common.output import command
from p4reduce_native.cores import MAX_CORES

from p4reduce_switch.cores.order import LogSettings, ports_of
from p4reduce_switch.p4runtime.listen_address import GrpcAddress, parse_grpc_address
from p4reduce_switch.ports.place import PortSpec
from p4reduce_switch.ports.port import MAX_PORT
from p4reduce_switch.ports.registry import HELP, parse_ports
from p4reduce_switch.process.queue_options import read_queue_settings
from p4reduce_switch.process.run import run
from p4reduce_switch.process.settings import StartError, SwitchSettings
from p4reduce_switch.state.queue_settings import MAX_PRIORITIES, QueueSettings

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles

DEFAULT_GRPC_ADDRESS = "127.0.0.1:9559"  # the port that IANA gave P4Runtime
DEFAULT_CPU_PORT = 255

_FILE = click.Path(dir_okay=False, path_type=Path)
_OLD_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _read_ports(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> list[PortSpec]:
    try:
        return [spec for value in values for spec in parse_ports(value)]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _read_address(ctx: click.Context, param: click.Parameter, value: str) -> GrpcAddress:
    try:
        return parse_grpc_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _read_cpu_port(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    if value == "none":
        return None
    if not (value.isascii() and value.isdigit()) or int(value) > MAX_PORT:
        raise click.BadParameter(f"'{value}' is neither 'none' nor within 0 to {MAX_PORT}")
    return int(value)


def _print_constructs(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from p4reduce_switch.constructs import listing

        click.echo(listing())
        ctx.exit()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--grpc-addr",
    "address",
    callback=_read_address,
    metavar="ADDRESS",
    default=DEFAULT_GRPC_ADDRESS,
    show_default=True,
    help="Where P4Runtime is served: HOST:PORT (port 0: any free one) or unix:PATH.",
)
@click.option(
    "--port",
    "-p",
    "ports",
    callback=_read_ports,
    metavar="NUMBER=WHERE",
    multiple=True,
    help=HELP,
)
@click.option(
    "--cores",
    type=click.IntRange(1, MAX_CORES),
    default=1,
    show_default=True,
    help="The number of data planes. Each is a process and a P4Runtime device, at the same "
    "address and ports. For p4reduce's program, and Unix and UDP ports.",
)
@click.option(
    "--udp-key-file",
    type=_FILE,
    metavar="FILE",
    help="Admit only workers with this key at UDP ports: 16 to 1,024 bytes, in a file that nobody "
    "else may read. Without the option, P4REDUCE_UDP_KEY holds the key.",
)
@click.option("--device-id", type=click.IntRange(1, (1 << 64) - 1), default=1, show_default=True)
@click.option(
    "--cpu-port",
    callback=_read_cpu_port,
    metavar="NUMBER|none",
    default=str(DEFAULT_CPU_PORT),
    show_default=True,
    help="The port of packet-ins and packet-outs.",
)
@click.option(
    "--pcap",
    "capture_dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write each port's frames, both directions, to DIR/portN.pcap.",
)
@click.option(
    "--pipeline",
    "pipeline_file",
    type=_OLD_FILE,
    metavar="JSON",
    help="Load this program (p4c's JSON for BMv2) at the start; needs --p4info.",
)
@click.option(
    "--p4info",
    "p4info_file",
    type=_OLD_FILE,
    metavar="FILE",
    help="The P4Info of --pipeline, as text.",
)
@click.option(
    "--entries",
    "entries_file",
    type=_OLD_FILE,
    metavar="FILE",
    help="What p4c wrote for --pipeline with --p4runtime-entries-files, as text: the priorities of "
    "the program's entries, and which are const.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "native", "python"]),
    default="auto",
    show_default=True,
    help="What runs programs: machine code (native), Python, or machine code if possible (auto). "
    "The log says which, and why.",
)
@click.option(
    "--priority-queues",
    type=click.IntRange(1, MAX_PRIORITIES),
    default=1,
    show_default=True,
    help="Egress queues per port; standard_metadata.priority selects a frame's queue.",
)
@click.option(
    "--queue-depth",
    "queue_depths",
    metavar="[PORT=]FRAMES",
    multiple=True,
    help="The capacity of an egress queue in frames, of all ports or of one; 64 by default.",
)
@click.option(
    "--queue-rate",
    "queue_rates",
    metavar="[PORT=]RATE",
    multiple=True,
    help="Frames per second that leave an egress queue, of all ports or of one. 0, the default, "
    "is the port's own rate.",
)
@click.option(
    "--dump-c",
    type=_FILE,
    metavar="FILE",
    help="Write the C code generated from each program that runs as machine code to FILE.",
)
@click.option(
    "--debug",
    "debug_path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Serve a debugger of the program at this Unix socket (socat - UNIX:PATH); programs are "
    "then interpreted, many times slower.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve /metrics for Prometheus at this port of 127.0.0.1; 0 is any free one.",
)
@click.option(
    "--ready-file",
    type=_FILE,
    metavar="FILE",
    help="Write FILE when ready: JSON with pid, grpc_addr, device_id and ports.",
)
@click.option(
    "--ready-fd",
    type=click.IntRange(min=3),
    metavar="FD",
    help="Write the same, one line, to this inherited file descriptor when ready, and close it.",
)
@click.option(
    "--tls-cert",
    type=_FILE,
    metavar="FILE",
    help="Serve P4Runtime by TLS with this certificate (PEM); requires --tls-key and --tls-ca.",
)
@click.option("--tls-key", type=_FILE, metavar="FILE", help="The certificate's key.")
@click.option(
    "--tls-ca",
    type=_FILE,
    metavar="FILE",
    help="The CA of controllers' certificates; nobody else is served.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object for each message.",
)
@click.option(
    "--constructs",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_constructs,
    help="Print which constructs of p4c's JSON for v1model the switch runs, and exit.",
)
@click.version_option(package_name="p4reduce", prog_name="p4reduce-switch")
def cli(
    cores: int,
    priority_queues: int,
    queue_depths: Sequence[str],
    queue_rates: Sequence[str],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    log_level: str,
    log_format: LogFormat,
    **as_they_are: Any,  # fields of SwitchSettings
) -> None:
    """A software switch: runs P4 programs for v1model (p4c's BMv2 JSON), controlled by P4Runtime.

    It runs until SIGINT, SIGTERM or SIGHUP. Exit codes: 0 after a signal, 1 if a port, the address,
    a file or the program cannot be used, 2 for wrong arguments.
    """
    settings = SwitchSettings(
        name="p4reduce-switch",
        queues=_queue_settings(priority_queues, queue_depths, queue_rates),
        tls=_tls_files(tls_cert, tls_key, tls_ca),
        **as_they_are,
    )
    address, device_id = settings.address, settings.device_id
    if (settings.pipeline_file is None) != (settings.p4info_file is None):
        raise click.UsageError("--pipeline and --p4info only go together")
    if settings.entries_file is not None and settings.pipeline_file is None:
        raise click.UsageError("--entries needs --pipeline and --p4info")
    if settings.debug_path is not None and cores > 1:
        raise click.UsageError("--debug holds one program at a time: leave out --cores")
    if device_id + cores - 1 >= 1 << 64:
        raise click.UsageError(
            f"--device-id {device_id}: {cores} cores need one id each, from that one on"
        )
    if settings.debug_path is not None and settings.engine == "native":
        raise click.UsageError(
            "--debug interprets programs, and --engine native asks for machine code"
        )
    if not address.is_local and settings.tls is None:
        raise click.UsageError(
            f"--grpc-addr {address} is reachable from other machines, and anyone who reaches it "
            "controls the switch; add --tls-cert, --tls-key and --tls-ca, or use 127.0.0.1 or "
            "unix:PATH"
        )
    try:
        settings.check_ports("--port", "--cpu-port")
        if cores > 1:
            ports_of(settings, cores - 1)
            uses_proxy()  # for the cores' servers; anything but 0 and 1 is refused
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    configure(log_level, log_format)
    try:
        _run(settings, cores, LogSettings(log_level, log_format))
    except StartError as error:
        raise click.ClickException(str(error)) from None


def _run(settings: SwitchSettings, cores: int, how: LogSettings) -> None:
    if cores == 1:
        run(settings)
        return
    from p4reduce_switch.cores.host import run_cores

    run_cores(settings, cores, how)


def main() -> None:
    """Run the command line."""
    with command("p4reduce-switch"):
        cli(prog_name="p4reduce-switch")


def _queue_settings(priorities: int, depths: Sequence[str], rates: Sequence[str]) -> QueueSettings:
    try:
        return read_queue_settings(priorities, depths, rates)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> ServerTlsFiles | None:
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca only go together")
    from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles

    return ServerTlsFiles(cert, key, ca)
