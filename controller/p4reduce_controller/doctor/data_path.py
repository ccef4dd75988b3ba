# SPDX-License-Identifier: Apache-2.0
"""The way of a gradient: a job of one rank, from this machine through the switch and back."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import p4reduce
from p4reduce.control.tls import ENVIRONMENT, TlsFiles
from p4reduce.transport.udp import own_key, parse_udp

from p4reduce_controller.doctor.control_path import Answers
from p4reduce_controller.doctor.finding import Finding, Status, failure, note, ok, skipped, warning
from p4reduce_controller.doctor.interface import Interface

SECTION = "Data plane"
SUMS = "sums"
_UDP = "udp:"
_ELEMENTS = 64 * 256
_LEAST_MTU = 1088  # 1,102 bytes of frame less Ethernet's header

CURES: dict[type[p4reduce.P4ReduceError], str] = {
    p4reduce.AdmissionError: "See p4reduce-controller job list: slots may have run out.",
    p4reduce.SwitchUnreachableError: (
        "See that the interface is there and up, or that the switch runs with that port and no "
        "worker has it."
    ),
    p4reduce.P4ReduceTimeoutError: (
        "Frames do not come through. Is the interface wired to one of the ports that "
        "p4reduce-controller switch status lists? See p4reduce-controller switch counters: what "
        "is counted says how far they get."
    ),
    p4reduce.ControllerUnreachableError: "See Controller, above.",
    p4reduce.ConfigurationError: "Set --interface or the environment as the message says.",
}


def examine(
    address: str, tls: TlsFiles | None, interface: Interface, timeout: float, answers: Answers
) -> Iterator[Finding]:
    """Look at the interface, and reduce something by way of it."""
    if interface.given is None:
        yield skipped(
            SECTION, SUMS, "no interface is given", "Give --interface, or set P4REDUCE_INTERFACE."
        )
        return
    if interface.name is None:
        yield failure(SECTION, "interface", interface.error, CURES[p4reduce.ConfigurationError])
        return
    if interface.who:
        yield _filled(interface)
    if not interface.name.startswith("unix:"):
        by_udp = interface.name.startswith(_UDP)
        link = _udp(interface.name) if by_udp else _link(interface.name.removesuffix(",offload"))
        yield link
        if link.status is not Status.OK:
            return
    if answers.switch is None or not answers.switch.connected:
        yield skipped(SECTION, SUMS, "no controller, or it has no switch")
        return
    if answers.silent:
        yield skipped(SECTION, SUMS, "the switch does not answer its controller")
        return
    yield _reduce(address, tls, interface.name, timeout)


def _filled(interface: Interface) -> Finding:
    name = "pattern"
    found = f"{interface.given} is {interface.name} for {interface.who}"
    if interface.guessed:
        return note(
            SECTION,
            name,
            f"{found}; the environment does not say which rank this is",
            "For another one's set P4REDUCE_RANK, P4REDUCE_WORLD_SIZE and P4REDUCE_LOCAL_RANK.",
        )
    return ok(SECTION, name, f"{found}, as the environment says")


def _link(interface: str) -> Finding:
    name = "interface"
    directory = Path("/sys/class/net", interface)
    try:
        state = (directory / "operstate").read_text().strip()
        mtu = int((directory / "mtu").read_text())
    except (OSError, ValueError):
        return failure(
            SECTION, name, f"there is no interface {interface!r}", "ip link lists those there are."
        )
    if state not in ("up", "unknown"):
        return failure(SECTION, name, f"{interface} is {state}", f"ip link set {interface} up")
    if mtu < _LEAST_MTU:
        return failure(
            SECTION,
            name,
            f"{interface} has an MTU of {mtu}, and frames take {_LEAST_MTU}",
            f"ip link set {interface} mtu 1500",
        )
    return ok(SECTION, name, f"{interface} is up, MTU {mtu}")


def _udp(interface: str) -> Finding:
    name = "UDP port"
    address = interface.removeprefix(_UDP)
    try:
        host, port = parse_udp(address)
        key = own_key()
        places = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except p4reduce.ConfigurationError as error:
        return failure(SECTION, name, str(error), CURES[p4reduce.ConfigurationError])
    except OSError as error:
        cure = "See how the host of the switch is called: getent hosts HOST."
        return failure(SECTION, name, f"{interface}: {error.strerror or error}", cure)
    way = f"{interface} is UDP port {port} of {places[0][4][0]}"
    return ok(SECTION, name, f"{way}, {'with' if key else 'without'} a key")


def _reduce(address: str, tls: TlsFiles | None, interface: str, timeout: float) -> Finding:
    if tls is not None:
        # That is where workers have theirs.
        for name, path in zip(ENVIRONMENT, (tls.cert, tls.key, tls.ca), strict=True):
            os.environ[name] = str(path)
    data = np.arange(_ELEMENTS, dtype=np.int32)
    try:
        with p4reduce.init(
            rank=0,
            world_size=1,
            controller=address,
            job=f"doctor-{socket.gethostname()[:40]}-{os.getpid()}",
            timeout=timeout,
            interface=interface,
            slots=8,
        ) as comm:
            began = time.monotonic()
            total = comm.allreduce(data)
            took = time.monotonic() - began
            repeated = comm.stats.retransmissions
    except p4reduce.P4ReduceError as error:
        cures = (cure for kind, cure in CURES.items() if isinstance(error, kind))
        return failure(SECTION, SUMS, str(error), next(cures, "See docs/troubleshooting.md."))
    if not np.array_equal(total, data):
        return failure(
            SECTION,
            SUMS,
            f"{np.count_nonzero(total != data):,} of {_ELEMENTS:,} are wrong",
            "The switch or the path to it corrupts data. Do not train with it.",
        )
    blocks = _ELEMENTS // 256
    found = f"{blocks} blocks through {interface} and back in {took * 1e3:.1f} ms"
    if repeated > blocks // 4:
        return warning(
            SECTION,
            SUMS,
            f"{found}, {repeated} of them repeated",
            "Frames are lost, or the switch has not enough of its machine.",
        )
    return ok(SECTION, SUMS, f"{found}, all right")
