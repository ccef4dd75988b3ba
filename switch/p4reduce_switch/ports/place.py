# SPDX-License-Identifier: Apache-2.0
"""The place of a port, in the `--port` notation, and how to open it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from p4reduce_switch.ports.capture import Captures
    from p4reduce_switch.ports.core import Core
    from p4reduce_switch.ports.port import SwitchPort


@dataclass(frozen=True, slots=True)
class PortOptions:
    """Options for all ports of a command line.

    Attributes:
        captures: how frames are captured, or None.
        udp_key: the key that workers at UDP ports must know; empty: none.
        core: the core that the ports belong to; None: the only one.
    """

    captures: Captures | None = None
    udp_key: bytes = b""
    core: Core | None = None


@dataclass(frozen=True, slots=True)
class PortPlace(ABC):
    """The place of a port: the text after `NUMBER=`.

    Each kind of port has a subclass in its module, and an entry in `registry.py`.
    """

    scheme: ClassVar[str]
    """How it begins, or "" for what begins like none."""
    form: ClassVar[str]
    """How it is written: "udp:HOST:PORT"."""
    purpose: ClassVar[str]
    """What it is for, in the words of `--help`."""

    @classmethod
    @abstractmethod
    def parse(cls, where: str) -> PortPlace:
        """Parse the text after the scheme. Raises ValueError with a message that continues
        "'1=udp:x' …".
        """

    @abstractmethod
    def __str__(self) -> str:
        """As it is written."""

    @abstractmethod
    def open(self, spec: PortSpec, options: PortOptions) -> SwitchPort:
        """Open the port. Raises PortError."""

    @property
    def is_unique(self) -> bool:
        """Whether only one port can have this place. False for UDP port 0, which is drawn."""
        return True

    def after(self, steps: int) -> PortPlace:
        """Return the place of a later port in a range. Raises ValueError as `parse` does."""
        raise ValueError("is a range of ports, which is for udp:HOST:PORT alone")

    def at_core(self, core: int) -> PortPlace:
        """Return the place of this port at a core, from 0, of a switch with several cores.

        Raises ValueError with a message that continues "'1=eth1' …".
        """
        raise ValueError("cannot be of several cores: udp:HOST:PORT and unix:PATH can")


@dataclass(frozen=True, slots=True)
class PortSpec:
    """A port of a `--port` option."""

    number: int
    place: PortPlace

    def __str__(self) -> str:
        return f"{self.number}={self.place}"
