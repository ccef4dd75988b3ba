# SPDX-License-Identifier: Apache-2.0
"""A core's process, as its parent sees it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from p4reduce_common.polling import Backoff

from p4reduce_switch.cores.directory import socket_path
from p4reduce_switch.cores.order import LogSettings, Order, settings_of
from p4reduce_switch.ports.core import Core
from p4reduce_switch.process.settings import SwitchSettings

log = logging.getLogger(__name__)

_NOTIFY = "NOTIFY_SOCKET"  # systemd's: the parent speaks for all
_PAUSES = Backoff(0.2, 10.0)  # before a core is started again
_LASTED_S = 30.0  # a core that ran for so long did not end because of how it starts


class CoreProcess:
    """Starts the process of a core, and restarts it when it ends.

    Args:
        whole: the settings of the switch.
        core: its number.
        directory: of its P4Runtime socket.
        how: how it logs.

    Attributes:
        facts: its report when it was ready; None while it is not.
    """

    def __init__(
        self, whole: SwitchSettings, core: Core, directory: Path, how: LogSettings
    ) -> None:
        self.number = core.number
        self.device_id = whole.device_id + core.number
        self.facts: dict[str, Any] | None = None
        self._whole = whole
        self._core = core
        self._directory = directory
        self._how = how
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = -1
        self._read = b""
        self._started = 0.0
        self._pauses = iter(_PAUSES)
        self._due = 0.0

    @property
    def address(self) -> str:
        """The address of its P4Runtime server."""
        return f"unix:{socket_path(self._directory, self.number)}"

    def start(self) -> None:
        """Start the process, from the main thread only: the child ends when this thread ends."""
        self._ready, theirs = os.pipe()
        os.set_blocking(self._ready, False)
        self._read, self.facts = b"", None
        settings = settings_of(self._whole, self._core, self._directory, theirs)
        order = pickle.dumps(Order(settings, self._how, os.getpid()))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "p4reduce_switch.cores.core"],
                stdin=subprocess.PIPE,
                pass_fds=(theirs, *self._core.listeners.values()),
                env={name: value for name, value in os.environ.items() if name != _NOTIFY},
                start_new_session=True,  # Ctrl-C is for the parent, which ends all cores
            )
        finally:
            os.close(theirs)
        self._started = time.monotonic()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `look` says so
            self._process.stdin.write(order)
            self._process.stdin.close()

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    def watch(self, poll: select.poll) -> None:
        """Let a poll wake up when the core becomes ready."""
        if self._ready >= 0:
            poll.register(self._ready, select.POLLIN)

    def look(self) -> None:
        """Process the core's messages."""
        if self._ready < 0:
            return
        try:
            read = os.read(self._ready, 1 << 20)
        except BlockingIOError:
            return
        self._read += read
        if not read:
            os.close(self._ready)
            self._ready = -1
            if self._read:
                self.facts = json.loads(self._read)

    def revive(self) -> None:
        """Restart it if it has ended. The pause before a restart grows if it ends again soon."""
        now = time.monotonic()
        if self.code is None or now < self._due:
            return
        if not self._due:
            if now > self._started + _LASTED_S:
                self._pauses = iter(_PAUSES)
            pause = next(self._pauses)
            self._due = now + pause
            self.facts = None
            log.error(
                "core %d (device %d, pid %d) has ended%s; it is started again in %g s",
                self.number,
                self.device_id,
                self._pid,
                _ending(self.code),
                pause,
            )
            return
        self._due = 0.0
        self._hang_up()
        self.start()

    def end(self) -> None:
        """Ask it to end."""
        if self._process is not None and self.code is None:
            self._process.terminate()

    def reap(self, deadline: float) -> None:
        """Wait until it ends, or kill it at a deadline of the monotonic clock."""
        self._hang_up()
        if self._process is None:
            return
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            log.error("core %d does not end, so it is killed", self.number)
            self._process.kill()
            self._process.wait()

    @property
    def _pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def _hang_up(self) -> None:
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1


def _ending(code: int) -> str:
    return f" by signal {-code}" if code < 0 else f" with exit code {code}"
