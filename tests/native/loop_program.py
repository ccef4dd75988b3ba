# SPDX-License-Identifier: Apache-2.0
"""A program in C, as small as can be, that stands for a compiled pipeline where a test is about the
loop; and what `DataPlane` asks of a pipeline besides."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from p4reduce_native.c_header import CHeader
from p4reduce_native.compile import compile_shared
from p4reduce_native.library import CSRC, load
from p4reduce_native.loop import NativeEntry
from p4reduce_switch.state.pipeline_stats import PipelineStats
from p4reduce_switch.state.timers import Timers

TEXT = r"""
/* What the first byte of the payload says is done: 'w': as by a wire, to port 3 - p; 'c': to the
 * CPU port; 'x': to a port that does not exist; 'm': to all of ports 1 to 8, and the wire's at the
 * end; 'e': an event for Python; 'd': dropped; 't', 'T': the frame grows to 2,048 bytes, or to
 * 2,049. From the CPU port (255) frames go to port 2. */
#include <stdlib.h>
#include <string.h>
#include "pipeline_abi.h"

struct p4r_program { uint32_t events; uint64_t last_ns; };

uint32_t p4r_program_abi(void) { return P4R_PIPELINE_ABI; }
struct p4r_program *p4r_program_new(uint32_t drop_port)
{
    (void)drop_port;
    return calloc(1, sizeof(struct p4r_program));
}
void p4r_program_free(struct p4r_program *program) { free(program); }
uint32_t p4r_program_events(const struct p4r_program *program) { return program->events; }
void clear_events(struct p4r_program *program) { program->events = 0; }
uint64_t last_ns(const struct p4r_program *program) { return program->last_ns; }

void p4r_program_process(struct p4r_program *program, uint32_t port, const uint8_t *frame,
                         uint32_t length, uint64_t now_ns, p4r_emit emit, void *context)
{
    const uint8_t what = length > 14 ? frame[14] : 'w';
    uint8_t grown[4096];
    program->last_ns = now_ns;
    if (port == 255) {
        emit(context, 2, frame, length);
        return;
    }
    switch (what) {
    case 'c':
        emit(context, 255, frame, length);
        break;
    case 'x':
        emit(context, 9, frame, length);
        emit(context, UINT32_MAX, frame, length);
        break;
    case 'm':
        for (uint32_t copy = 1; copy <= 8; copy++)
            emit(context, copy, frame, length);
        emit(context, 3 - port, frame, length);
        break;
    case 'e':
        program->events++;
        break;
    case 'd':
        break;
    case 't':
    case 'T':
        memset(grown, 0xee, sizeof grown);
        memcpy(grown, frame, length);
        emit(context, 3 - port, grown, what == 't' ? 2048 : 2049);
        break;
    default:
        emit(context, 3 - port, frame, length);
    }
}
"""


def compile_program() -> Path:
    """Return the compiled program."""
    return compile_shared("loop_program", {"loop_program.c": TEXT}, include=[CSRC])


class NativeProgram:
    """As much of a pipeline as the data plane uses."""

    def __init__(self) -> None:
        self._library: Any = load(compile_program())
        self._library.clear_events.argtypes = (ctypes.c_void_p,)
        self._library.last_ns.argtypes = (ctypes.c_void_p,)
        self._library.last_ns.restype = ctypes.c_uint64
        functions = CHeader("pipeline_abi.h").functions(self._library)
        self._state: int = functions.p4r_program_new(511)
        self.native = NativeEntry(
            process=address(functions.p4r_program_process),
            events=address(functions.p4r_program_events),
            state=self._state,
        )
        self.stats = PipelineStats()
        self.timers = Timers()
        self.queues = None
        self.has_queues = False
        self.events_served = 0

    def serve_events(self) -> None:
        self._library.clear_events(self._state)
        self.events_served += 1

    @property
    def last_ns(self) -> int:
        return int(self._library.last_ns(self._state))


def address(function: Any) -> int:
    pointer = ctypes.cast(function, ctypes.c_void_p).value
    assert pointer is not None
    return pointer
