# SPDX-License-Identifier: Apache-2.0
"""What a call costs that is recorded: `comm.trace`, and `comm.spans` with OpenTelemetry's SDK.

    python -m bench.worker.recording

One rank alone, whose calls do all but to send: the whole cost of recording is in the caller's
path and in the thread that makes spans. Turns alternate, and the least median of each way counts,
so other work on the machine meets all ways alike.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import p4reduce
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from p4reduce.communicator import Communicator
from p4reduce.options import CommunicatorOptions
from p4reduce.session.solo import Solo

_CALLS = 400  # in a turn
_PAUSE = 0.3  # seconds in which the spans of a turn are made, which no call pays for


class _Nowhere(SpanExporter):
    """Takes spans, and sends them nowhere."""

    def export(self, _: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        ways: dict[str, Callable[[Communicator], contextlib.AbstractContextManager[object]]] = {
            "off": lambda _: contextlib.nullcontext(),
            "trace": lambda comm: comm.trace(path),
            "spans": lambda comm: comm.spans(provider),
        }
        found: dict[str, list[float]] = {}
        for _, name in itertools.product(range(options.turns), ways):
            with (
                Communicator(Solo("recording"), CommunicatorOptions(60.0)) as comm,
                ways[name](comm),
            ):
                found.setdefault(name, []).append(_turn(comm))
                time.sleep(_PAUSE)
    off = min(found["off"])
    for name, medians in found.items():
        print(f"{name:6} {min(medians) * 1e6:6.1f} µs per call, {(min(medians) - off) * 1e6:+.1f}")


def _turn(comm: p4reduce.Communicator) -> float:
    """Return the median time of a call, in seconds."""
    numbers = np.ones(256, np.float32)
    times = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        comm.allreduce(numbers)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


if __name__ == "__main__":
    main()
