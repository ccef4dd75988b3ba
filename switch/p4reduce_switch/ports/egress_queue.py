# SPDX-License-Identifier: Apache-2.0
"""What leaves a port: a short queue in front of a socket that never blocks.

A socket's own buffer holds about 180 frames where the limits are the kernel's defaults, which is
less than a multicast burst of a few hundred slots. So frames that do not fit wait here, up to a
limit, until epoll says that there is room. Beyond the limit they are dropped and counted.
"""

from __future__ import annotations

import errno
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from p4reduce_switch.ports.batch import BATCH
from p4reduce_switch.ports.port import PortStats

__all__ = ["QUEUE_FRAMES", "EgressQueue", "Send"]

Send: TypeAlias = Callable[[Sequence[bytes]], int]
"""Sends up to `BATCH` frames and returns how many were sent, the first ones.

OSError says what became of the first frame, if that was not sent; EAGAIN if there is no room."""

QUEUE_FRAMES = 1024

_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
_TOO_LONG = frozenset({errno.EMSGSIZE, errno.EINVAL})


class EgressQueue:
    """Sends frames, as far as there is room.

    Args:
        max_bytes: longer frames are dropped (the MTU).
        set_events: called with the epoll events to wait for.
    """

    def __init__(
        self,
        stats: PortStats,
        *,
        max_bytes: int,
        set_events: Callable[[int], None],
    ) -> None:
        self._stats = stats
        self._max_bytes = max_bytes
        self._set_events = set_events
        self._waiting: deque[bytes] = deque()

    def send(self, send: Send, frames: Sequence[bytes]) -> None:
        """Send, or queue behind what waits already.

        Raises:
            OSError: the socket is of no use any more (no peer, interface down). The frames are
                counted as `tx_down`, and what waited still waits.
        """
        if not frames:
            return
        if max(map(len, frames)) > self._max_bytes:
            kept = [frame for frame in frames if len(frame) <= self._max_bytes]
            self._stats.tx_too_long += len(frames) - len(kept)
            frames = kept
        if self._waiting:
            self._queue(frames)
        else:
            self._queue(frames[self._push(send, frames) :])

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def drain(self, send: Send) -> None:
        """Send what waits, as far as there is room. Raises OSError as `send` does."""
        while self._waiting:
            turn = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            sent = self._push(send, turn)
            if sent < len(turn):
                self._waiting.extendleft(reversed(turn[sent:]))
                return
        self._set_events(select.EPOLLIN)

    def clear(self) -> None:
        """Forget what waits, and count it as `tx_down`."""
        self._stats.tx_down += len(self._waiting)
        self._waiting.clear()

    def _queue(self, frames: Sequence[bytes]) -> None:
        if not frames:
            return
        room = QUEUE_FRAMES - len(self._waiting)
        was_empty = self.is_empty
        self._waiting.extend(frames[:room])
        self._stats.tx_queue_full += max(0, len(frames) - room)
        if was_empty:
            self._set_events(select.EPOLLIN | select.EPOLLOUT)

    def _push(self, send: Send, frames: Sequence[bytes]) -> int:
        """Send until the socket is full; return how many frames are dealt with."""
        done = 0
        while done < len(frames):
            turn = frames[done : done + BATCH]
            try:
                sent = send(turn)
            except OSError as error:
                if error.errno in _FULL:
                    return done
                if error.errno in _TOO_LONG:
                    self._stats.tx_too_long += 1
                    done += 1
                    continue
                if error.errno == errno.EINTR:
                    continue
                self._stats.tx_down += len(frames) - done
                raise
            self._stats.tx_frames += sent
            self._stats.tx_bytes += sum(map(len, turn[:sent]))
            done += sent
        return done
