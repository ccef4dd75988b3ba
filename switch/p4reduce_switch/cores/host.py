# SPDX-License-Identifier: Apache-2.0
"""Runs a switch with several cores: a process per core, one address and one set of ports.

To the controller and workers, a core that ends is a lost switch. It is restarted, and the others
continue meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from p4reduce_common.ending import ending_signals
from p4reduce_common.service_manager import notify

from p4reduce_switch.cores.child import CoreProcess
from p4reduce_switch.cores.directory import socket_directory
from p4reduce_switch.cores.front import Front
from p4reduce_switch.cores.order import LogSettings
from p4reduce_switch.p4runtime.several_cores import ANNOTATION, may_have_several
from p4reduce_switch.ports.core import Core
from p4reduce_switch.ports.port import PortError
from p4reduce_switch.ports.steering import open_listeners
from p4reduce_switch.ports.udp import UdpPlace
from p4reduce_switch.process.ready import announce
from p4reduce_switch.process.run import read_p4info, run
from p4reduce_switch.process.serving import metrics_at, serving
from p4reduce_switch.process.settings import StartError, SwitchSettings
from p4reduce_switch.rate_limited_log import calm_grpc

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

_WAKE_MS = 100
_GRACE_S = 5.0  # for all cores to end


def run_cores(settings: SwitchSettings, count: int, how: LogSettings) -> None:
    """Run a switch with several cores until SIGINT, SIGTERM or SIGHUP. Call it in the main thread.

    If the program of `--pipeline` is for one core, the switch has one core, and the log says so.

    Raises:
        StartError: a port, the address, a file or the program cannot be used.
    """
    file = settings.p4info_file
    if file is not None and not may_have_several(read_p4info(file)):
        log.warning(
            "%s is for one core, so there is one and not %d: its package has no %s",
            settings.pipeline_file,
            count,
            ANNOTATION,
        )
        run(settings)
        return
    _CoreHost(settings, count, how).run()


class _CoreHost:
    """The parent of the cores."""

    def __init__(self, settings: SwitchSettings, count: int, how: LogSettings) -> None:
        self._settings = settings
        self._count = count
        self._how = how
        self._cores: list[CoreProcess] = []
        self._stop = False

    def run(self) -> None:
        """Run until a signal."""
        for number in ending_signals():
            signal.signal(number, self._end)
        calm_grpc()
        settings = self._settings
        with contextlib.ExitStack() as cleanup:
            # Beside the switch's own socket, if it has one: whoever made that directory removes it.
            beside = settings.address.path and settings.address.path.parent
            try:
                directory = cleanup.enter_context(socket_directory(beside))
            except OSError as error:
                raise StartError(f"no directory for the cores' sockets: {error}") from None
            self._start_cores(directory, cleanup)
            if not self._wait_ready():
                print(f"{settings.name} stopped before it was ready", flush=True)
                return
            front = Front([core.address for core in self._cores], settings.device_id)
            address = cleanup.enter_context(serving(front, settings))
            metrics_port = cleanup.enter_context(metrics_at(settings.metrics_port, self._collector))
            print(
                announce(settings, self._ports(), address, metrics_port, self._core_facts()),
                flush=True,
            )
            notify("READY=1", f"STATUS=P4Runtime at {address}, {self._count} cores")
            while not self._stop:
                self._iteration(revive=True)
            notify("STOPPING=1")
        if settings.ready_file is not None:
            settings.ready_file.unlink(missing_ok=True)
        print(f"{settings.name} stopped", flush=True)

    def _end(self, number: int, frame: object) -> None:
        self._stop = True

    def _start_cores(self, directory: Path, cleanup: contextlib.ExitStack) -> None:
        listeners: list[dict[int, int]] = [{} for _ in range(self._count)]
        for spec in self._settings.ports:
            if not isinstance(spec.place, UdpPlace):
                continue
            try:
                opened = open_listeners(spec, self._count)
            except PortError as error:
                raise StartError(str(error)) from None
            for of_core, listener in zip(listeners, opened, strict=True):
                cleanup.callback(listener.close)
                of_core[spec.number] = listener.fileno()
        cleanup.callback(self._end_cores)
        for number in range(self._count):
            core = Core(number, self._count, listeners[number])
            self._cores.append(CoreProcess(self._settings, core, directory, self._how))
            self._cores[-1].start()

    def _wait_ready(self) -> bool:
        """Whether all cores are ready; False: a signal came.

        Raises:
            StartError: one has ended. It has said why.
        """
        while not self._stop:
            self._iteration(revive=False)
            for core in self._cores:
                if core.code is not None:
                    raise StartError(f"core {core.number} did not start, so there is no switch")
            if all(core.facts is not None for core in self._cores):
                return True
        return False

    def _iteration(self, *, revive: bool) -> None:
        """Wait a moment, and see to the cores."""
        poll = select.poll()
        for core in self._cores:
            core.watch(poll)
        poll.poll(_WAKE_MS)
        for core in self._cores:
            core.look()
            if revive and not self._stop:
                core.revive()

    def _end_cores(self) -> None:
        for core in self._cores:
            core.end()
        deadline = time.monotonic() + _GRACE_S
        for core in self._cores:
            core.reap(deadline)

    # -- Reports -----------------------------------------------------------------------------------

    def _ports(self) -> dict[int, str]:
        facts = self._cores[0].facts
        assert facts is not None
        return {int(number): text for number, text in facts["ports"].items()}

    def _core_facts(self) -> list[dict[str, int]]:
        cores = []
        for core in self._cores:
            assert core.facts is not None
            pid = core.facts["pid"]
            cores.append({"core": core.number, "device_id": core.device_id, "pid": pid})
        return cores

    def _collector(self) -> Collector:
        from p4reduce_switch.cores.metrics import CoresCollector

        return CoresCollector(
            lambda: [
                None if core.facts is None else core.facts.get("metrics_port")
                for core in self._cores
            ]
        )
