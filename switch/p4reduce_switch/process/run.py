# SPDX-License-Identifier: Apache-2.0
"""Runs a switch from its settings until a signal ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p4reduce_common.ending import EndRequest, ending_signals
from p4reduce_common.service_manager import notify
from p4reduce_native.files import read_file, read_text

from p4reduce_switch.process.ready import announce, beside, summary
from p4reduce_switch.process.serving import collector_of, metrics_at, serving
from p4reduce_switch.process.settings import StartError, SwitchSettings
from p4reduce_switch.process.sources import source_writer

if TYPE_CHECKING:
    from p4reduce_switch.dataplane import DataPlane
    from p4reduce_switch.debug.debugger import Debugger
    from p4reduce_switch.p4runtime.server import P4RuntimeServer

# While the P4Runtime server encodes or decodes, the data plane waits this long for the interpreter.
_SWITCH_INTERVAL_S = 0.0005
_KEY_ENVIRONMENT = "P4REDUCE_UDP_KEY"  # as of ranks: the key itself


def run(settings: SwitchSettings) -> None:
    """Run a switch until SIGINT, SIGTERM or SIGHUP. Call it in the main thread.

    Raises:
        StartError: a port, the address, a file or the program cannot be used.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        _run(settings)
    except _Stopped:
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        print(f"{settings.name} stopped before it was ready", flush=True)


class _Stopped(BaseException):
    """A signal came while the switch was starting."""


def _run(settings: SwitchSettings) -> None:
    request = EndRequest()
    starting = True
    stop_signals = ending_signals()

    def end(number: int, frame: object) -> None:
        request.make()
        if starting:
            for each in stop_signals:
                signal.signal(each, signal.SIG_IGN)
            raise _Stopped

    for number in stop_signals:
        signal.signal(number, end)
    for path, option in (
        (settings.dump_c, "--dump-c"),
        (settings.ready_file and beside(settings.ready_file), "--ready-file"),
    ):
        if path is not None:
            _check_writable(path, option)

    # Below are the imports that take long: arguments are checked, and --help answers, without them.
    from p4reduce_switch.debug.debugger import Debugger
    from p4reduce_switch.p4runtime.server import P4RuntimeServer
    from p4reduce_switch.rate_limited_log import calm_grpc

    calm_grpc()
    with contextlib.ExitStack() as cleanup:
        dataplane = _open_data_plane(settings)
        cleanup.callback(dataplane.stop)
        debugger = Debugger() if settings.debug_path is not None else None
        server = P4RuntimeServer(
            dataplane,
            device_id=settings.device_id,
            engine=settings.engine,
            drop_port=settings.drop_port,
            queues=settings.queues,
            on_pipeline=source_writer(settings.dump_c),
            debugger=debugger,
            core=settings.core,
        )
        dataplane.start()
        _preload(server, settings)
        with serving(server, settings) as address_in_use:
            # What a debugger holds all else would wait for.
            with _debugging(settings.debug_path, debugger):
                _preload_program(server, settings)
                metrics_port = cleanup.enter_context(
                    metrics_at(settings.metrics_port, partial(collector_of, dataplane.counts))
                )
                ports = {n: port.description for n, port in dataplane.ports.items()}
                print(announce(settings, ports, address_in_use, metrics_port), flush=True)
                notify("READY=1", f"STATUS=P4Runtime at {address_in_use}")
                starting = False
                request.wait()
                for number in stop_signals:
                    signal.signal(number, signal.SIG_IGN)
                notify("STOPPING=1")
            counts = dataplane.counts()
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
    print(f"{settings.name} stopped: {summary(counts)}", flush=True)


def _check_writable(path: Path, option: str) -> None:
    """Refuse a file that cannot be written before anything starts."""
    try:
        was_there = path.exists()
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise StartError(f"{option}: {path}: {error.strerror or error}") from None


def read_udp_key(path: Path | None) -> bytes:
    """Return the UDP ports' key from a file, else from the environment; empty if there is none.

    Raises StartError.
    """
    text = os.environ.get(_KEY_ENVIRONMENT, "")
    if path is None and not text:
        return b""
    from p4reduce_native.udp_handshake import key_of, read_key

    try:
        return key_of(text) if path is None else read_key(path)
    except ValueError as error:
        name = _KEY_ENVIRONMENT if path is None else "--udp-key-file"
        raise StartError(f"{name}: {error}") from None


def _open_data_plane(settings: SwitchSettings) -> DataPlane:
    from p4reduce_native.errors import NativeUnavailableError

    from p4reduce_switch.dataplane import open_data_plane
    from p4reduce_switch.ports.capture import Captures
    from p4reduce_switch.ports.place import PortOptions
    from p4reduce_switch.ports.port import PortError

    captures = None
    if settings.capture_dir is not None:
        captures = Captures(settings.capture_dir, settings.capture_by_direction)
    options = PortOptions(captures, read_udp_key(settings.udp_key_file), settings.core)
    try:
        return open_data_plane(settings.ports, options, cpu_port=settings.cpu_port)
    except NativeUnavailableError as error:
        raise StartError(f"the switch's ports are machine code: {error}") from None
    except PortError as error:
        raise StartError(str(error)) from None


def read_p4info(path: Path) -> Any:
    """Return the `p4.config.v1.P4Info` of a file in text form. Raises StartError."""
    from google.protobuf import text_format
    from p4.config.v1 import p4info_pb2

    try:
        # A p4c newer than the protos here may know more fields.
        return text_format.Parse(read_text(path), p4info_pb2.P4Info(), allow_unknown_field=True)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from None
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise StartError(f"{path} is not a P4Info in text form: {error}") from None


def _preload(server: P4RuntimeServer, settings: SwitchSettings) -> None:
    """Load the program that the command line names with its P4Info."""
    from p4.v1 import p4runtime_pb2

    if settings.pipeline_file is None or settings.p4info_file is None:
        return
    config = p4runtime_pb2.ForwardingPipelineConfig(p4info=read_p4info(settings.p4info_file))
    entries = b""
    if settings.entries_file is not None:
        with _loading(settings.entries_file) as entries:
            pass
    with _loading(settings.pipeline_file) as program:
        config.p4_device_config = program
        server.preload(config, entries)


def _preload_program(server: P4RuntimeServer, settings: SwitchSettings) -> None:
    """Load the program that the command line names without a P4Info.

    It is only there until a controller sets one, so that P4Runtime need not wait until it is
    machine code: some scripts wait for the address no more than a few seconds.
    """
    if settings.pipeline_file is not None and settings.p4info_file is None:
        with _loading(settings.pipeline_file) as program:
            server.preload_program(program)


@contextlib.contextmanager
def _debugging(path: Path | None, debugger: Debugger | None) -> Iterator[None]:
    """Serve the debugger if it was asked for."""
    if path is None or debugger is None:
        yield
        return
    from p4reduce_switch.debug.console import serving_console

    try:
        console = serving_console(path, debugger)
        console.__enter__()
    except OSError as error:
        raise StartError(f"--debug {path}: {error.strerror or error}") from None
    with contextlib.ExitStack() as cleanup:
        cleanup.push(console)
        yield


@contextlib.contextmanager
def _loading(path: Path) -> Iterator[bytes]:
    """The bytes of a program, to be loaded meanwhile."""
    from p4reduce_switch.errors import P4RuntimeError

    try:
        program, _ = read_file(path)
    except OSError as error:
        raise StartError(f"cannot read {path}: {error.strerror}") from None
    try:
        yield program
    except P4RuntimeError as error:
        raise StartError(f"{path}: {error.message}") from None
