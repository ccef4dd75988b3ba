# SPDX-License-Identifier: Apache-2.0
"""From the loss of a switch to the next one: who waits for what, and until when."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from p4reduce.collective import Collective
from p4reduce.engine import Engine
from p4reduce.errors import P4ReduceError, P4ReduceTimeoutError, SwitchUnreachableError
from p4reduce.membership import Membership, Seat
from p4reduce.seeker import Connect, Found, Seeker
from p4reduce.slots import SlotMachine

log = logging.getLogger(__name__)

_HALT_TIMEOUT = 5.0
_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway


class Host(Protocol):
    """Whose switch it is. Calls may come from any thread."""

    membership: Membership

    def over(self) -> bool:
        """Whether nobody wants a switch any more."""

    @property
    def completed(self) -> int:
        """Number of the first collective of which this rank lacks the result."""

    def under_way(self) -> list[Collective]:
        """Return the collectives that somebody waits for."""

    def halted(self) -> None:
        """The old engine has ended."""

    def moved(self, seat: Seat) -> None:
        """This rank has a new seat."""

    def resume(self, found: Found, before: SlotMachine) -> None:
        """Go on; this recovery is over. Raises P4ReduceError."""

    def give_up(self, error: P4ReduceError) -> None:
        """There is no going on."""


class Recovery:
    """Runs in a thread of its own, once for each loss.

    It ends when there is a switch, when a collective comes to its deadline (all then end with an
    error that says what was waited for), or when it is stopped.

    Args:
        host: see there.
        engine: the one whose switch was lost.
        seat: of that life of the job.
        connect: to open a transport.
    """

    def __init__(self, host: Host, engine: Engine, seat: Seat, connect: Connect) -> None:
        self._host = host
        self._engine = engine
        self._seat = seat
        self._connect = connect
        self._started = time.monotonic()
        self._changed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"p4reduce-recover-{seat.rank}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Tell that the host is over, or that there are further collectives."""
        self._changed.set()

    def stop(self, timeout: float) -> None:
        """Return when it has ended; the host has to be over."""
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # -- In the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            machine = self._engine.halt(_HALT_TIMEOUT)
            self._host.halted()
            seeker = Seeker(
                self._host.membership,
                self._seat,
                self._engine.udp_port,
                self._connect,
                self._host.completed,
                self._host.moved,
                self.wake,
            )
            seeker.start()
            try:
                self._await(seeker, machine)
            finally:
                seeker.cancel(_HALT_TIMEOUT)
        except P4ReduceError as error:
            self._host.give_up(error)
        except BaseException as problem:
            self._host.give_up(P4ReduceError(f"recovering failed: {problem!r}"))
            raise

    def _await(self, seeker: Seeker, machine: SlotMachine) -> None:
        while not self._host.over():
            self._changed.clear()
            if seeker.failed is not None:
                raise seeker.failed
            if (found := seeker.take()) is not None:
                log.warning(
                    "%s: the switch is back after %.2f s",
                    self._host.membership.who,
                    time.monotonic() - self._started,
                )
                self._host.resume(found, machine)
                return
            self._changed.wait(self._until_deadline(seeker))

    def _until_deadline(self, seeker: Seeker) -> float:
        """Return how long may be waited. Raises what a collective ends with that has no time."""
        now = time.monotonic()
        due = min(self._host.under_way(), key=lambda one: one.deadline, default=None)
        if due is None:
            return _LONGEST_WAIT
        if due.deadline > now:
            return min(due.deadline - now, _LONGEST_WAIT)
        seconds = now - due.started
        text = (
            f"{due.description} is not complete after {seconds:.3g} s: the switch was lost "
            f"{now - self._started:.3g} s ago, and what is waited for since is "
            f"{seeker.awaited}"
        )
        if seeker.switch_there:
            raise P4ReduceTimeoutError(text, seconds=seconds)
        raise SwitchUnreachableError(text)
