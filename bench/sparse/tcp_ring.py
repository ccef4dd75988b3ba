# SPDX-License-Identifier: Apache-2.0
"""The all-reduce that hosts do without a switch's help: a ring over TCP, for comparison.

Reduce-scatter and then all-gather in n - 1 steps each, a chunk of S / n bytes a step to the next
rank and one from the previous rank (Patarasuk and Yuan, JPDC 2009). Nothing is left out for zeros.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

PORT = 50123
CONNECTING = 20.0  # seconds
EXCHANGE = 60.0  # seconds without any progress

Floats = npt.NDArray[np.float32]


class Ring:
    """Ranks at some IPv4 addresses, in order, each connected to the next; two at least.

    `meet` returns once all ranks have called it.
    """

    def __init__(self, rank: int, addresses: Sequence[str], meet: Callable[[], None]) -> None:
        self._rank, self._size = rank, len(addresses)
        with socket.create_server((addresses[rank], PORT)) as listener:
            listener.settimeout(CONNECTING)
            meet()  # now all listen
            following = addresses[(rank + 1) % self._size], PORT
            self._following = socket.create_connection(following, CONNECTING)
            self._previous, _ = listener.accept()
        for connection in (self._previous, self._following):
            connection.settimeout(EXCHANGE)
        self._following.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def allreduce(self, array: Floats) -> None:
        """Sum an array over all ranks, in place."""
        chunks = np.array_split(array, self._size)
        received = np.empty_like(chunks[0])
        for step in range(self._size - 1):
            mine = chunks[(self._rank - step - 1) % self._size]
            self._exchange(chunks[(self._rank - step) % self._size], received[: len(mine)])
            mine += received[: len(mine)]
        for step in range(self._size - 1):
            self._exchange(
                chunks[(self._rank - step + 1) % self._size],
                chunks[(self._rank - step) % self._size],
            )

    def _exchange(self, out: Floats, into: Floats) -> None:
        """Send to the next rank while the previous one's chunk comes in."""
        sender = threading.Thread(target=self._following.sendall, args=(out,))
        sender.start()
        left = into.view(np.uint8).data
        while left:
            count = self._previous.recv_into(left)
            if not count:
                raise ConnectionError("the previous rank has hung up")
            left = left[count:]
        sender.join()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *error: object) -> None:
        self._following.close()
        self._previous.close()
