# SPDX-License-Identifier: Apache-2.0
"""What a call costs that is recorded: `comm.trace`, and `comm.spans` with OpenTelemetry's SDK.

    python -m bench.worker.recording

One rank alone, whose calls do all but to send: the whole cost of recording is in the caller's
path and in the thread that makes spans. Turns alternate, and the least median of each way counts,
so other work on the machine meets all ways alike.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from p4reduce.communicator import Communicator
from p4reduce.options import CommunicatorOptions
from p4reduce.session.solo import Solo

from bench.measure import in_turns, timed
from bench.program import read_options, run, tell

_CALLS = 400  # in a turn
_PAUSE = 0.3  # seconds in which the spans of a turn are made, which no call pays for


class _Nowhere(SpanExporter):
    """Takes spans, and sends them nowhere."""

    def export(self, _: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def turn(record: Callable[[Communicator], contextlib.AbstractContextManager[object]]) -> float:
    """Return the median time of a call, in microseconds."""
    numbers = np.ones(256, np.float32)
    with Communicator(Solo("recording"), CommunicatorOptions(60.0)) as comm, record(comm):
        times = [timed(partial(comm.allreduce, numbers)) for _ in range(_CALLS)]
        time.sleep(_PAUSE)
    return 1e6 * statistics.median(times)


def main() -> None:
    options = read_options(__doc__, turns=30)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        ways = {
            "off": partial(turn, lambda _: contextlib.nullcontext()),
            "trace": partial(turn, lambda comm: comm.trace(path)),
            "spans": partial(turn, lambda comm: comm.spans(provider)),
        }
        least = {name: min(medians) for name, medians in in_turns(ways, options.turns).items()}
    rows = [{"name": name, "us_per_call": us, "more_us": us - least["off"]}
            for name, us in least.items()]  # fmt: skip
    tell(options, rows)


if __name__ == "__main__":
    run(main)
