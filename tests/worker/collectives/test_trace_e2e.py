# SPDX-License-Identifier: Apache-2.0
"""`comm.trace`: what is in the file, by machine code and by Python."""

from __future__ import annotations

import gc
import json
import re
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import p4reduce
import pytest
from p4reduce.trace import Trace
from worker_system import System, wait_for

EMBEDDED = pytest.mark.parametrize("system", ["embedded"], indirect=True)

Span = tuple[float, float]


def spans(path: Path) -> dict[str, dict[str, list[Span]]]:
    """Read a trace: for each collective its parts by name, in seconds."""
    whole = json.loads(path.read_text())
    found: dict[str, dict[str, list[Span]]] = {}
    stacks: dict[str, list[dict[str, Any]]] = {}
    for event in whole["traceEvents"]:
        if event["ph"] not in "be":
            continue
        stack = stacks.setdefault(event["id"], [])
        if event["ph"] == "b":
            stack.append(event)
            continue
        begun = stack.pop()
        # Nested as the format wants it: what ends is what has begun last, and lies within.
        assert begun["name"] == event["name"]
        assert begun["ts"] <= event["ts"]
        assert all(outer["ts"] <= begun["ts"] for outer in stack)
        collective = ".".join(event["id"].split(".")[:2])
        parts = found.setdefault(collective, {})
        parts.setdefault(event["name"], []).append((begun["ts"] / 1e6, event["ts"] / 1e6))
    assert not any(stacks.values())
    return found


@pytest.mark.parametrize("faults", [0, 2], indirect=True)
@EMBEDDED
def test_the_parts_of_each_collective(system: System, faults: int, tmp_path: Path) -> None:
    """All of them, in order, whoever takes the frames; a late rank is named."""
    traces: dict[int, Trace] = {}

    def was_told() -> bool:
        """Whether the switch has told rank 0 of whom it waits for in its fourth collective."""
        return any(traced.number == 3 and traced.record.heard for traced in traces[0].collectives)

    def work(comm: p4reduce.Communicator) -> tuple[float, float, int]:
        comm.barrier()
        with comm.trace(tmp_path / "of-{rank}.json") as traces[comm.rank]:
            first = [comm.allreduce_async(np.ones(50_000, np.float32)) for _ in range(3)]
            for handle in first:
                handle.wait()
            began = time.monotonic()
            if comm.rank == 1:
                wait_for(was_told, "rank 0 knows who is missing")
            came = time.monotonic()
            comm.allreduce(np.ones(300, np.float32), name="late")
            repeated = comm.stats.retransmissions
        comm.barrier()  # is in no trace
        return began, came, repeated

    reports = system.run(2, work, slots=16)
    came = reports[1][1]
    for rank in range(2):
        path = tmp_path / f"of-{rank}.json"
        collectives = spans(path)
        assert len(collectives) == 4
        for number, parts in enumerate(collectives.values()):
            (name,) = (name for name in parts if name.startswith("allreduce"))
            ((begin, end),) = parts[name]
            assert ("'late'" in name) == (number == 3)
            ((_, measured),) = parts["preparing"]
            ((_, opened),) = parts["queueing"]
            ((waited, there),) = parts["waiting for ranks"]
            ((receiving, over),) = parts["receiving"]
            ((sending, sent),) = parts["sending"]
            assert begin <= measured <= opened == waited <= there == receiving == sending
            assert sending <= sent <= over == end
        late = list(collectives.values())[3]
        ((_, there),) = late["waiting for ranks"]
        assert there >= came
        named = [name for name in late if re.fullmatch(r"waiting for rank \d", name)]
        if rank == 0:
            assert named == ["waiting for rank 1"]
            ((since, until),) = late["waiting for rank 1"]
            assert since < came <= until == there
        else:
            assert not named or faults
        whole = json.loads(path.read_text())
        again = [event for event in whole["traceEvents"] if event.get("cat") == "retransmission"]
        # The barrier before it may have repeated some too.
        assert sum(event["args"]["frames"] for event in again) <= reports[rank][2]
        if rank == 0:
            assert again
        assert whole["otherData"]["rank"] == rank
        assert whole["otherData"]["ranks"] == 2


@EMBEDDED
def test_a_trace_that_is_not_closed(system: System, tmp_path: Path) -> None:
    """It ends with the communicator; one communicator has one at a time."""
    comm = system.init(0, 1, system.new_job())
    trace = comm.trace(str(tmp_path / "trace.json"))
    with pytest.raises(ValueError, match="being traced already"):
        comm.trace(tmp_path / "other.json")
    comm.allreduce(np.ones(10))
    comm.close()
    assert not trace.open
    assert len(spans(tmp_path / "trace.json")) == 1
    with pytest.raises(p4reduce.ClosedError):
        comm.trace(tmp_path / "other.json")


@EMBEDDED
def test_paths_that_will_not_do(alone: p4reduce.Communicator, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="path=7"):
        alone.trace(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        alone.trace(tmp_path / "nowhere" / "trace.json")
    with alone.trace(tmp_path / "one.json"):
        pass
    with alone.trace(tmp_path / "two.json"):  # a second one after the first
        alone.barrier()
    assert len(spans(tmp_path / "one.json")) == 0
    assert len(spans(tmp_path / "two.json")) == 1


@EMBEDDED
def test_a_trace_holds_no_tensors(system: System, tmp_path: Path) -> None:
    """All that has been reduced would stay in memory for as long as it is open."""
    with system.init(0, 1, system.new_job(), recover=False) as comm:
        alive = []
        with comm.trace(tmp_path / "trace.json"):
            for _ in range(6):
                tensor = np.ones(1000)
                alive.append(weakref.ref(tensor))
                comm.allreduce(tensor)
            del tensor
            comm.barrier()
            gc.collect()
            assert [one() for one in alive] == [None] * 6
    assert len(spans(tmp_path / "trace.json")) == 7
