# SPDX-License-Identifier: Apache-2.0
"""How frames reach the switch: a packet socket on an interface, a Unix socket, or UDP.

Imports `wire` only; what is in the frames does not matter here.
"""

from __future__ import annotations

from p4reduce.transport.base import Transport
from p4reduce.transport.faulty import FaultPlan, FaultyTransport
from p4reduce.transport.link import LinkTransport
from p4reduce.transport.packet import PacketTransport
from p4reduce.transport.select import open_port, port_at_core, port_name

__all__ = [
    "FaultPlan",
    "FaultyTransport",
    "LinkTransport",
    "PacketTransport",
    "Transport",
    "open_port",
    "port_at_core",
    "port_name",
]
