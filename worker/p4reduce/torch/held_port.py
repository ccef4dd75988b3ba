# SPDX-License-Identifier: Apache-2.0
"""A port of the switch that a process keeps while its groups, its rank and its peers change.

`P4REDUCE_INTERFACE` names a port by a rank's number. A replica's rank changes whenever another one
comes or goes, so here any free port is taken, and kept. Groups of the process share it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from p4reduce.environment import Placement
from p4reduce.errors import SwitchUnreachableError
from p4reduce.session.machine import NATIVE
from p4reduce.session.port import PortShare
from p4reduce.switches.addresses import switch_addresses
from p4reduce.transport import port_name
from p4reduce.transport.registry import port_type

_MOST = 64  # ports that are tried

_lock = threading.Lock()
_held: set[str] = set()  # by this process


class HeldPort:
    """A port of each switch, at one number. It is taken by the first `take`."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._shares: list[PortShare] = []

    def take(self, first: int) -> str:
        """Return the port's name for `p4reduce.init(interface=)`, the same as before if it works.

        Args:
            first: number of the port to try first, from 0. Others follow.

        Raises:
            ConfigurationError: nothing says where the switch's ports are.
            SwitchUnreachableError: no port is free, or the switch does not answer.
        """
        if self._name is not None:
            if all(share.port.error is None for share in self._shares):
                return self._name
            self.release()
        names = [port_name(None, (first + n) % _MOST, (first + n) % _MOST) for n in range(_MOST)]
        refused: SwitchUnreachableError | None = None
        for name in dict.fromkeys(names):
            with _lock:
                if name in _held:
                    continue
                _held.add(name)
            try:
                self._shares = _opened(name)
            except SwitchUnreachableError as error:
                refused = refused or error
            except BaseException:
                _held.discard(name)
                raise
            else:
                self._name = name
                return name
            _held.discard(name)
        raise SwitchUnreachableError(
            f"none of {len(set(names))} ports of the switch is free, from {names[0]} on"
            + (f": {refused}" if refused else ", because this process has them all")
        )

    def release(self) -> None:
        """Give the port back. Idempotent."""
        name, self._name = self._name, None
        shares, self._shares = self._shares, []
        for share in shares:
            share.close()
        if name is not None:
            _held.discard(name)


def _opened(name: str) -> list[PortShare]:
    """Return shares of a port, of each switch; none of an interface, which takes several jobs."""
    shares = []
    with ExitStack() as undo:
        for address in switch_addresses(None, name, Placement(0, 1, 0), ""):
            if port_type(address.port)[0].one_connection:
                shares.append(address.connect(0, NATIVE)(0))
                undo.callback(shares[-1].close)
        undo.pop_all()
    return shares
