# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-switch`: the embedded switch as a process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from p4reduce_common.output import command

from p4reduce_switch.p4runtime.listen_address import GrpcAddress, parse_grpc_address
from p4reduce_switch.ports.port import MAX_PORT, PortError, PortSpec, parse_ports

if TYPE_CHECKING:
    from p4reduce_switch.dataplane_thread import DataPlaneThread
    from p4reduce_switch.p4runtime.config import ForwardingConfig
    from p4reduce_switch.p4runtime.server import P4RuntimeServer
    from p4reduce_switch.p4runtime.server_tls import TlsFiles
    from p4reduce_switch.pipeline_choice import Engine

__all__ = ["main"]

log = logging.getLogger(__name__)

DEFAULT_GRPC_ADDRESS = "127.0.0.1:9559"  # the port that IANA gave P4Runtime
DEFAULT_CPU_PORT = 255

# While the P4Runtime server encodes or decodes, the data plane waits this long for the interpreter.
_SWITCH_INTERVAL_S = 0.0005
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WAKE_SECONDS = 0.5


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
    "port_specs",
    callback=_read_ports,
    metavar="NUMBER=WHERE",
    multiple=True,
    help="A port: 1=veth1 for an interface (takes root), 1=unix:PATH for a Unix socket, "
    "1=udp:HOST:PORT for workers anywhere; 1-64=udp:HOST:7001 for many, whose UDP ports count up. "
    "May be given many times.",
)
@click.option(
    "--udp-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Let only workers in at UDP ports that know this key: 16 to 1,024 bytes, in a file that "
    "nobody else may read.",
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
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="JSON",
    help="Load this program (p4c's JSON for BMv2) at the start; needs --p4info.",
)
@click.option(
    "--p4info",
    "p4info_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The P4Info of --pipeline, as text.",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", "native", "python"]),
    default="auto",
    show_default=True,
    help="What runs ports and programs: machine code (native), Python, or machine code where that "
    "can be; the log says what it has become, and why.",
)
@click.option(
    "--dump-python",
    "dump_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the Python code generated from each program that is loaded to FILE.",
)
@click.option(
    "--dump-c",
    "dump_c_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the C code generated from each program that runs as machine code to FILE.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
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
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Serve P4Runtime by TLS with this certificate (PEM); takes --tls-key and --tls-ca.",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The certificate's key.",
)
@click.option(
    "--tls-ca",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The CA of controllers' certificates; nobody else is served.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.version_option(package_name="p4reduce", prog_name="p4reduce-switch")
def cli(
    address: GrpcAddress,
    port_specs: Sequence[PortSpec],
    udp_key_file: Path | None,
    device_id: int,
    cpu_port: int | None,
    capture_dir: Path | None,
    pipeline_file: Path | None,
    p4info_file: Path | None,
    engine: Engine,
    dump_file: Path | None,
    dump_c_file: Path | None,
    ready_file: Path | None,
    ready_fd: int | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    log_level: str,
) -> None:
    """A software switch: runs P4 programs for v1model (p4c's BMv2 JSON), controlled by P4Runtime.

    It runs until SIGINT or SIGTERM. Exit codes: 0 after a signal, 1 if a port, the address, a file
    or the program cannot be used, 2 for wrong arguments.
    """
    files = _tls_files(tls_cert, tls_key, tls_ca)
    _check_arguments(address, port_specs, cpu_port, files)
    if (pipeline_file is None) != (p4info_file is None):
        raise click.UsageError("--pipeline and --p4info only go together")
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = threading.Event()
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())

    udp_key = _read_udp_key(udp_key_file)
    if dump_file is not None:
        _check_writable(dump_file, "--dump-python")
    if dump_c_file is not None:
        _check_writable(dump_c_file, "--dump-c")
    if ready_file is not None:
        _check_writable(_beside(ready_file), "--ready-file")

    # Below are the imports that take long: arguments are checked, and --help answers, without them.
    from p4reduce_switch.p4runtime.server import P4RuntimeServer
    from p4reduce_switch.seldom import calm_grpc

    calm_grpc()
    with contextlib.ExitStack() as cleanup:
        dataplane = _open_data_plane(port_specs, engine, cpu_port, capture_dir, udp_key)
        cleanup.callback(dataplane.stop)
        server = P4RuntimeServer(
            dataplane,
            device_id=device_id,
            engine=engine,
            on_pipeline=_source_writer(dump_file, dump_c_file),
        )
        dataplane.start()
        if pipeline_file is not None and p4info_file is not None:
            _preload(server, pipeline_file, p4info_file)
        with _serving(server, address, files) as address_in_use:
            _announce(dataplane, device_id, address_in_use, ready_file, ready_fd)
            # In short waits: the kernel may give the signal to another thread, and Python
            # calls the handler only once the main thread runs again.
            while not stop.wait(_WAKE_SECONDS):
                pass
            for number in _STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            summary = dataplane.counts()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    click.echo(f"p4reduce-switch stopped: {_summary(summary)}")


