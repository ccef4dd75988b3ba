# SPDX-License-Identifier: Apache-2.0
"""Whether this host gets answers by a network, before its ranks join: firewalls are silent.

A switch or controller that has just ended is started again at the same port, so a refusal counts
only when the time is up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from p4reduce_common.polling import retry

from p4reduce import variables
from p4reduce.control.controller_address import parse_address
from p4reduce.errors import LaunchError
from p4reduce.transport.udp import ask_switch, parse_udp

_SECONDS = 20.0  # for an answer; a busy host is slow
_PAUSE = 0.1  # seconds between two tries where nobody listens


def check_ways(network: Mapping[str, str], own: str, seconds: float = _SECONDS) -> None:
    """Ask the controller and each switch on another host for an answer.

    Args:
        network: the variables of this rank.
        own: the address of this host.
        seconds: for each answer.

    Raises:
        LaunchError: something does not answer; names it and its port, and from where it was asked.
    """
    for way in network[variables.INTERFACE].split(","):
        name, _, port = way.rpartition("=")
        if port.startswith("udp:"):
            place = parse_udp(port.removeprefix("udp:"))
            what = f"{name or 'the switch'} at UDP port"
            _ask(ask_switch, what, place, own, seconds)
    controller = parse_address(network[variables.CONTROLLER])
    if controller is not None:
        what = "the controller at TCP port"
        _ask(_connect, what, controller, own, seconds)


def check_p4runtime(switches: Mapping[str, str], own: str, seconds: float = _SECONDS) -> None:
    """Ask switches on other hosts for an answer to this host's controller.

    Args:
        switches: their P4Runtime addresses, by their names.
        own: the address of this host.
        seconds: for each answer.

    Raises:
        LaunchError: as `check_ways`.
    """
    for name, address in switches.items():
        place = parse_address(address)
        assert place is not None, f"{name} is on another host, at {address}"
        _ask(_connect, f"{name} at TCP port", place, own, seconds)


def _connect(place: tuple[str, int], seconds: float) -> None:
    socket.create_connection(place, seconds).close()


def _ask(
    ask: Callable[[tuple[str, int], float], None],
    what: str,
    place: tuple[str, int],
    own: str,
    seconds: float,
) -> None:
    try:
        retry(lambda left: ask(place, left), ConnectionRefusedError, seconds, _PAUSE)
    except ConnectionRefusedError:
        why = f"nobody has listened there for {seconds:g} s"
    except TimeoutError:
        why = f"no answer within {seconds:g} s: does a firewall drop it, or the answer?"
    except OSError as error:
        why = str(error.strerror or error)
    else:
        return
    host, port = place
    raise LaunchError(f"from {own} to {what} {port} of {host}: {why}")
