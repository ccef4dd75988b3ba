# SPDX-License-Identifier: Apache-2.0
"""The types of ports for workers.

To add one, write a module with a `PortType`, and an entry here. The switch's side has a registry of
its own: `p4reduce_switch/ports/registry.py`.
"""

from __future__ import annotations

from p4reduce.transport.link import UNIX
from p4reduce.transport.packet import INTERFACE
from p4reduce.transport.port_type import PortType
from p4reduce.transport.udp import UDP

PORT_TYPES: tuple[PortType, ...] = (UNIX, UDP, INTERFACE)
"""The one without a scheme is last."""


def port_type(name: str) -> tuple[PortType, str]:
    """Return the type of a port, and the text after its scheme."""
    kind = next(kind for kind in PORT_TYPES if name.startswith(kind.scheme))
    return kind, name.removeprefix(kind.scheme)
