# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller serve`: its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from p4reduce.control.controller_address import is_local, parse_address
from p4reduce.control.tls import TlsFiles
from p4reduce_common.logs import FORMATS, LogFormat, configure
from p4reduce_native.files import read_text

from p4reduce_controller.cli.common import (
    CliOptions,
    read_address,
    state_dir_option,
    switch_tls_files,
    tls_options,
)
from p4reduce_controller.fabric.hello_limit import HelloLimit
from p4reduce_controller.jobs.job import AUTO_SLOTS, DEFAULT_SLOTS, MOST_AUTO_SLOTS, SLOTS
from p4reduce_controller.topology import net_file
from p4reduce_controller.topology.given import side_by_side, split_name
from p4reduce_controller.topology.switches import ONLY, Topology, TopologyError
from p4reduce_controller.values.mac_ip import is_host, is_station, parse_ip, parse_mac

if TYPE_CHECKING:
    from p4reduce_controller.settings import Http, SwitchServer

TOKEN_CHARACTERS = 16  # of the live page's token, at least


def _read_default_slots(ctx: click.Context, param: click.Parameter, value: str) -> int:
    if value == "auto":
        return AUTO_SLOTS
    if value.isascii() and value.isdigit() and 1 <= int(value) <= SLOTS:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither auto nor a number from 1 to {SLOTS:,}")


