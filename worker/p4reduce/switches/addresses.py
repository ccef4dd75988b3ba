# SPDX-License-Identifier: Apache-2.0
"""From `interface=` and `controller=` to the addresses of one or several switches."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from p4reduce import variables
from p4reduce.control.controller_address import default_address, parse_address
from p4reduce.control.names import MAX_NAME, ROOM_FOR_PARTS, SWITCH_NAME_PATTERN
from p4reduce.environment import Placement
from p4reduce.errors import ConfigurationError
from p4reduce.session.port import PORTS, Connect, PortShare
from p4reduce.transport import open_port, port_at_core, port_name

MAX_SWITCHES = 16
_COMMA = re.compile(r",(?!offload(?:,|$))")  # "veth0,offload" is one interface
_NAMED = re.compile(rf"(?P<switch>{SWITCH_NAME_PATTERN})=(?P<port>.+)")  # "a=veth0"
Texts = str | Sequence[str] | None


@dataclass(frozen=True)
class SwitchAddress:
    """The address of a switch and of its controller.

    Attributes:
        port: how this rank reaches the switch: an interface, unix:PATH, or udp:HOST:PORT.
        controller: the address of the switch's controller.
        switch: its name there; "" for the controller's only one.
        core: of the switch, from 0, if it has several.
        environ: has the secrets for both.
    """

    port: str
    controller: str
    switch: str = ""
    core: int = 0
    environ: Mapping[str, str] = field(
        default_factory=lambda: os.environ, compare=False, repr=False
    )

    def to_cores(self, names: Sequence[str]) -> list[SwitchAddress]:
        """Return the addresses of the switch's further cores at the same port, by name."""
        return [replace(self, switch=name, core=core) for core, name in enumerate(names, 1)]

    def connect(self, rank: int, engine: str) -> Connect:
        """Return a function that opens a port for a rank, for an engine of `ENGINES`."""

        def connect(udp_port: int) -> PortShare:
            port = port_at_core(self.port, self.core)
            return PORTS.connect(
                port, rank, engine, lambda: open_port(port, rank, udp_port, self.environ)
            )

        return connect


def switch_addresses(
    controller: Texts,
    interface: Texts,
    place: Placement,
    job: str,
    environ: Mapping[str, str] = os.environ,
) -> list[SwitchAddress]:
    """Return the address of each switch in the given order, which has to be the same on all ranks.

    Args:
        controller: as for `p4reduce.init`.
        interface: as for `p4reduce.init`.
        place: fills in an interface's placeholders.
        job: the name of the whole.
        environ: for what is not given.

    Raises:
        ConfigurationError: something is missing, named twice, or malformed.
    """
    given = _listed(interface, variables.INTERFACE, environ)
    named = [_NAMED.fullmatch(one) for one in given]
    switches = ["" if match is None else match["switch"] for match in named] or [""]
    given = [
        one if match is None else match["port"] for one, match in zip(given, named, strict=True)
    ]
    ports = [port_name(one, place.rank, place.local_rank) for one in given or (None,)]
    controllers = _listed(controller, variables.CONTROLLER, environ) or [default_address(environ)]
    what = "controller" if controller else variables.CONTROLLER
    for address in controllers:
        _check_address(what, address)
    _check_number(len(ports), f"{len(ports)} interfaces, so as many switches")
    if len(controllers) == 1 and all(switches):
        controllers *= len(ports)
    if len(controllers) != len(ports):
        raise ConfigurationError(
            f"{len(ports)} interface{'s'[: len(ports) != 1]} ({', '.join(ports)}) and "
            f"{len(controllers)} controller{'s'[: len(controllers) != 1]} "
            f"({', '.join(controllers)}): each switch takes one of both, in the same order; or "
            "one controller for all, and each switch's name before its interface, as in "
            "a=eth1,b=eth2"
        )
    owners = [
        f"{controller} (switch {switch})" if switch else controller
        for controller, switch in zip(controllers, switches, strict=True)
    ]
    for kind, some in (("interface", ports), ("controller", owners)):
        twice = next((one for one in some if some.count(one) > 1), None)
        if twice is not None:
            raise ConfigurationError(f"{kind} {twice} is given twice, for two switches")
    check_several(len(ports), job)
    return [
        SwitchAddress(*address, environ=environ)
        for address in zip(ports, controllers, switches, strict=True)
    ]


def check_several(switches: int, job: str) -> None:
    """Refuse too many switches, or too long a name of a job.

    Raises:
        ConfigurationError: says which.
    """
    _check_number(switches, f"{switches} switches and cores of them")
    if switches > 1 and len(job) > MAX_NAME - ROOM_FOR_PARTS:
        raise ConfigurationError(
            f"job {job!r} has a name of {len(job)} characters; with several switches "
            f"{MAX_NAME - ROOM_FOR_PARTS} are possible"
        )


def _check_number(switches: int, what: str) -> None:
    if switches > MAX_SWITCHES:
        raise ConfigurationError(f"{what}: {MAX_SWITCHES} are possible at most")


def _check_address(what: str, address: str) -> None:
    try:
        parse_address(address)
    except ValueError as error:
        raise ConfigurationError(f"{what}={address}: {error}") from None


def _listed(texts: Texts, variable: str, environ: Mapping[str, str]) -> list[str]:
    if texts is None:
        texts = environ.get(variable) or ()
    listed = _COMMA.split(texts) if isinstance(texts, str) else list(texts)
    if len(listed) > 1 and not all(text.strip() for text in listed):
        raise ConfigurationError(f"{variable} or what is given for it has an empty entry: {texts}")
    return [text.strip() for text in listed if text.strip()]
