# SPDX-License-Identifier: Apache-2.0
"""Events that a compiled program leaves for Python: digests, log messages, failed assertions."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence

from p4reduce_switch.codegen_c import PythonEvent
from p4reduce_switch.messages import log_assertion, log_endless_loop, log_msg
from p4reduce_switch.native.program import NativeProgram
from p4reduce_switch.state.digests import Digest, DigestConfig
from p4reduce_switch.state.timers import Timers

log = logging.getLogger(__name__)


class NativeDigest(Digest):
    """A digest. Machine code collects samples only on request.

    `wanted`: the address of the flag that requests samples.
    """

    def __init__(self, name: str, timers: Timers, program: NativeProgram, wanted: int) -> None:
        super().__init__(name, timers)
        self._wanted = ctypes.c_uint32.from_address(wanted)
        self._program = program

    def configure(self, config: DigestConfig | None) -> None:
        super().configure(config)
        self._wanted.value = config is not None


def serve_events(
    program: NativeProgram, events: Sequence[PythonEvent], digests: Mapping[str, Digest]
) -> None:
    """Handle the events that wait."""
    used, lost = ctypes.c_uint32(), ctypes.c_uint64()
    address = program.library.p4r_take_events(
        program.common, ctypes.byref(used), ctypes.byref(lost)
    )
    data = ctypes.string_at(address, 8 * used.value)
    if lost.value:
        log.warning("%d digests and messages of the program were lost", lost.value)
    at = 0
    failed: list[Exception] = []
    while at < len(data):
        event = events[int.from_bytes(data[at : at + 8], "little")]
        at += 8
        values = []
        for words, signed in event.values:
            values.append(int.from_bytes(data[at : at + 8 * words], "little", signed=signed))
            at += 8 * words
        try:
            _serve(event, values, digests)
        except Exception as error:  # the program has given the others up as well
            failed.append(error)
    if failed:
        raise failed[0]


def _serve(event: PythonEvent, values: Sequence[int], digests: Mapping[str, Digest]) -> None:
    if event.kind == "digest":
        digests[event.text].learn(*values)
    elif event.kind == "log":
        log_msg(event.text, values)
    elif event.kind == "endless":
        log_endless_loop(event.text)
    else:
        log_assertion(event.kind, event.text)
