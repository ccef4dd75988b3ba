# SPDX-License-Identifier: Apache-2.0
"""`comm.spans`: what OpenTelemetry's own SDK exports, of several ranks on a real switch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import p4reduce
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from p4reduce import spans as spans_module
from worker_system import DEADLINE, System, wait_for

pytestmark = pytest.mark.parametrize("system", ["embedded"], indirect=True)

RANKS = 3


class Recorder:
    """A provider per rank, as processes of their own would have, and what each exported."""

    def __init__(self, ranks: int = RANKS, **options: object) -> None:
        self.exporters = [InMemorySpanExporter() for _ in range(ranks)]
        self.providers = []
        for exporter in self.exporters:
            provider = TracerProvider(**options)  # type: ignore[arg-type]
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            self.providers.append(provider)

    def of(self, rank: int) -> Sequence[ReadableSpan]:
        return self.exporters[rank].get_finished_spans()


def about(span: ReadableSpan) -> dict[str, object]:
    """A span's attributes, without the prefix."""
    assert span.attributes is not None
    return {name.removeprefix("p4reduce."): value for name, value in span.attributes.items()}


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def recorded(
    system: System, work: Callable[[p4reduce.Communicator], object], **init: object
) -> Recorder:
    """What `work` on several ranks has left behind as spans."""
    recorder = Recorder()

    def traced(comm: p4reduce.Communicator) -> None:
        with comm.spans(recorder.providers[comm.rank]):
            work(comm)

    system.run(RANKS, traced, **init)
    return recorder


def test_a_collective_is_one_trace_of_all_ranks(system: System) -> None:
    def work(comm: p4reduce.Communicator) -> None:
        comm.allreduce(np.ones(1000, np.float32), name="gradient")
        comm.allreduce(np.ones(600), op="mean", precision="int16")
        comm.broadcast(np.arange(40), root=1)
        comm.barrier()

    recorder = recorded(system, work)
    names = ["allreduce", "allreduce", "broadcast", "barrier"]
    ids = [[trace_id(span) for span in recorder.of(rank)] for rank in range(RANKS)]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) == len(names)
    own = {span.context.span_id for rank in range(RANKS) for span in recorder.of(rank)}
    assert len(own) == RANKS * len(names)
    for rank in range(RANKS):
        spans = recorder.of(rank)
        assert [span.name for span in spans] == names
        first, second = about(spans[0]), about(spans[1])
        assert first["job"] == second["job"]
        assert (first["rank"], first["ranks"], first["number"]) == (rank, RANKS, 0)
        assert (first["bytes"], first["dtype"], first["op"]) == (4000, "float32", "sum")
        assert (first["precision"], first["name"]) == ("int32", "gradient")
        assert (second["bytes"], second["dtype"], second["op"]) == (4800, "float64", "mean")
        assert second["precision"] == "int16"
        for span in spans:
            assert span.start_time is not None
            assert span.end_time is not None
            times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
            assert times == sorted(times)
            assert [event.name for event in span.events][-1] == "all ranks there"
            assert span.status.status_code is trace.StatusCode.UNSET


def test_jobs_do_not_share_traces(system: System) -> None:
    """Their collectives have the same numbers and tags."""

    def work(comm: p4reduce.Communicator) -> None:
        comm.barrier()

    first, second = recorded(system, work), recorded(system, work)
    [one], [other] = first.of(0), second.of(0)
    assert about(one)["tag"] == about(other)["tag"]
    assert trace_id(one) != trace_id(other)


def test_the_callers_span_is_linked(system: System) -> None:
    recorder = Recorder()

    def work(comm: p4reduce.Communicator) -> int:
        tracer = recorder.providers[comm.rank].get_tracer("training")
        with comm.spans(recorder.providers[comm.rank]):
            with tracer.start_as_current_span("step") as step:
                handle = comm.allreduce_async(np.ones(10, np.float32))
            handle.wait()  # the step's span is over already
        return int(step.get_span_context().span_id)

    steps = system.run(RANKS, work)
    for rank, step in enumerate(steps):
        (span,) = (one for one in recorder.of(rank) if one.name == "allreduce")
        assert [link.context.span_id for link in span.links] == [step]


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_retransmissions_and_whom_it_waited_for(system: System, engine: str) -> None:
    """Rank 2 comes late: the others ask the switch, and are told."""
    recorder, comms = Recorder(), {}
    together = threading.Barrier(RANKS)

    def work(comm: p4reduce.Communicator) -> int:
        comms[comm.rank] = comm
        comm.barrier()
        together.wait(DEADLINE)
        before = comm.stats.retransmissions
        with comm.spans(recorder.providers[comm.rank]):
            if comm.rank == 2:
                wait_for(
                    lambda: min(comms[rank].stats.retransmissions for rank in (0, 1)) > 6,
                    "the others have asked several times",
                )
            comm.allreduce(np.ones(300, np.float32))
        return comm.stats.retransmissions - before

    again = system.run(RANKS, work, engine=engine)
    for rank in range(RANKS):
        [span] = recorder.of(rank)
        assert about(span)["retransmissions"] == again[rank]
        waited = {
            event.attributes["p4reduce.rank"]
            for event in span.events
            if event.name == "waited for a rank" and event.attributes
        }
        assert (2 in waited) == (rank != 2)


