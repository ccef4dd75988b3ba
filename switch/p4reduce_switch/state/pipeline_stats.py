# SPDX-License-Identifier: Apache-2.0
"""Counts of the pipeline, which the generated code increments."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class PipelineStats:
    """Counts of the frames.

    Attributes:
        frames_in, frames_out: how many entered and left; each multicast copy counts.
        dropped_ingress, dropped_egress: sent to the drop port by the program.
        dropped_no_replica: multicast to a group without replicas, or to none.
        dropped_growth: more than 512 bytes of headers added; BMv2 would end.
        dropped_replay: waited for resubmit, recirculate or clone after one frame had led to
            `replay.MAX_REPLAYS` of these; BMv2 has no such limit.
        dropped_queue: reached a full egress queue.
        dropped_priority: no queue has that `priority`; simple_switch drops these too.
        dropped_assertion: an `assert` or `assume` failed; BMv2 would end.
        dropped_loop: a loop in an action took more than `limits.MAX_ITERATIONS` iterations; BMv2
            would hang.
    """

    frames_in: int = 0
    frames_out: int = 0
    dropped_ingress: int = 0
    dropped_egress: int = 0
    dropped_no_replica: int = 0
    dropped_growth: int = 0
    dropped_replay: int = 0
    dropped_assertion: int = 0
    dropped_loop: int = 0
    dropped_queue: int = 0
    dropped_priority: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