def main() -> None:
    """Run the command line."""
    with command("p4reduce-switch"):
        cli(prog_name="p4reduce-switch")


def _check_arguments(
    address: GrpcAddress,
    port_specs: Sequence[PortSpec],
    cpu_port: int | None,
    files: TlsFiles | None,
) -> None:
    if not address.is_local and files is None:
        raise click.UsageError(
            f"--grpc-addr {address} is reachable from other machines, and whoever reaches it owns "
            "the switch; add --tls-cert, --tls-key and --tls-ca, or use 127.0.0.1 or unix:PATH"
        )
    seen: dict[object, PortSpec] = {}
    for spec in port_specs:
        if spec.number == cpu_port:
            raise click.UsageError(f"--port {spec}: {cpu_port} is the CPU port (--cpu-port)")
        where = spec.interface or spec.socket_path or spec.udp_address
        for key in (spec.number, where):
            if key in seen and not str(key).endswith(":0"):
                raise click.UsageError(f"--port {spec} and --port {seen[key]} collide")
            seen[key] = spec


def _tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise click.UsageError("--tls-cert, --tls-key and --tls-ca only go together")
    from p4reduce_switch.p4runtime.server_tls import TlsFiles

    return TlsFiles(cert, key, ca)


def _read_udp_key(path: Path | None) -> bytes:
    if path is None:
        return b""
    from p4reduce_native.udp_handshake import read_key

    try:
        return read_key(path)
    except ValueError as error:
        raise click.ClickException(f"--udp-key-file: {error}") from None


