# SPDX-License-Identifier: Apache-2.0
"""A P4 program as machine code: compiled, loaded, with its state.

This module has addresses and calls; native/p4reduce_native/csrc/p4 explains them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref

from p4reduce_native.c_header import CHeader
from p4reduce_native.compile import compile_shared
from p4reduce_native.errors import NativeUnavailableError
from p4reduce_native.library import CSRC, load

from p4reduce_switch.state.queue_settings import QueueSettings

HEADER = CHeader("p4/control.h")
"""What Python sees of every compiled program."""

_ABI = HEADER.constants["P4R_PIPELINE_ABI"]
_COMMON = HEADER.constants["P4R_COMMON"]
_MAX_PORTS = HEADER.constants["P4R_QUEUE_PORTS"]
_PARTS = CSRC / "p4"
INCLUDE = (CSRC, _PARTS)


def sources_of(text: str) -> dict[str, str]:
    """Return the sources that are compiled together for a program whose generated C is `text`."""
    return {"program.c": text} | {
        path.name: path.read_text() for path in sorted(_PARTS.glob("*.c"))
    }


class NativeProgram:
    """A loaded program. It is freed when nothing refers to it.

    Args:
        text: the generated C.
        drop_port: what `mark_to_drop` sends to.
        stem: the beginning of the compiled file's name.

    Attributes:
        library: the compiled program. state: its `struct p4r_program`. common: the part of it that
            every program has, at its start.

    Raises:
        NativeUnavailableError: there is no compiler, or it cannot be loaded.
        CompileError: the compiler did not accept it.
        MemoryError: there is no memory for the state.
    """

    def __init__(self, text: str, drop_port: int, stem: str = "program") -> None:
        if sys.byteorder != "little":
            raise NativeUnavailableError("compiled programs need a little-endian processor")
        path = compile_shared(stem, sources_of(text), include=INCLUDE)
        self.library = HEADER.functions(load(path))
        if self.library.p4r_program_abi() != _ABI:
            raise NativeUnavailableError(f"{path} belongs to another version of p4reduce")
        state = self.library.p4r_program_new(drop_port)
        if not state:
            raise MemoryError("no memory for the state of the program")
        self.state: int = state
        self.common: int = self.object(_COMMON)
        self.library.p4r_seed(self.common, os.urandom(32))
        weakref.finalize(self, self.library.p4r_program_free, state)

    def object(self, number: int) -> int:
        """Return the address of a part. `Generated.objects` has the numbers."""
        address: int | None = self.library.p4r_program_object(self.state, number)
        if not address:
            raise LookupError(f"the compiled program has no part {number}")
        return address

    def set_queues(self, settings: QueueSettings) -> None:
        """Set up the egress queues of a program that has them."""
        ports = {*settings.port_depths, *settings.port_rates}
        elsewhere = _MAX_PORTS  # no port of its own
        if not self.library.p4r_set_queues(
            self.common, settings.priorities, settings.depth, settings.interval_ns(elsewhere)
        ):
            raise MemoryError("no memory for egress queues")
        for port in ports:
            self.library.p4r_set_queue(
                self.common, port, settings.depth_of(port), settings.interval_ns(port)
            )

    def address_of(self, function: str) -> int:
        """Return the address of a function."""
        address = ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value
        assert address is not None
        return address
