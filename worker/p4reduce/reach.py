# SPDX-License-Identifier: Apache-2.0
"""Whether this rank gets answers by a network, before it joins: firewalls are silent."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from p4reduce import variables
from p4reduce.control.controller_address import parse_address
from p4reduce.errors import LaunchError
from p4reduce.transport.udp import ask_switch, parse_udp

_SECONDS = 20.0  # for an answer; a busy host is slow


def check_ways(network: Mapping[str, str], own: str) -> None:
    """Ask the controller and each switch on another host for an answer.

    Args:
        network: the variables of this rank.
        own: the address of this host.

    Raises:
        LaunchError: something does not answer; names the port, and from where it was asked.
    """
    for way in network[variables.INTERFACE].split(","):
        port = way.rpartition("=")[2]
        if port.startswith("udp:"):
            place = parse_udp(port.removeprefix("udp:"))
            try:
                ask_switch(place, _SECONDS)
            except OSError as error:
                raise _silent("UDP", place, own, error) from None
    controller = parse_address(network[variables.CONTROLLER])
    if controller is not None:
        try:
            socket.create_connection(controller, _SECONDS).close()
        except OSError as error:
            raise _silent("TCP", controller, own, error) from None


def _silent(kind: str, place: tuple[str, int], own: str, error: OSError) -> LaunchError:
    host, port = place
    if isinstance(error, TimeoutError):
        why = f"no answer within {_SECONDS:g} s: does a firewall drop it, or the answer?"
    else:
        why = str(error.strerror or error)
    return LaunchError(f"from {own} to {kind} port {port} of {host}: {why}")
