# SPDX-License-Identifier: Apache-2.0
"""Examines a gradient's path: a job of one rank, from this machine through the switch and back."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import numpy as np
import p4reduce
from p4reduce import variables
from p4reduce.control.tls import TlsFiles
from p4reduce.transport.registry import port_type

from p4reduce_controller.doctor.control_path import Answers
from p4reduce_controller.doctor.finding import Finding, failure, note, ok, skipped, warning
from p4reduce_controller.doctor.interface import Interface

SECTION = "Data plane"
SUMS = "sums"
_ELEMENTS = 64 * 256

CURES: dict[type[p4reduce.P4ReduceError], str] = {
    p4reduce.AdmissionError: "See p4reduce-controller job list: slots may have run out.",
    p4reduce.SwitchUnreachableError: (
        "See that the interface is there and up, or that the switch runs with that port and no "
        "worker has it."
    ),
    p4reduce.P4ReduceTimeoutError: (
        "Frames do not come through. Is the interface wired to one of the ports that "
        "p4reduce-controller switch status lists? See p4reduce-controller switch counters: the "
        "counts show how far they get."
    ),
    p4reduce.ControllerUnreachableError: "See Controller, above.",
    p4reduce.ConfigurationError: "Set --interface or the environment as the message says.",
}


def examine(
    address: str, tls: TlsFiles | None, interface: Interface, timeout: float, answers: Answers
) -> Iterator[Finding]:
    """Examine the interface, and reduce a small array through it."""
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
    kind, where = port_type(interface.name)
    for look in kind.look(where):
        if look.cure:
            yield failure(SECTION, look.what, look.found, look.cure)
            return
        yield ok(SECTION, look.what, look.found)
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


def _reduce(address: str, tls: TlsFiles | None, interface: str, timeout: float) -> Finding:
    if tls is not None:
        # That is where workers have theirs.
        for name, path in zip(variables.TLS, (tls.cert, tls.key, tls.ca), strict=True):
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
            "Frames are lost, or the switch gets too little processor time.",
        )
    return ok(SECTION, SUMS, f"{found}, all right")
