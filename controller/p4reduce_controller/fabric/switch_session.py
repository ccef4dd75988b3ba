# SPDX-License-Identifier: Apache-2.0
"""The controller's session with a switch, and how it is restored.

P4Runtime calls block, so one thread makes them, in the order of the requests. One more thread per
session waits for the switch's messages. Everything else runs in the event loop.

A broken session does not mean that the switch is lost. The controller connects once more. If the
switch is unchanged, the jobs notice nothing. Otherwise they fail, and the controller tries until
the switch is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

from p4reduce_common.polling import Backoff
from p4reduce_common.threads import new_thread, watch_task

from p4reduce_controller.fabric.fabric import Fabric, PipelineLostError
from p4reduce_controller.fabric.p4client import (
    NoSwitchAnswerError,
    NotPrimaryError,
    PacketIn,
    StreamEnded,
    SwitchClient,
    SwitchError,
)

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

PACKETS_IN_FLIGHT = 256  # handed to the event loop and not handled; then they wait in the client
PULSE = 5.0  # seconds between two looks at a switch that says nothing by itself
BACKOFF = Backoff(0.05, 1.0)  # between two attempts to reconnect
ATTEMPT_TIMEOUTS = Backoff(1.0, 5.0)

# What ends a session.
BREAKS = (NoSwitchAnswerError, NotPrimaryError, PipelineLostError)


class SessionHandler(Protocol):
    """What `SwitchSession` calls, in the event loop."""

    def on_packet_in(self, packet: PacketIn) -> None:
        """The switch sent a frame to the controller."""

    def on_switch_lost(self, reason: str) -> None:
        """The switch is lost, or has lost its program or registers."""

    def on_switch_away(self, reason: str) -> None:
        """The switch is still missing, for another reason than the last one reported."""

    def on_switch_back(self) -> None:
        """The switch is back and configured, whether or not its loss was reported."""


@dataclass(frozen=True)
class SessionStatus:
    """The state of the session."""

    lost: str  # why there is none; empty while there is
    primary: bool
    election_id: int  # of the session that there is, or was last
    connected_since: float  # seconds since the epoch


class SwitchSession:
    """A session that `fabric` uses, and its renewal. Create it in the event loop.

    `connect` opens another session. It runs on the switch's thread, gets a time limit in seconds,
    and raises SwitchError.
    """

    def __init__(
        self,
        user: SessionHandler,
        fabric: Fabric,
        client: SwitchClient,
        connect: Callable[[float], SwitchClient],
    ) -> None:
        self._user = user
        self._fabric = fabric
        self._client = client
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="p4runtime")
        self._broken: asyncio.Future[str] = self._loop.create_future()
        self._stopping = threading.Event()
        self._since = time.time()
        self._lost = ""
        self._away_for = ""  # what came of the latest attempts to reconnect
        self._primary = True
        self.sessions = 1  # so far; to know one from another
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def status(self) -> SessionStatus:
        """The present state."""
        return SessionStatus(self._lost, self._primary, self._client.election_id, self._since)

    # -- Life --------------------------------------------------------------------------

    def start(self) -> None:
        """Start receiving from the switch and checking it."""
        self._listen()
        self._tasks = [
            self._loop.create_task(self._keep(), name="link"),
            self._loop.create_task(self._watch(), name="pulse"),
        ]
        for task in self._tasks:
            watch_task(task)

    async def stop(self) -> None:
        """End the session. Requests that are not finished fail."""
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._client.close)

    def abandon(self) -> None:
        """Take no further requests. Those that are queued run until the session is closed."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=False)

    # -- Calls -------------------------------------------------------------------------

    async def call(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `function` on the switch's thread. Raises SwitchError, and what `function` raises."""
        if self._lost:
            raise NoSwitchAnswerError(f"the switch was lost: {self._lost}")
        return await self.submit(functools.partial(function, *args, **kwargs))

    def submit(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Queue `function` for the switch's thread, after all earlier ones.

        It is called even without a switch, and has to handle that itself.
        """
        return self._loop.run_in_executor(self._thread, self._guarded, self.sessions, function)

    def _guarded(self, session: int, function: Callable[[], _T]) -> _T:
        """Runs on the switch's thread."""
        try:
            return function()
        except BREAKS as error:
            self._to_loop(functools.partial(self._break, session, str(error)))
            raise

    # -- The session that there is -------------------------------------------------------

    def _listen(self) -> None:
        session = self.sessions

        def failed(cause: BaseException) -> None:
            why = f"the thread that reads the switch's messages failed: {cause!r}"
            self._to_loop(functools.partial(self._break, session, why))

        new_thread(self._receive, "packet-in", failed, args=(session, self._client)).start()

    def _receive(self, session: int, client: SwitchClient) -> None:
        """Hand the switch's messages to the event loop, on a thread of its own."""
        room = threading.BoundedSemaphore(PACKETS_IN_FLIGHT)

        def deliver(packet: PacketIn) -> None:
            room.release()
            self._user.on_packet_in(packet)

        while not self._stopping.is_set():
            message = client.receive(timeout=0.5)
            if isinstance(message, PacketIn):
                while not room.acquire(timeout=0.5):
                    if self._stopping.is_set():
                        return
                self._to_loop(functools.partial(deliver, message))
            elif isinstance(message, StreamEnded):
                self._to_loop(functools.partial(self._break, session, message.reason))
                return

    async def _watch(self) -> None:
        """Notice a switch that hangs, or has lost its program, where nothing else would."""
        while True:
            await asyncio.sleep(PULSE)
            if not self._lost:
                # `_guarded` reports what breaks the session.
                try:
                    await self.call(self._fabric.check)
                except SwitchError:
                    pass
                except Exception:
                    log.exception("the look at the switch failed")

    def _break(self, session: int, reason: str) -> None:
        if session == self.sessions and not self._broken.done() and not self._stopping.is_set():
            self._broken.set_result(reason)

    # -- The next one --------------------------------------------------------------------

    async def _keep(self) -> None:
        """Replace each session that breaks."""
        while True:
            reason = await self._broken
            log.warning("%s", reason)
            while True:
                try:
                    await self._replace(reason)
                    break
                except Exception:
                    log.exception("replacing the session with the switch failed")
                    await asyncio.sleep(BACKOFF.longest)

    async def _replace(self, reason: str) -> None:
        for delay, attempt_timeout in zip(BACKOFF, ATTEMPT_TIMEOUTS, strict=True):
            try:
                kept = await self._loop.run_in_executor(
                    self._thread, self._attempt, attempt_timeout
                )
                break
            except Exception as error:
                if not isinstance(error, SwitchError):
                    log.error("while reconnecting", exc_info=error)
                self._note(reason, error)
            await asyncio.sleep(delay)
        if not kept and not self._lost:
            self._user.on_switch_lost(f"{reason}; it was configured again")
        self._lost, self._primary, self._since = "", True, time.time()
        self.sessions += 1
        self._broken = self._loop.create_future()
        self._listen()
        self._user.on_switch_back()

    def _attempt(self, attempt_timeout: float) -> bool:
        """Runs on the switch's thread. Returns whether the switch is as it was."""
        self._fabric.hang_up()
        client = self._connect(attempt_timeout)
        try:
            if self._stopping.is_set():
                raise SwitchError("the controller is stopping")
            kept = self._fabric.take_up(client)
        except BaseException:
            client.close()
            raise
        self._client = client
        return kept

    def _note(self, reason: str, error: Exception) -> None:
        """Tell that it is lost; later on, whenever it stays away for another reason."""
        now = str(error)
        if not self._lost:
            self._lost = reason if now in reason else f"{reason}; now {now}"
            self._primary, self._away_for = False, now
            self._user.on_switch_lost(self._lost)
        elif now != self._away_for:
            log.warning("%s", now)
            # That comes first then: what it began with may be long over.
            self._lost, self._away_for = f"{now} (it was lost as {reason})", now
            self._user.on_switch_away(self._lost)

    # -- Plumbing ----------------------------------------------------------------------

    def _to_loop(self, function: Callable[[], None]) -> None:
        """Call `function` in the event loop, from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody cares any more
            self._loop.call_soon_threadsafe(function)
