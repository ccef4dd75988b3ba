# SPDX-License-Identifier: Apache-2.0
"""Frames taken apart by scapy: once this is imported, scapy finds `Aggregation` behind UDP.

Apart from `format`, since scapy's Ethernet and IP layers read all interfaces and routes of the
machine when they are imported; neither the library nor the controller needs them.

    >>> from scapy.layers.l2 import Ether
    >>> from p4reduce.wire import format as wire
    >>> from p4reduce.wire.dissect import Aggregation
    >>> here = wire.Endpoint("02:00:00:00:00:01", "10.77.0.1", 49152)
    >>> there = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
    >>> frame = wire.template(here, there, Aggregation(kind=wire.FrameKind.HELLO, job=7))
    >>> Ether(frame)[Aggregation].job
    7
"""

from __future__ import annotations

from scapy.layers.inet import UDP
from scapy.packet import bind_layers

from p4reduce.wire.format import AGGREGATION_PORT
from p4reduce.wire.layer import Aggregation

__all__ = ["Aggregation"]

bind_layers(UDP, Aggregation, dport=AGGREGATION_PORT)
bind_layers(UDP, Aggregation, sport=AGGREGATION_PORT)
