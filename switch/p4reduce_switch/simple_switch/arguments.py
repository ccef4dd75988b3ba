# SPDX-License-Identifier: Apache-2.0
"""The command line of simple_switch_grpc (BMv2 1.15), and two options of our own.

The options before `--` are BMv2's, those behind it the target's (options_parse.cpp and
simple_switch_grpc/main.cpp of behavioral-model). As there, an option may be abbreviated while it is
unambiguous, and its value may follow a space or `=`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from p4reduce_switch.p4runtime.listen_address import GrpcAddress, parse_grpc_address
from p4reduce_switch.ports.packet import InterfacePlace, checked_name
from p4reduce_switch.ports.place import PortSpec

NAME = "p4reduce-simple-switch-grpc"

_DEBUGGER = "the debugger is that of p4reduce-switch --debug PATH (docs/embedded-switch.md)"
_REFUSED = {
    "--debugger": _DEBUGGER,
    "--debugger-addr": _DEBUGGER,
    "--use-files": "packets come from interfaces only",
    "--packet-in": "packets come from interfaces only",
    "--restore-state": "state cannot be restored from a file; write it by P4Runtime",
    "--dp-grpc-server-addr": "packets come from interfaces only, not by gRPC; p4reduce-switch "
    "accepts Unix sockets as ports",
    "--load-modules": "BMv2's modules (externs in C++) cannot be loaded",
}
_WITHOUT_VALUE = ("--debugger",)


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized"):
            message += " (target options, such as --cpu-port, stand behind a '--' of their own)"
        print(f"Error while parsing command line arguments: {message}", file=sys.stderr)
        print(f"{NAME} --help lists the options.", file=sys.stderr)
        raise SystemExit(1)  # as BMv2; argparse would take 2


class _Refuse(argparse.Action):
    """An option of BMv2 that is not available here."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{self.option_strings[0]}: {_REFUSED[self.option_strings[0]]}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Wrong arguments end the process with 1, as in BMv2."""
    before, after = _split(arguments)
    options = _general().parse_args(before)
    _target().parse_args(after, namespace=options)
    if options.input_config is None and not options.no_p4:
        _ArgumentParser(prog=NAME).error(
            "please specify an input JSON configuration file, or --no-p4"
        )
    if options.log_console and options.log_file is not None:
        _ArgumentParser(prog=NAME).error("--log-console and --log-file are exclusive")
    return options


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The options before and behind `--`; the JSON may stand first behind it."""
    if "--" not in arguments:
        return arguments, ()
    at = list(arguments).index("--")
    before, after = list(arguments[:at]), list(arguments[at + 1 :])
    if after and not after[0].startswith("-"):
        before.append(after.pop(0))
    return before, after


def _general() -> argparse.ArgumentParser:
    parser = _ArgumentParser(
        prog=NAME,
        usage="%(prog)s [options] <path to JSON config file> [-- target options]",
        description="The embedded switch of p4reduce behind the command line of BMv2's "
        "simple_switch_grpc: runs v1model programs, controlled by P4Runtime. There is no Thrift, "
        "so simple_switch_CLI cannot connect.",
        epilog=_target().format_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("input_config", nargs="?", metavar="JSON", help="the program, p4c's JSON for BMv2")
    add(
        "-i",
        "--interface",
        action="append",
        default=[],
        type=_interface,
        metavar="PORT@INTERFACE",
        help="attach a network interface as a port; may be given many times",
    )
    add(
        "--pcap",
        nargs="?",
        const=".",
        metavar="DIR",
        help="write each interface's frames to DIR/INTERFACE_in.pcap and _out.pcap",
    )
    add("--device-id", type=_number, default=0, metavar="N", help="default 0")
    add("--no-p4", action="store_true", help="start without a program")
    add("--log-console", action="store_true", help="log to standard output")
    add("--log-file", metavar="FILE", help="log to a file")
    add(
        "-L",
        "--log-level",
        choices=("trace", "debug", "info", "warn", "error", "off"),
        default="trace",
        help="default trace, which says as much as debug here",
    )
    add("--log-flush", action="store_true", help="no difference: the file is always flushed")
    add("--log-file-max-size", type=_positive, default=5242880, metavar="BYTES")
    add("--log-file-max-files", type=_number, default=3, metavar="N")
    add("-v", "--version", action="version", version=_version())
    add("--json-version", action="version", version="2.24", help="of BMv2's JSON")
    ignored = parser.add_argument_group("without a meaning here; accepted, and said in the log")
    for option, kind in (
        ("--thrift-port", _number),
        ("--notifications-addr", str),
        ("--nanolog", str),
        ("--dump-packet-data", _number),
        ("--max-port-count", _number),
    ):
        ignored.add_argument(option, type=kind, metavar="X")
    _refuse(parser, *(name for name in _REFUSED if name not in _OF_TARGET))
    return parser


_OF_TARGET = ("--dp-grpc-server-addr", "--load-modules")


def _target() -> argparse.ArgumentParser:
    parser = _ArgumentParser(prog=NAME, add_help=False, usage=argparse.SUPPRESS)
    target = parser.add_argument_group("target options, behind --")
    add = target.add_argument
    add(
        "--grpc-server-addr",
        type=_address,
        default=parse_grpc_address("0.0.0.0:9559"),
        metavar="HOST:PORT",
        help="where P4Runtime is served; default 0.0.0.0:9559, which others can reach",
    )
    add("--grpc-server-ssl", action="store_true", help="serve by TLS")
    add("--grpc-server-cacert", metavar="FILE", help="the CA of clients' certificates")
    add("--grpc-server-cert", metavar="FILE", help="the server's certificate")
    add("--grpc-server-key", metavar="FILE", help="its key")
    add(
        "--grpc-server-with-client-auth",
        action="store_true",
        help="only serve clients with a certificate",
    )
    add("--cpu-port", type=_port, metavar="N", help="for packet-in and packet-out; none if missing")
    add("--drop-port", type=_port, default=511, metavar="N", help="default 511")
    add("--priority-queues", type=_number, default=1, metavar="N", help="of each port; default 1")
    add(
        "--queue-depth",
        action="append",
        default=[],
        metavar="[PORT=]FRAMES",
        help="not BMv2's, which sets it by Thrift: what a queue holds; default 64",
    )
    add(
        "--queue-rate",
        action="append",
        default=[],
        metavar="[PORT=]RATE",
        help="not BMv2's, which sets it by Thrift: frames per second of a queue; default 0, any",
    )
    add(
        "--engine",
        choices=("auto", "native", "python"),
        default="auto",
        help="not BMv2's: what runs programs, machine code or Python",
    )
    for option in ("--max-mc-groups", "--max-l1-entries", "--max-l2-entries"):
        add(option, type=_number, metavar="N", help="without a meaning here")
    add("--disable-swap", action="store_true", help="without a meaning here")
    _refuse(parser, *_OF_TARGET)
    return parser


def _refuse(parser: argparse.ArgumentParser, *options: str) -> None:
    for option in options:
        parser.add_argument(
            option,
            action=_Refuse,
            nargs=0 if option in _WITHOUT_VALUE else "?",
            help=argparse.SUPPRESS,
        )


def _version() -> str:
    from importlib.metadata import version

    return f"{NAME}, version {version('p4reduce')}, in place of simple_switch_grpc"


# -- Values ----------------------------------------------------------------------------------------


def _interface(text: str) -> PortSpec:
    number, at, name = text.partition("@")
    if not at or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form PORT@INTERFACE")
    try:
        return PortSpec(_port_number(number), InterfacePlace(checked_name(name)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}': {error}") from None


def _port_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 511:
        raise ValueError(f"port '{text}' is not within 0 to 511")
    return int(text)


def _port(text: str) -> int:
    try:
        return _port_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0 to 2^64 - 1")
    return int(text)


def _positive(text: str) -> int:
    if not (number := _number(text)):
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number


def _address(text: str) -> GrpcAddress:
    try:
        return parse_grpc_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