def _check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written before anything starts."""
    try:
        was_there = path.exists()
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise click.ClickException(f"{option}: {path}: {error.strerror or error}") from None


def _beside(ready_file: Path) -> Path:
    """What is renamed to the ready file, so that nobody reads half of it."""
    return ready_file.with_name(f".{ready_file.name}.{os.getpid()}")


def _open_data_plane(
    specs: Sequence[PortSpec],
    engine: Engine,
    cpu_port: int | None,
    capture_dir: Path | None,
    udp_key: bytes,
) -> DataPlaneThread:
    from p4reduce_native.errors import NativeUnavailableError

    from p4reduce_switch.dataplane_choice import open_data_plane

    try:
        return open_data_plane(
            specs, engine=engine, cpu_port=cpu_port, capture_dir=capture_dir, udp_key=udp_key
        )
    except NativeUnavailableError as error:
        raise click.ClickException(f"--engine native: {error}") from None
    except PortError as error:
        raise click.ClickException(str(error)) from None


def _preload(server: P4RuntimeServer, pipeline_file: Path, p4info_file: Path) -> None:
    from google.protobuf import text_format
    from p4.v1 import p4runtime_pb2

    from p4reduce_switch.errors import P4RuntimeError

    config = p4runtime_pb2.ForwardingPipelineConfig()
    try:
        # A p4c newer than the protos here may know more fields.
        text_format.Parse(p4info_file.read_text(), config.p4info, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{p4info_file} is not a P4Info in text form: {error}") from None
    config.p4_device_config = pipeline_file.read_bytes()
    try:
        server.preload(config)
    except P4RuntimeError as error:
        raise click.ClickException(f"{pipeline_file}: {error.message}") from None


def _source_writer(
    python_file: Path | None, c_file: Path | None
) -> Callable[[ForwardingConfig], None] | None:
    """What writes the code of each program that is set, if that is wanted."""
    if python_file is None and c_file is None:
        return None

    def write(config: ForwardingConfig) -> None:
        from p4reduce_switch.native_pipeline import NativePipeline
        from p4reduce_switch.pipeline import Pipeline

        running = config.pipeline
        if c_file is not None and isinstance(running, NativePipeline):
            _write_source("--dump-c", c_file, running.source)
        if python_file is not None:
            if isinstance(running, NativePipeline):
                running = Pipeline(config.message.p4_device_config)
            _write_source("--dump-python", python_file, running.source)

    return write


def _write_source(option: str, path: Path, source: str) -> None:
    try:
        path.write_text(source)
    except OSError as error:
        log.error("%s %s: %s", option, path, error.strerror)


@contextlib.contextmanager
def _serving(
    server: P4RuntimeServer, address: GrpcAddress, files: TlsFiles | None
) -> Iterator[GrpcAddress]:
    """Serve P4Runtime; gives the address with the port that was taken."""
    import socket

    from p4reduce_switch.p4runtime.server import BindError
    from p4reduce_switch.p4runtime.server_tls import TlsError
    from p4reduce_switch.ports.unix import prepare_socket_path

    try:
        if address.path is not None:
            prepare_socket_path(address.path, socket.SOCK_STREAM)
        # A Unix socket is protected by its own permissions.
        credentials = files.credentials() if files is not None and address.path is None else None
        # gRPC makes the socket file by itself; from the first moment on it is this user's alone.
        old = os.umask(0o177)
        try:
            port = server.start(str(address), credentials)
        finally:
            os.umask(old)
    except (BindError, TlsError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {address}: {error.strerror or error}"
        ) from None
    try:
        yield address.with_port(port)
    finally:
        server.stop()
        if address.path is not None:
            address.path.unlink(missing_ok=True)


def _announce(
    dataplane: DataPlaneThread,
    device_id: int,
    address: GrpcAddress,
    ready_file: Path | None,
    ready_fd: int | None,
) -> None:
    ports = ", ".join(port.description for port in dataplane.ports.values()) or "none"
    cpu = "none" if dataplane.cpu_port is None else dataplane.cpu_port
    click.echo(
        f"p4reduce-switch ready: P4Runtime on {address}, device {device_id}, ports {ports}, "
        f"CPU port {cpu}, data plane in {dataplane.language}"
    )
    state = json.dumps(
        {
            "pid": os.getpid(),
            "grpc_addr": str(address),
            "device_id": device_id,
            "ports": {str(n): port.description for n, port in dataplane.ports.items()},
        }
    )
    try:
        if ready_file is not None:
            partial = _beside(ready_file)
            partial.write_text(state + "\n")
            partial.replace(ready_file)
        if ready_fd is not None:
            with os.fdopen(ready_fd, "w") as stream:
                stream.write(state + "\n")
    except OSError as error:
        raise click.ClickException(f"cannot tell that the switch is ready: {error}") from None


def _summary(counts: dict[str, dict[str, int]]) -> str:
    """The counts in one line; those of ports always, others where they are not zero."""
    parts = []
    for name, values in counts.items():
        shown = [
            f"{key}={value}"
            for key, value in values.items()
            if value or key in ("rx_frames", "tx_frames")
        ]
        if shown:
            parts.append(f"{name}: {' '.join(shown)}")
    return "; ".join(parts) or "no traffic"
