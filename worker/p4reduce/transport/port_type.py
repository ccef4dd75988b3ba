# SPDX-License-Identifier: Apache-2.0
"""A type of port, as a worker sees it. `registry.py` has the types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from p4reduce.transport.base import Transport


@dataclass(frozen=True)
class Look:
    """A finding at one place, for the doctor.

    Attributes:
        what: was looked at.
        found: for people.
        cure: what to do; empty where nothing has to be done.
    """

    what: str
    found: str
    cure: str = ""


@dataclass(frozen=True)
class PortType:
    """A type of port, each in the module that has its transport.

    Attributes:
        scheme: how its name begins; "" for what begins like none.
        form: how it is written: "udp:HOST:PORT".
        open: opens it, by what stands behind the scheme, the own UDP port (0: any), and the
            environment, which may have a key.
        look: looks whether it can be opened, without opening it.
        at_core: changes its whole name to that of a further core, from 1; None: there are none.
        one_connection: whether it takes no second one, so that communicators share it.
        only_linux: whether it requires Linux.
        packet_socket: whether it requires a packet socket, which not every user may open.
    """

    scheme: str
    form: str
    open: Callable[[str, int, Mapping[str, str]], Transport]
    look: Callable[[str], Iterator[Look]]
    at_core: Callable[[str, int], str] | None = None
    one_connection: bool = True
    only_linux: bool = True
    packet_socket: bool = False