def test_an_error_is_the_spans_status(system: System) -> None:
    recorder = Recorder()

    def work(comm: p4reduce.Communicator) -> None:
        with comm.spans(recorder.providers[comm.rank]):
            large = np.full(10, 2**31 - 1, np.int32)
            with pytest.raises(p4reduce.LaneOverflowError):
                comm.allreduce(large)

    system.run(RANKS, work)
    for rank in range(RANKS):
        [span] = recorder.of(rank)
        assert span.status.status_code is trace.StatusCode.ERROR
        assert "LaneOverflowError" in str(span.status.description)


def test_ranks_sample_alike(system: System) -> None:
    """A sampler that goes by the trace's id keeps the same collectives on all ranks."""
    sampler = ParentBased(root=TraceIdRatioBased(0.5), remote_parent_sampled=TraceIdRatioBased(0.5))
    recorder = Recorder(sampler=sampler)

    def work(comm: p4reduce.Communicator) -> None:
        with comm.spans(recorder.providers[comm.rank]):
            for _ in range(64):
                comm.barrier()

    system.run(RANKS, work)
    numbers = [[about(span)["number"] for span in recorder.of(rank)] for rank in range(RANKS)]
    assert numbers[0] == numbers[1] == numbers[2]
    assert 0 < len(numbers[0]) < 64  # all or none of 64: a chance of 2 to the power of -63


class Stuck(SpanProcessor):
    """An exporter whose collector does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def on_end(self, span: ReadableSpan) -> None:
        self.answers.wait(DEADLINE)


def test_a_stuck_exporter_holds_nothing_up(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "MOST_WAITING", 5)
    monkeypatch.setattr(spans_module, "DRAIN", 0.05)
    stuck = Stuck()
    provider = TracerProvider()
    provider.add_span_processor(stuck)
    left_out = []

    def work(comm: p4reduce.Communicator) -> None:
        with comm.spans(provider) as spans:
            for _ in range(20):
                comm.barrier()
        left_out.append(spans.left_out)

    try:
        system.run(RANKS, work)
        assert min(left_out) >= 20 - 5 - 1
    finally:
        stuck.answers.set()


def test_it_ends_with_the_communicator(system: System) -> None:
    """What is over is exported before `close` returns; what came before `spans` is not there."""
    recorder = Recorder(1)
    comm = system.init(0, 1, system.new_job())
    comm.barrier()
    spans = comm.spans(recorder.providers[0])
    with pytest.raises(ValueError, match="being recorded already"):
        comm.spans(recorder.providers[0])
    comm.allreduce(np.ones(10))
    comm.close()
    assert not spans.open
    assert [span.name for span in recorder.of(0)] == ["allreduce"]
    with pytest.raises(p4reduce.ClosedError):
        comm.spans(recorder.providers[0])


def test_beside_a_trace(system: System, tmp_path: Path) -> None:
    """Both see the same collectives; one may end before the other."""
    recorder = Recorder(1)
    with system.init(0, 1, system.new_job()) as comm, comm.spans(recorder.providers[0]):
        with comm.trace(tmp_path / "trace.json"):
            comm.allreduce(np.ones(10))
        comm.allreduce(np.ones(20))
    assert [about(span)["bytes"] for span in recorder.of(0)] == [80, 160]


def test_by_the_environment(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """All communicators from their beginning, also those that `split` makes."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setenv("P4REDUCE_SPANS", "1")

    def work(comm: p4reduce.Communicator) -> None:
        with comm.dup() as other:
            other.barrier()

    system.run(2, work)
    provider.force_flush()
    barriers = [span for span in exporter.get_finished_spans() if span.name == "barrier"]
    assert len(barriers) == 2
    assert len({trace_id(span) for span in barriers}) == 1


def test_what_is_missing_or_wrong_is_said(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    with system.init(0, 1, system.new_job()) as comm:
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
        with pytest.raises(p4reduce.ConfigurationError, match=r"pip install 'p4reduce\[otel\]'"):
            comm.spans()
    monkeypatch.setenv("P4REDUCE_SPANS", "1")
    with pytest.raises(p4reduce.ConfigurationError, match="P4REDUCE_SPANS=1 needs OpenTelemetry"):
        system.init(0, 1, system.new_job())
    monkeypatch.setenv("P4REDUCE_SPANS", "yes")
    with pytest.raises(p4reduce.ConfigurationError, match="P4REDUCE_SPANS='yes'"):
        system.init(0, 1, system.new_job())
