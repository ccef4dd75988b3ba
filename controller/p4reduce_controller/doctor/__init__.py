# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller doctor`: examines a set-up, and says how to repair what is wrong.

Each module examines one part. Imports all other folders but `cli`, and the worker's library, to
send a gradient as a worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p4reduce.control.controller_address import is_local
from p4reduce.control.tls import TlsFiles

from p4reduce_controller.doctor import clock, control_path, data_path, kernel, software, switch
from p4reduce_controller.doctor.finding import Finding, FindingStatus, failure
from p4reduce_controller.doctor.interface import fill

__all__ = ["DoctorTarget", "Finding", "FindingStatus", "examine"]


@dataclass(frozen=True)
class DoctorTarget:
    """A controller, a switch and an interface to examine.

    Attributes:
        address: of the controller.
        tls: files for the connection to it.
        switch: the address of a P4Runtime server; None: examine only what the controller reports.
        switch_tls: files for the connection to that server.
        interface: how a worker on this machine would reach the switch, or None. `{rank}` and the
            like are filled in as for a worker.
        state: the controller's state directory.
        timeout: seconds to wait for each answer.
    """

    address: str
    tls: TlsFiles | None
    switch: str | None
    switch_tls: TlsFiles | None
    interface: str | None
    state: Path
    timeout: float


def examine(target: DoctorTarget) -> Iterator[Finding]:
    """Yield findings as they are made. An exception during an examination becomes a finding."""
    answers = control_path.Answers()
    interface = fill(target.interface)
    examinations: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        (software.SECTION, software.examine),
        (kernel.SECTION, lambda: kernel.examine(interface.name)),
        (clock.SECTION, lambda: clock.examine(answers)),
        (
            control_path.SECTION,
            lambda: control_path.examine(
                target.address, target.tls, target.state, target.timeout, answers
            ),
        ),
        (
            switch.SECTION,
            lambda: switch.examine(
                target.switch,
                target.switch_tls,
                target.timeout,
                answers,
                near=is_local(target.address),
            ),
        ),
        (
            data_path.SECTION,
            lambda: data_path.examine(
                target.address, target.tls, interface, target.timeout, answers
            ),
        ),
    ]
    for section, examination in examinations:
        yield from _guarded(section, examination)


def _guarded(section: str, examination: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from examination()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        yield failure(section, "examination", text, "This is a bug of the doctor: report it.")
