# SPDX-License-Identifier: Apache-2.0
"""Free ports of this host: any, or those of a range that a firewall lets through."""

from __future__ import annotations

import re
import secrets
import socket

from p4reduce_common.polling import attempts

from p4reduce_lab.errors import ArgumentsError, LabError
from p4reduce_lab.switches.udp_ports import bound, free_udp_ports, is_free

_RANGE = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_LEAST, _MOST = 1024, 65535
_PATIENCE = 10.0  # seconds for ports of a job that is about to end
_PAUSE = 0.1


class FreePorts:
    """Gives ports that nobody has, each once.

    Args:
        host: an IP address of this host.
        within: a range like "7000-7063"; "": any ports.

    Raises:
        ArgumentsError: it is no such range.
    """

    def __init__(self, host: str, within: str) -> None:
        self._host = host
        self._within = within
        self._left: list[int] = []
        if within:
            match = _RANGE.fullmatch(within)
            first, last = map(int, match.groups()) if match else (0, 0)
            if not _LEAST <= first <= last <= _MOST:
                raise ArgumentsError(
                    f"P4REDUCE_PORTS={within!r}: a range within {_LEAST}-{_MOST} is needed, such "
                    "as 7000-7063"
                )
            self._left = list(range(first, last + 1))

    def udp(self, count: int) -> list[int]:
        """Return that many UDP ports in a row. Raises LabError: there are too few."""
        if not self._within:
            first = free_udp_ports(self._host, count) if count else 0
            return list(range(first, first + count))
        return self._take(count, socket.SOCK_DGRAM) if count else []

    def tcp(self) -> int:
        """Return a TCP port. Raises LabError: there is none."""
        if self._within:
            return self._take(1, socket.SOCK_STREAM)[0]
        with bound(self._host, 0, socket.SOCK_STREAM) as probe:
            return int(probe.getsockname()[1])

    def _take(self, count: int, kind: socket.SocketKind) -> list[int]:
        for _ in attempts(_PATIENCE, _PAUSE):
            free = {port for port in self._left if is_free(self._host, port, kind)}
            rows = [
                range(first, first + count)
                for first in free
                if all(port in free for port in range(first, first + count))
            ]
            if rows:
                # Not always the first one: another job may start here at this moment.
                row = secrets.choice(rows)
                self._left = [port for port in self._left if port not in row]
                return list(row)
        kinds = "UDP" if kind == socket.SOCK_DGRAM else "TCP"
        raise LabError(
            f"P4REDUCE_PORTS={self._within}: of these, {len(free)} {kinds} ports of "
            f"{self._host} are free, and {count} in a row are needed: `ss -tuln` shows "
            "what is in use; give a larger range"
        )
