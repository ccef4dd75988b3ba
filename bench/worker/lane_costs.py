# SPDX-License-Identifier: Apache-2.0
"""Processor time per number to measure and encode a tensor, by lanes, with and without feedback.

python -m bench.worker.lane_costs [--elements 4194304] [--repeat 7]

No frame is sent: it is what a rank computes before its blocks leave. Medians of interleaved runs.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.machine_code import Library, native_library
from p4reduce.ring.lane_codec import Codec
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from p4reduce.wire.calls import Operation
from p4reduce.wire.frames import FrameBuffer

from bench.worker.costs import nanoseconds, read_options

_RANKS = 3
_AT_A_TIME = 64  # blocks


def encode(
    library: Library, array: npt.NDArray[Any], precision: str | None, residual: Any
) -> float:
    """Return the seconds of processor time for one tensor, in place."""
    begin = time.process_time()
    plan = plans.allreduce(
        array, Operation.MEAN, None, array, precision, 1, residual, world_size=_RANKS
    )
    collective = Collective(
        plan.call,
        plan.source,
        plan.target,
        sequence=0,
        slots=128,
        timeout=60.0,
        lane_format=plan.lane_format,
        noise=plan.noise(0, 0),
    )
    codec = Codec(library, collective, _RANKS, FrameBuffer(_AT_A_TIME))
    rows = np.arange(_AT_A_TIME)
    for first in range(0, collective.count, _AT_A_TIME):
        blocks = np.arange(first, min(first + _AT_A_TIME, collective.count))
        codec.encode(blocks, collective.exponents[blocks], rows[: len(blocks)])
    return time.process_time() - begin


def main() -> None:
    given = read_options(__doc__)
    library = native_library()
    if library is None:
        raise SystemExit("there is no machine code here: nothing to measure")
    original = np.random.default_rng(1).standard_normal(given.elements).astype(np.float32)
    residual = np.zeros_like(original)

    def once(precision: str | None, kept: Any) -> float:
        return encode(library, original.copy(), precision, kept)

    cases = {"int32": functools.partial(once, None, None)}
    for name in ("int16", "int8", "int4"):
        cases[name] = functools.partial(once, name, None)
        cases[f"{name}, residual"] = functools.partial(once, name, residual)
    print("| lanes | ns per number |\n| --- | --- |")
    for name, each in nanoseconds(cases, given).items():
        print(f"| {name} | {each:.1f} |")


if __name__ == "__main__":
    main()
