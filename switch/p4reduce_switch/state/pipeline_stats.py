# SPDX-License-Identifier: Apache-2.0
"""How often the pipeline did what to frames; the generated code counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

__all__ = ["PipelineStats"]


@dataclass(slots=True)
class PipelineStats:
    """What became of the frames.

    Attributes:
        frames_in, frames_out: how many came in and went out, multicast copies each.
        dropped_ingress, dropped_egress: sent to the drop port by the program.
        dropped_no_replica: multicast to a group that has no replicas, or does not exist.
        dropped_growth: more than 512 bytes of headers added; BMv2 dies of these.
        dropped_replay: waited to be resubmitted, recirculated or cloned when one frame had led to
            `replay.MAX_REPLAYS` of these; BMv2 has no such limit.
        dropped_assertion: a condition of `assert` or `assume` did not hold; BMv2 ends then.
        dropped_loop: a loop in an action took more than `limits.MAX_TURNS` turns; BMv2 goes on.
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

    def as_dict(self) -> dict[str, int]:
        return asdict(self)