def _read_switches(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read `a=HOST:PORT`, or one address that nobody named."""
    switches: dict[str, str] = {}
    for value in values:
        name, address = split_name(value)
        try:
            parse_address(address)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        name = name or ONLY
        if name in switches:
            raise click.BadParameter(
                "several switches need names: --switch a=ADDR --switch b=ADDR"
                if name == ONLY
                else f"two switches are called {name}"
            )
        if address in switches.values():
            raise click.BadParameter(f"{address} is given twice")
        switches[name] = address
    return switches


def _read_stations(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    """Read `02:00:00:00:01:05@5`, each address once."""
    stations: dict[str, int] = {}
    for value in values:
        mac, at, port = value.partition("@")
        try:
            number = parse_mac(mac)
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from None
        if not (at and port.isascii() and port.isdecimal()):
            raise click.BadParameter(f"{value!r} names no port, like {mac}@5")
        if not is_station(number):
            raise click.BadParameter(f"{mac} is not an address that a host can have")
        if stations.setdefault(mac.lower(), int(port)) != int(port):
            raise click.BadParameter(
                f"{mac} is given for port {stations[mac.lower()]} and for port {port}: a station "
                "stays at one port"
            )
    return tuple(stations.items())


def _network(
    switches: dict[str, str],
    file: Path | None,
    device_id: int,
    ports: tuple[str, ...],
    stations: tuple[tuple[str, int], ...],
    ip: int,
    mac: int,
) -> tuple[Topology, dict[str, SwitchServer]]:
    """Return the switches that the options name, and the addresses of their P4Runtime servers."""
    from p4reduce_controller.settings import SwitchServer

    try:
        if file is not None:
            source = click.get_current_context().get_parameter_source("device_id")
            if switches or ports or stations or source is not ParameterSource.DEFAULT:
                raise click.UsageError(
                    "--topology describes the switches: leave out --switch, --ports, --station, "
                    "--device-id"
                )
            net = net_file.read(file, ip, mac, parse_address)
            return net.topology, {
                name: SwitchServer(*server) for name, server in net.servers.items()
            }
        if not switches:
            raise click.UsageError("Missing option '--switch' (or '--topology').")
        if not ports:
            raise click.UsageError("Missing option '--ports'.")
        places = tuple((parse_mac(mac), port) for mac, port in stations)
        topology = side_by_side(list(switches), ports, places, ip, mac)
    except TopologyError as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"--topology {file}: {error.strerror}") from None
    for name, port in stations:
        [switch] = topology.switches.values()
        if port not in switch.ports:
            raise click.UsageError(f"--station {name}@{port}: port {port} is not in --ports")
        if parse_mac(name) == switch.mac:
            raise click.UsageError(f"--station {name}@{port}: that is the switch's own address")
    return topology, {name: SwitchServer(address, device_id) for name, address in switches.items()}


def _page(address: str | None, token_file: Path | None, tls: TlsFiles | None) -> Http | None:
    """Return where the live page is to be, if anywhere."""
    from p4reduce_controller.settings import Http

    if address is None:
        if token_file is not None:
            raise click.UsageError("--http-token-file needs --http")
        return None
    try:
        place = parse_address(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--http") from None
    if place is None:
        raise click.BadParameter(f"{address} is not a HOST:PORT", param_hint="--http")
    token = ""
    if token_file is not None:
        try:
            token = read_text(token_file).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise click.BadParameter(
                f"{token_file}: {why}", param_hint="--http-token-file"
            ) from None
        if len(token) < TOKEN_CHARACTERS:
            raise click.BadParameter(
                f"{token_file} has {len(token)} characters; at least {TOKEN_CHARACTERS} are needed",
                param_hint="--http-token-file",
            )
    return Http(address, None if is_local(address) else tls, token)


def _checked(parse: Callable[[str], int], fits: Callable[[int], bool]) -> Any:
    def check(ctx: click.Context, param: click.Parameter, value: str) -> int:
        try:
            number = parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if not fits(number):
            raise click.BadParameter(f"{value} is not an address that a switch can have")
        return number

    return check


@click.command()
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="[NAME=]ADDR",
    callback=_read_switches,
    help="The switch's P4Runtime server: its gRPC address. Several switches side by side: give it "
    "once for each, with names.",
)
@click.option(
    "--topology",
    "net",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file of several switches and the links between them (docs/scale.md).",
)
@tls_options("switch-", "the switch")
@tls_options("", "workers and operators")
@click.option(
    "--device-id",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="The switch's device id in P4Runtime.",
)
@click.option(
    "--election-id",
    type=click.IntRange(min=1, max=(1 << 128) - 1),
    default=1,
    show_default=True,
    help="The controller with the highest id is primary; a lower one refuses to serve.",
)
@click.option(
    "--take-over/--no-take-over",
    default=True,
    show_default=True,
    help="Take over a switch whose primary controller is gone, with the election id that the "
    "switch then requires. A live one is never challenged beyond --election-id.",
)
@click.option(
    "--listen",
    metavar="ADDR",
    callback=read_address,
    help="Where to serve workers and operators: unix:PATH, or HOST:PORT, which requires TLS "
    "beyond loopback.  [default: as --controller]",
)
@click.option(
    "--ports",
    multiple=True,
    metavar="[NAME=]LIST",
    help="The switch's ports with workers or other stations, like 1-4,7. With several "
    "switches: the same for all, or for each by its name.",
)
@click.option(
    "--switch-ip",
    default="10.77.255.254",
    show_default=True,
    callback=_checked(parse_ip, is_host),
    help="The switch's own address, which workers send to. Further switches have the addresses "
    "below it.",
)
@click.option(
    "--switch-mac",
    default="02:70:34:72:65:64",
    show_default=True,
    callback=_checked(parse_mac, is_station),
    help="The switch's own MAC address. Further switches have those above it.",
)
@click.option(
    "--station",
    "stations",
    multiple=True,
    metavar="MAC@PORT",
    callback=_read_stations,
    help="A host that stays at its port. Its frames are forwarded there from the start, and no "
    "rank may use its address at another port. Repeat the option for each host.",
)
@click.option(
    "--lease",
    type=click.FloatRange(min=0.1, max=86400.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a rank may be silent before it is declared lost.",
)
@click.option(
    "--default-slots",
    metavar="N|auto",
    default=str(DEFAULT_SLOTS),
    show_default=True,
    callback=_read_default_slots,
    help="How many slots a job gets by default. More keep a fast switch busier; BMv2 queues 64 "
    f"frames per port and drops the rest. auto: a quarter of those that are free, {DEFAULT_SLOTS} "
    f"to {MOST_AUTO_SLOTS}.",
)
@click.option(
    "--hello-rate",
    type=click.IntRange(1, 1_000_000),
    default=HelloLimit.rate,
    show_default=True,
    help="How many HELLOs per second the switch accepts from one port; it drops the rest.",
)
@click.option(
    "--hello-burst",
    type=click.IntRange(1, 1_000_000),
    default=HelloLimit.burst,
    show_default=True,
    help="How many HELLOs the switch accepts from one port in a burst.",
)
@state_dir_option
@click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0.1, max=3600.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the switch.",
)
@click.option(
    "--keep-jobs",
    is_flag=True,
    help="At SIGTERM, leave the jobs on the switch, where they continue, for the next controller "
    "with this --state-dir. Otherwise they end.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve the live page and /metrics there, read only. Beyond loopback this needs TLS and "
    "--http-token-file.",
)
@click.option(
    "--http-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The token, 16 characters or more, that opens the live page.",
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
    help="The least severe messages that are logged.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object for each message.",
)
@click.pass_obj
def serve(
    options: CliOptions,
    switches: dict[str, str],
    net: Path | None,
    switch_tls_cert: Path | None,
    switch_tls_key: Path | None,
    switch_tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    device_id: int,
    election_id: int,
    take_over: bool,
    listen: str | None,
    ports: tuple[str, ...],
    switch_ip: int,
    switch_mac: int,
    stations: tuple[tuple[str, int], ...],
    lease: float,
    default_slots: int,
    hello_rate: int,
    hello_burst: int,
    state_dir: Path | None,
    connect_timeout: float,
    keep_jobs: bool,
    http: str | None,
    http_token_file: Path | None,
    ready_file: Path | None,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Configure the switches and serve jobs until SIGINT, SIGTERM or SIGHUP.

    The switch's program and entries are replaced. But if an earlier controller with this
    --state-dir was killed, or kept its jobs, these continue. Prints one line when ready, and logs
    to stderr. Waits for a switch that goes away.

    \b
    Examples:
      p4reduce-controller serve --switch unix:/tmp/p4r/switch.sock --ports 1-4
      p4reduce-controller serve --topology net.toml --listen 127.0.0.1:7070
    """
    # These take long to load, and no other command needs them.
    from p4reduce_controller import serving
    from p4reduce_controller.settings import ControllerSettings
    from p4reduce_controller.storage.state_directory import default_state_directory

    configure(log_level, log_format)
    topology, servers = _network(switches, net, device_id, ports, stations, switch_ip, switch_mac)
    files = TlsFiles.given(tls_cert, tls_key, tls_ca) or options.tls
    serving.serve(
        ControllerSettings(
            topology=topology,
            servers=servers,
            election_id=election_id,
            take_over=take_over,
            listen=listen or options.address,
            lease=lease,
            default_slots=default_slots,
            hello_limit=HelloLimit(hello_rate, hello_burst),
            state_directory=state_dir or default_state_directory(),
            connect_timeout=connect_timeout,
            find_cores=net is None,
            keep_jobs=keep_jobs,
            http=_page(http, http_token_file, files),
            tls=files,
            switch_tls=switch_tls_files(switch_tls_cert, switch_tls_key, switch_tls_ca),
        ),
        ready_file,
    )
