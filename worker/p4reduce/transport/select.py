# SPDX-License-Identifier: Apache-2.0
"""Opens the transport that the settings name."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping

from p4reduce_native.errors import NativeUnavailableError

from p4reduce import variables
from p4reduce.errors import ConfigurationError, SwitchUnreachableError
from p4reduce.transport.base import Transport, without_machine_code
from p4reduce.transport.faulty import FAULTS_ENVIRONMENT, FaultPlan, FaultyTransport
from p4reduce.transport.registry import PORT_TYPES, port_type

FIRST_PORT_ENVIRONMENT = "P4REDUCE_FIRST_PORT"
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE})  # files of this process, or of all


def port_name(interface: str | None, rank: int, local_rank: int) -> str:
    """Return the port of the switch, or the interface, that a setting names.

    Args:
        interface: the name of a network interface, or "unix:/path" or "udp:host:port" for a port
            of the embedded switch. With ",offload" behind an interface's name, packets have many
            frames. `{rank}`, `{local_rank}` and `{port}` are filled in; the port is the
            rank plus `$P4REDUCE_FIRST_PORT`, or plus 1. None: `$P4REDUCE_INTERFACE`.
        rank: within the job.
        local_rank: within this host.

    Raises:
        ConfigurationError: nothing says which interface, or it does not read as one.
    """
    given = interface or os.environ.get(variables.INTERFACE)
    if not given:
        raise ConfigurationError(
            f"no interface: pass interface= or set {variables.INTERFACE}, to the name of a "
            "network interface (eth0) or to a port of the embedded switch "
            "(unix:/run/p4reduce/port{port}.sock, udp:switch:7001+{rank}). p4reduce-lab up "
            "starts a switch and prints what to export; p4reduce-lab exec -n 4 -- python … sets it "
            "for the ranks that it starts"
        )
    try:
        return given.format(rank=rank, local_rank=local_rank, port=rank + _first_port())
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"interface {given!r}: {error!r}; {{rank}}, {{local_rank}} and {{port}} are filled in"
        ) from None


def port_at_core(name: str, core: int) -> str:
    """Return the name of a switch's port at one of its cores, for `open_port`.

    Args:
        name: as `port_name` returns it.
        core: from 0.

    Raises:
        ConfigurationError: it is a port of one core only.
    """
    if not core:
        return name
    kind, _ = port_type(name)
    if kind.at_core is None:
        several = " and ".join(kind.form for kind in PORT_TYPES if kind.at_core is not None)
        raise ConfigurationError(
            f"interface {name!r}: the switch has several cores (p4reduce-switch --cores), which "
            f"are reached by {several}"
        )
    return kind.at_core(name, core)


def _first_port() -> int:
    """The port of rank 0, where ports are counted."""
    text = os.environ.get(FIRST_PORT_ENVIRONMENT) or "1"
    if not text.isdecimal():
        raise ConfigurationError(
            f"{FIRST_PORT_ENVIRONMENT}={text!r} is not the number of a port, such as 5"
        )
    return int(text)


def open_port(
    name: str, rank: int, udp_port: int = 0, environ: Mapping[str, str] = os.environ
) -> Transport:
    """Open a transport.

    Args:
        name: as `port_name` returns it.
        rank: of this process at first; faults are drawn by it.
        udp_port: own, where the transport has one; 0: any.
        environ: has the key of UDP ports, if there is one.

    Returns:
        The transport, with faults injected where `$P4REDUCE_FAULTS` asks for them.

    Raises:
        SwitchUnreachableError: it cannot be opened.
        ConfigurationError: `$P4REDUCE_LINK` or `$P4REDUCE_FAULTS` does not read as it has to, there
            is no machine code, or the port requires Linux and this is none.
    """
    kind, where = port_type(name)
    if kind.only_linux and sys.platform != "linux":
        raise ConfigurationError(
            f"interface {name!r} requires Linux; this is {sys.platform}: only UDP ports of the "
            "embedded switch (udp:switch:7001+{rank}) can be reached from here"
        )
    faults = os.environ.get(FAULTS_ENVIRONMENT)
    plan = FaultPlan.parse(faults, rank=rank) if faults else None  # before anything is open
    try:
        transport = kind.open(where, udp_port, environ)
    except NativeUnavailableError as error:
        raise without_machine_code(error) from None
    except OSError as error:
        if error.errno not in _SCARCE:
            raise
        raise SwitchUnreachableError(
            f"{name}: {error.strerror}: `ulimit -n` shows this process's limit, and "
            "`sysctl fs.file-max` that of all"
        ) from None
    return transport if plan is None else FaultyTransport(transport, plan)
