# SPDX-License-Identifier: Apache-2.0
"""The process around the daemon: signals, the ready line, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
from p4reduce.control.tls import TlsError
from p4reduce_common.ending import ending_signals
from p4reduce_common.files import named
from p4reduce_common.service_manager import notify

from p4reduce_controller.daemon import Daemon
from p4reduce_controller.fabric.p4client import NoSwitchAnswerError, NotPrimaryError, SwitchError
from p4reduce_controller.service.listen import ListenError
from p4reduce_controller.settings import ControllerSettings
from p4reduce_controller.storage.job_table import TableError, TableInUseError
from p4reduce_controller.terminal.exit_codes import CommandFailure, Exit
from p4reduce_controller.terminal.render import port_ranges
from p4reduce_controller.topology.switches import ONLY


def serve(settings: ControllerSettings, ready_file: Path | None) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. Raises CommandFailure with the exit code."""
    try:
        daemon = Daemon(settings)
        asyncio.run(_run(daemon, ready_file))
    except NotPrimaryError as error:
        raise CommandFailure(str(error), Exit.BACKUP) from None
    except TableInUseError as error:
        raise CommandFailure(str(error), Exit.BACKUP) from None
    except NoSwitchAnswerError as error:
        raise CommandFailure(str(error), Exit.NO_SWITCH) from None
    except ListenError as error:
        raise CommandFailure(str(error), Exit.NO_LISTEN) from None
    except TlsError as error:
        raise CommandFailure(str(error), Exit.USAGE) from None
    except (SwitchError, TableError, OSError, ValueError) as error:
        raise CommandFailure(str(error), Exit.REFUSED) from None


async def _run(daemon: Daemon, ready_file: Path | None) -> None:
    stop = asyncio.Event()

    def end() -> None:
        notify("STOPPING=1")
        stop.set()

    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, end)

    def ready(address: str) -> None:
        click.echo(f"ready at {address}: " + "; ".join(_switches(daemon.settings)))
        if ready_file is not None:
            beside = ready_file.with_name(ready_file.name + ".new")
            with named(ready_file):
                beside.write_text(json.dumps({"pid": os.getpid(), "address": address}) + "\n")
            beside.replace(ready_file)
        notify("READY=1", f"STATUS=serving at {address}")

    try:
        await daemon.run(stop, ready)
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _switches(settings: ControllerSettings) -> Iterator[str]:
    """Say which switches there are."""
    for name, server in settings.servers.items():
        at = settings.topology.switches[name]
        where = f"{server.address} (device {server.device_id})"
        called = "switch" if name == ONLY else f"switch {name} at"
        yield f"{called} {where}, ports {port_ranges(at.ports) or 'none'}"
