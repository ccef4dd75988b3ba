# SPDX-License-Identifier: Apache-2.0
"""Starts the switch with simple_switch_grpc's command line."""

from __future__ import annotations

import argparse
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_common.output import command

from p4reduce_switch.process.queue_options import read_queue_settings
from p4reduce_switch.process.run import run
from p4reduce_switch.process.settings import StartError, SwitchSettings
from p4reduce_switch.simple_switch.arguments import NAME, parse

if TYPE_CHECKING:
    from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles

log = logging.getLogger(__name__)

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# Options that change nothing here, and why.
_WITHOUT_MEANING = {
    "thrift_port": "there is no Thrift, so simple_switch_CLI and runtime_CLI cannot connect; use "
    "P4Runtime, and --queue-depth and --queue-rate for queues",
    "notifications_addr": "notifications go to P4Runtime's stream",
    "nanolog": "there is no event log; --log-console shows what log_msg prints",
    "dump_packet_data": "packets are not logged; use --pcap",
    "max_port_count": "there are as many ports as interfaces are given",
    "max_mc_groups": "there are 32767 multicast groups",
    "max_l1_entries": "multicast groups have no limit of entries in all",
    "max_l2_entries": "multicast groups have no limit of entries in all",
    "disable_swap": "P4Runtime can always set a program",
}


def main() -> None:
    """Run the command line."""
    with command(NAME):
        options = parse(sys.argv[1:])
        try:
            settings = settings_of(options)
            _start_log(options)
            remark(options, settings)
            run(settings)
        except (StartError, ValueError) as error:
            sys.exit(f"Error: {error}")


def settings_of(options: argparse.Namespace) -> SwitchSettings:
    program = None if options.no_p4 else Path(options.input_config)
    if program is not None and not program.is_file():
        raise StartError(f"there is no file {program}")
    if options.pcap is not None and not Path(options.pcap).is_dir():
        raise StartError(f"Directory '{options.pcap}' specified with '--pcap' does not exist.")
    if options.cpu_port == 0:
        raise StartError("--cpu-port 0: 0 is not a valid value")
    settings = SwitchSettings(
        name=NAME,
        address=options.grpc_server_addr,
        ports=options.interface,
        device_id=options.device_id,
        cpu_port=options.cpu_port,
        drop_port=options.drop_port,
        queues=read_queue_settings(
            options.priority_queues, options.queue_depth, options.queue_rate
        ),
        engine=options.engine,
        tls=_tls_files(options),
        capture_dir=None if options.pcap is None else Path(options.pcap),
        capture_by_direction=True,
        pipeline_file=program,
    )
    settings.check_ports("--interface", "--cpu-port")
    return settings


def _tls_files(options: argparse.Namespace) -> ServerTlsFiles | None:
    if not options.grpc_server_ssl:
        return None
    cert, key = options.grpc_server_cert, options.grpc_server_key
    for option, file in (("--grpc-server-cert", cert), ("--grpc-server-key", key)):
        if file is None:
            raise StartError(f"When enabling SSL/TLS for gRPC server, {option} is required")
    ca = None
    if options.grpc_server_with_client_auth:
        if options.grpc_server_cacert is None:
            raise StartError(
                "--grpc-server-with-client-auth needs --grpc-server-cacert: nobody's certificate "
                "could be verified"
            )
        ca = Path(options.grpc_server_cacert)
    from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles

    names = ("--grpc-server-cert", "--grpc-server-key", "--grpc-server-cacert")
    return ServerTlsFiles(Path(cert), Path(key), ca, names)


def _start_log(options: argparse.Namespace) -> None:
    """Where BMv2 logs nothing, because nobody asked, warnings go to standard error."""
    level = _LEVELS[options.log_level]
    handler: logging.Handler
    if options.log_file is not None:
        try:
            handler = RotatingFileHandler(
                options.log_file,
                maxBytes=options.log_file_max_size,
                backupCount=options.log_file_max_files,
            )
        except OSError as error:
            raise StartError(f"--log-file {options.log_file}: {error.strerror}") from None
    elif options.log_console:
        handler = logging.StreamHandler(sys.stdout)
    else:
        handler, level = logging.StreamHandler(sys.stderr), logging.WARNING
    logging.basicConfig(
        level=level,
        handlers=[handler],
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


def remark(options: argparse.Namespace, settings: SwitchSettings) -> None:
    """Log once what differs from the expectations of a user of simple_switch_grpc."""
    for name, why in _WITHOUT_MEANING.items():
        if getattr(options, name) not in (None, False):
            log.warning("--%s has no meaning here: %s", name.replace("_", "-"), why)
    if options.no_p4 and options.input_config is not None:
        log.warning("%s is not loaded, because of --no-p4", options.input_config)
    certificates = (
        options.grpc_server_cert,
        options.grpc_server_key,
        options.grpc_server_cacert,
        options.grpc_server_with_client_auth or None,
    )
    if settings.tls is None and any(certificates):
        log.warning("SSL/TLS is disabled for gRPC server, so its certificates are not used")
    if settings.tls is None and not settings.address.is_local:
        log.warning(
            "%s is reachable from other machines, and anyone who reaches it controls the switch, "
            "as with simple_switch_grpc; use --grpc-server-addr 127.0.0.1:%d, or --grpc-server-ssl",
            settings.address,
            settings.address.port,
        )
