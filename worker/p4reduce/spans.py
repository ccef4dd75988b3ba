# SPDX-License-Identifier: Apache-2.0
"""A rank's collectives as OpenTelemetry spans: one trace per collective, with a span per rank.

All ranks compute the trace's id from data that they share: the secret of the job's incarnation, the
number of the collective, and the tag of its frames. So nothing is sent.

A span is made when its collective is over, in a thread of its own. Neither the caller nor the
progress thread waits for a span processor. opentelemetry-api is needed, the extra `otel`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any

from p4reduce_common.threads import new_thread

from p4reduce.errors import ConfigurationError
from p4reduce.tensors.collective_trace import CollectiveTrace
from p4reduce.tensors.stream import Collective
from p4reduce.trace import waits

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, TracerProvider

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Collectives that are over and whose spans are not made yet; what comes then is left out."""

DRAIN = 5.0  # seconds in which the last spans are made when recording ends
_TRACE_BYTES, _SPAN_BYTES = 16, 8


def check_opentelemetry(what: str) -> None:
    """Raise ConfigurationError if opentelemetry-api is not installed. `what` needs it."""
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"{what} needs OpenTelemetry, which is not installed: pip install 'p4reduce[otel]'"
        ) from None


@dataclass(frozen=True)
class _Recorded:
    """What is kept of a collective: not itself, which holds its tensors."""

    routine: str
    attributes: Mapping[str, str | int | Sequence[int]]
    ids: bytes
    caller: SpanContext


class Spans:
    """The recording of spans, until this or its communicator is closed.

    Made by `Communicator.spans`.

    Args:
        provider: of tracers; None: the process's own, `opentelemetry.trace.get_tracer_provider()`.
        origin: bytes that identify the job on all its ranks.
        rank: of this process.
        size: of the job.

    Attributes:
        left_out: how many collectives have no span, because too many waited for theirs, or a span
            processor raised an exception.
    """

    def __init__(
        self, provider: TracerProvider | None, origin: bytes, rank: int, size: int
    ) -> None:
        from opentelemetry import trace

        self.left_out = 0
        self._trace = trace
        provider = provider or trace.get_tracer_provider()
        self._tracer = provider.get_tracer("p4reduce", version("p4reduce"))
        self._origin, self._rank, self._size = origin, rank, size
        self._open = True
        self._over: queue.SimpleQueue[tuple[_Recorded, CollectiveTrace] | None] = (
            queue.SimpleQueue()
        )
        self._maker = new_thread(self._make_all, f"p4reduce-spans-{rank}")
        self._maker.start()

    @property
    def open(self) -> bool:
        """Whether collectives are being recorded."""
        return self._open

    def add(self, collective: Collective, called: float, job: str) -> None:
        """Make a span of a collective when it is complete.

        Args:
            collective: not started yet.
            called: when its call began, in seconds on the monotonic clock.
            job: the job's name on its switch.
        """
        if not self._open:
            return
        call = collective.call
        attributes: dict[str, str | int | Sequence[int]] = {
            "p4reduce.job": job,
            "p4reduce.rank": self._rank,
            "p4reduce.ranks": self._size,
            "p4reduce.number": collective.number,
            "p4reduce.bytes": int(call.size * collective.dtype.itemsize),
            "p4reduce.dtype": call.dtype,
            "p4reduce.precision": collective.format.name.lower(),
            "p4reduce.blocks": collective.count,
            "p4reduce.tag": f"{collective.tag:#010x}",
        }
        if call.operation is not None:
            attributes["p4reduce.op"] = call.operation.name.lower()
        if call.name:
            attributes["p4reduce.name"] = call.name
        if call.part is not None:
            attributes["p4reduce.part"] = call.part.number
            attributes["p4reduce.parts"] = call.part.of
        caller = self._trace.get_current_span().get_span_context()
        record = collective.trace or CollectiveTrace(called, collective.started)
        recorded = _Recorded(call.routine, attributes, self._ids(collective), caller)
        record.on_end = functools.partial(self._put, recorded)
        collective.trace = record

    def close(self) -> None:
        """Make the spans of complete collectives within 5 s, and stop. Idempotent."""
        if self._open:
            self._open = False
            self._over.put(None)
        self._maker.join(DRAIN)

    def __enter__(self) -> Spans:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _ids(self, collective: Collective) -> bytes:
        """Return the ids of the trace and of the parent: the same on all ranks, by call and tag.

        Parts of a call, which go by several switches, are of one trace.
        """
        whole = replace(collective.call, part=None) if collective.call.part else collective.call
        tag = whole.fingerprint(collective.number, collective.format)
        data = collective.number.to_bytes(8, "big") + tag.to_bytes(4, "big")
        size = _TRACE_BYTES + _SPAN_BYTES
        return hashlib.blake2b(data, digest_size=size, key=self._origin).digest()

    def _put(self, recorded: _Recorded, record: CollectiveTrace) -> None:
        if self._over.qsize() < MOST_WAITING:
            self._over.put((recorded, record))  # never waits, and may be called within itself
        else:
            self.left_out += 1

    def _make_all(self) -> None:
        while (one := self._over.get()) is not None:
            try:
                self._make(*one)
            except Exception:  # noqa: PERF203 - of a span processor; the next span may be made
                self.left_out += 1
                log.exception("a collective's span is left out")

    def _make(self, recorded: _Recorded, record: CollectiveTrace) -> None:
        trace = self._trace
        clocks_apart = time.time_ns() - time.monotonic_ns()

        def wall(seconds: float) -> int:
            return int(seconds * 1e9) + clocks_apart

        common = trace.SpanContext(
            int.from_bytes(recorded.ids[:_TRACE_BYTES], "big"),
            int.from_bytes(recorded.ids[_TRACE_BYTES:], "big"),
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        attributes: dict[str, Any] = {
            **recorded.attributes,
            "p4reduce.retransmissions": record.repeated_frames,
        }
        span = self._tracer.start_span(
            recorded.routine,
            trace.set_span_in_context(trace.NonRecordingSpan(common)),
            attributes=attributes,
            links=[trace.Link(recorded.caller)] if recorded.caller.is_valid else [],
            start_time=wall(record.called),
        )
        if record.opened:
            span.add_event("has slots", timestamp=wall(record.opened))
        for rank, begin, until in waits(record, self._size, record.ended):
            about = {"p4reduce.rank": rank, "p4reduce.seconds": round(max(until - begin, 0.0), 6)}
            span.add_event("waited for a rank", about, timestamp=wall(until))
        if record.all_there:
            span.add_event("all ranks there", timestamp=wall(record.all_there))
        if record.error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, record.error))
        span.end(end_time=wall(record.ended))
