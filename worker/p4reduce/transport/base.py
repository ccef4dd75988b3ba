# SPDX-License-Identifier: Apache-2.0
"""The interface of a transport."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.link import Link

from p4reduce.errors import ConfigurationError
from p4reduce.wire.format import Endpoint
from p4reduce.wire.frames import FrameBuffer

RECEIVE_BATCH = 128
"""Frames taken from the kernel by one call."""

BUFFER_BYTES = 8 << 20
"""Asked of the kernel for each direction; its own limits may leave less of it."""

Indices = npt.NDArray[np.int64]


class Transport(Protocol):
    """Whole Ethernet frames in batches. All but `wake` is for one thread."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The own addresses; None if the transport has none and any will do."""

    @property
    def received(self) -> FrameBuffer:
        """The buffer of received frames, valid until the next `receive`."""

    @property
    def dropped(self) -> int:
        """Frames that this host has dropped because they were not read in time."""

    @property
    def lossless(self) -> bool:
        """Whether all frames arrive unless one of the ends is gone."""

    @property
    def shares_link(self) -> bool:
        """Whether the ways to several switches have one link of this host, as by UDP."""

    @property
    def link(self) -> Link | None:
        """The link for C, while this is open; None: C calls the methods here."""

    @property
    def wake_fd(self) -> int:
        """A file descriptor that is readable after `wake`; does not block."""

    def receive(self) -> int:
        """Receive without waiting. Return how many frames are in `received`."""

    def send(self, buffer: FrameBuffer, rows: Indices) -> int:
        """Send rows of a buffer in order, without waiting.

        Returns how many the kernel took; the others have to be sent again once there is room.
        """

    def wait(self, timeout: float, *, writable: bool = False) -> bool:
        """Wait until frames may have come, `wake` was called, or `timeout` seconds have passed.

        With `writable` also when there is room to send again. Returns whether `wake` was called.
        """

    def wake(self) -> None:
        """End a `wait`, from any thread."""

    def close(self) -> None:
        """Release everything. May be called twice."""


def without_machine_code(error: NativeUnavailableError) -> ConfigurationError:
    """Return the error for a rank without machine code."""
    return ConfigurationError(
        f"a rank needs machine code, and there is none here: {error}. "
        'engine="reference" at a UDP port needs none, and is hundreds of times slower'
    )
