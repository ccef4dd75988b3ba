# SPDX-License-Identifier: Apache-2.0
"""From the loss of a switch to the next one: who waits for what, and until when."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Protocol

from p4reduce.errors import (
    ClosedError,
    P4ReduceError,
    P4ReduceTimeoutError,
    SwitchUnreachableError,
)
from p4reduce.latch import Latch
from p4reduce.protocol.slots import SlotMachine
from p4reduce.ring import fallback
from p4reduce.ring.fallback import Fallback, RingRun
from p4reduce.ring.links import Neighbourhood
from p4reduce.session.engine import Engine
from p4reduce.session.membership import Membership, Seat
from p4reduce.session.seeker import Connect, Found, Seeker
from p4reduce.tensors.stream import Collective

log = logging.getLogger(__name__)

_HALT_TIMEOUT = 5.0
_LONGEST_WAIT = 60.0  # seconds; only bounds what is woken anyway
_RING_PAUSE = 0.2  # seconds between two looks at whether all have lost the switch


class Host(fallback.Host, Protocol):
    """Whose switch it is. Calls may come from any thread."""

    membership: Membership
    fallback: Fallback | None
    neighbourhood: Neighbourhood

    @property
    def broken(self) -> P4ReduceError | None:
        """Why nothing can be reduced any more, or None."""

    def over(self) -> bool:
        """Whether nobody wants a switch any more."""

    def under_way(self) -> list[Collective]:
        """Return the collectives that somebody waits for."""

    def halted(self) -> None:
        """The old engine has ended."""

    def moved(self, seat: Seat) -> None:
        """This rank has a new seat."""

    def without_switch(self, ring: bool) -> None:
        """Whether the ranks reduce by themselves for now."""

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
        self._changed = Latch()
        self._ring: RingRun | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"p4reduce-recover-{seat.rank}", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Tell that the host is over, or that there are further collectives."""
        self._changed.set()
        if (ring := self._ring) is not None:
            ring.wake()

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
            if self._must_agree(seeker):
                self._by_ring(seeker, machine)
                return
            if (found := seeker.take()) is not None:
                self._resume(found, machine)
                return
            self._changed.wait(self._until_deadline(seeker))

    def _resume(self, found: Found, machine: SlotMachine) -> None:
        log.warning(
            "%s: back on the switch %.3g s after it was lost",
            self._host.membership.who,
            time.monotonic() - self._started,
        )
        self._host.resume(found, machine)

    def _until_deadline(self, seeker: Seeker) -> float:
        """Return how long may be waited. Raises what a collective ends with that has no time."""
        now = time.monotonic()
        left = _LONGEST_WAIT
        if self._host.fallback is not None:
            # It is looked at again whether the ring may take over now.
            due = self._started + self._host.fallback.after
            left = due - now if due > now else _RING_PAUSE
        due_first = self._due_first()
        if due_first is None:
            return left
        if due_first.deadline > now:
            return min(due_first.deadline - now, left)
        seconds = now - due_first.started
        text = (
            f"{due_first.description} is not complete after {seconds:.3g} s: the switch was lost "
            f"{now - self._started:.3g} s ago, and what is waited for since is {seeker.awaited}"
        )
        if seeker.switch_there:
            raise P4ReduceTimeoutError(text, seconds=seconds)
        raise SwitchUnreachableError(text)

    def _due_first(self) -> Collective | None:
        return min(self._host.under_way(), key=lambda one: one.deadline, default=None)

    # -- With a ring to fall back to ---------------------------------------------------------------

    def _must_agree(self, seeker: Seeker) -> bool:
        """Whether it is time to form the ring.

        Either to reduce by it, or only to agree from where on the switch is used again: with a
        ring to fall back to, a rank does not know whether another one is in it already. A rank
        that alone lost its way to the switch does neither, as the others know of nothing.
        """
        if self._host.fallback is None or not (seeker.all_lost or seeker.unheard):
            return False
        late = time.monotonic() - self._started >= self._host.fallback.after
        return late or seeker.incarnation != 0

    def _by_ring(self, seeker: Seeker, machine: SlotMachine) -> None:
        host = self._host
        assert host.fallback is not None
        if not seeker.incarnation:
            log.warning(
                "%s: there has been no switch for %.3g s; going on by a ring of TCP connections "
                "among the ranks",
                host.membership.who,
                time.monotonic() - self._started,
            )
            host.without_switch(True)

        def left(what: str, rank: int | None) -> float:
            return self._left_in_ring(seeker, what, rank)

        listener = host.fallback.listener
        self._ring = RingRun(host, host.neighbourhood, listener, lambda: seeker.incarnation, left)
        try:
            first = self._ring.run()
        finally:
            self._ring = None
            host.without_switch(False)
        found = seeker.take()
        assert found is not None
        self._resume(replace(found, resume_from=first), machine)

    def _left_in_ring(self, seeker: Seeker, what: str, rank: int | None) -> float:
        """Return how long may be waited. Raises what the ring ends with."""
        if self._host.over():
            raise self._host.broken or ClosedError("the communicator was closed")
        if seeker.failed is not None:
            raise seeker.failed
        now = time.monotonic()
        due = self._due_first()
        if due is None:
            return _LONGEST_WAIT
        if due.deadline > now:
            return due.deadline - now
        seconds = now - due.started
        raise P4ReduceTimeoutError(
            f"{due.description} is not complete after {seconds:.3g} s: the switch was lost "
            f"{now - self._started:.3g} s ago, and this waits for {what}",
            missing=() if rank is None else (rank,),
            seconds=seconds,
        )
