# SPDX-License-Identifier: Apache-2.0
"""A loaded P4 program that runs packets as machine code.

The Python objects of `Pipeline` remain the authority for the control plane, and each change is
copied into the program's memory. Counters, registers, meters and statistics are views of that
memory. Only the data plane's thread uses it.
"""

from __future__ import annotations

import ctypes
import struct

from p4reduce_native.loop import NativeEntry

from p4reduce_switch.codegen_c import GeneratedC, NotNativeError
from p4reduce_switch.native.cells import NativeStats, counts_at, register_cells
from p4reduce_switch.native.copies import NativeCloneSessions, NativeMulticastGroups
from p4reduce_switch.native.events import NativeDigest, serve_events
from p4reduce_switch.native.kept import generated_for
from p4reduce_switch.native.meters import NativeMeterArray
from p4reduce_switch.native.program import NativeProgram
from p4reduce_switch.native.tables import NativeIndex, NativeValueSet
from p4reduce_switch.pipeline import Pipeline, Process
from p4reduce_switch.program.ir import Program
from p4reduce_switch.state.tables import Table

_HEAD = struct.Struct("=II")


class NativePipeline(Pipeline):
    """A P4 program as machine code; otherwise like `Pipeline`.

    Attributes:
        source: the generated C.

    Raises:
        LoadError: the program cannot be loaded, with construct and source line.
        NotNativeError: it has a construct that cannot become machine code, or that the compiler
            does not accept.
        NativeUnavailableError: there is no compiler, or machine code is turned off.
    """

    def _make_process(self, config: bytes | str, program: Program) -> Process:
        spec = program.intrinsic["egress_spec"]
        if not 0 <= self.drop_port < 1 << min(spec.width, 32):
            raise NotNativeError(f"the drop port {self.drop_port}, which egress_spec cannot hold")
        settings = self.queue_settings
        generated = generated_for(config, program, with_queues=not settings.is_default)
        self.source = generated.source
        native = NativeProgram(generated.source, self.drop_port)
        native.library.p4r_set_start(native.common, max(self.timers.clock(), 0))
        self._native = native
        self._events = generated.events
        self._queued = generated.queued
        if generated.queued:
            native.set_queues(settings)
        self._move_state(native, generated)
        self.native = NativeEntry(
            process=native.address_of("p4r_program_process"),
            events=native.address_of("p4r_program_events"),
            state=native.state,
            release=native.address_of("p4r_program_release") if generated.queued else None,
        )
        return self._run

    @property
    def has_queues(self) -> bool:
        return self._queued

    def release(self) -> list[tuple[int, bytes]]:
        if not self._queued:
            return []
        native = self._native
        due, used = ctypes.c_uint64(), ctypes.c_uint64()
        address = native.library.p4r_run_due(
            native.state, self.timers.clock(), ctypes.byref(due), ctypes.byref(used)
        )
        return self._copies(address, used.value)

    def serve_events(self) -> None:
        """Handle the events that the program has left: digests, messages, failed assertions."""
        serve_events(self._native, self._events, self.digests)

    def _run(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        native = self._native
        used = ctypes.c_uint64()
        frame = bytes(frame)
        address = native.library.p4r_run(
            native.state, port, frame, len(frame), self.timers.clock(), ctypes.byref(used)
        )
        return self._copies(address, used.value)

    def _copies(self, address: int, used: int) -> list[tuple[int, bytes]]:
        """What a run has collected."""
        copies = []
        if used:
            data = ctypes.string_at(address, used)
            at = 0
            while at < len(data):
                egress_port, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size
                copies.append((egress_port, data[at : at + length]))
                at += length
        if self._native.library.p4r_program_events(self._native.state):
            self.serve_events()
        return copies

    # -- State -------------------------------------------------------------------------------------

    def _move_state(self, native: NativeProgram, generated: GeneratedC) -> None:
        """Replace everything that packets change or look at by what is in the program's memory."""

        def place(kind: str, name: str) -> int:
            return native.object(generated.objects[kind, name])

        for name, table in self.tables.items():
            self._move_table(native, table, place("table", name))
        for name, counter in self.counters.items():
            if counter.table is None:
                counter.packets = counts_at(native, place("packets", name), counter.size)
                counter.bytes = counts_at(native, place("octets", name), counter.size)
        for name, register in self.registers.items():
            cells = place("cells", name)
            register.cells = register_cells(native, cells, register.width, register.size)
        clock = self.timers.clock
        self.meters = {
            name: NativeMeterArray(
                array, native, clock, place("meters", name) if array.table is None else 0
            )
            for name, array in self.meters.items()
        }
        self.digests = {
            name: NativeDigest(name, self.timers, native, place("digest_wanted", name))
            for name in self.digests
        }
        self.value_sets = {
            name: NativeValueSet(value_set, native, place("value_set", name))
            for name, value_set in self.value_sets.items()
        }
        self.multicast = NativeMulticastGroups(native)
        self.clone_sessions = NativeCloneSessions(native)
        self.stats = NativeStats(native)

    def _move_table(self, native: NativeProgram, table: Table, address: int) -> None:
        # Negative arguments take one more bit, for the sign.
        widths = [
            [width + (number in info.negative) for number, (_, width) in enumerate(info.params)]
            for info in table.actions.values()
        ]
        index = NativeIndex(native, address, table.key, widths)
        try:
            table.move_to(index)
        except ValueError as error:
            raise NotNativeError(f"table {table.name}: {error}") from None
        index.fix(table.is_const)
