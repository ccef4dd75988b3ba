# SPDX-License-Identifier: Apache-2.0
"""The planner's answer as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from p4reduce_lab.planning.advice import Advice
from p4reduce_lab.planning.commands import commands
from p4reduce_lab.planning.network import LARGEST_FANOUT
from p4reduce_lab.units import in_words, rate_in_words, size_in_words

HEAD = ("sums by", "sums", "of the step", "step", "overlapped", "faster", "sent per rank")


def title(advice: Advice) -> str:
    """Return the question in one line."""
    question = advice.question
    cluster, step = question.cluster, question.step
    return (
        f"{step.parameters:,} parameters, {cluster.ranks:,} ranks, links of "
        f"{rate_in_words(cluster.link.rate)}, {in_words(step.compute)} of computing per step, "
        f"{cluster.switch.name}"
    )


def rows(advice: Advice) -> list[tuple[str, ...]]:
    """Return the rows of the table, without its head."""
    return [
        (
            option.name,
            in_words(option.time.communication),
            f"{option.time.share:.0%}",
            in_words(option.time.after),
            in_words(option.time.overlapped),
            f"{option.faster:.2f}",
            size_in_words(option.octets),
        )
        for option in advice.options
    ]


def text(advice: Advice) -> str:
    """Return the whole answer for a terminal."""
    lines = [HEAD, *rows(advice)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    table = "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    reasons = "\n".join(f"- {reason}" for reason in advice.reasons)
    run = "\n\n".join(_to_run(advice))
    return f"{title(advice)}\n\n{table}\n\n{reasons}\n\n{run}\n"


def _to_run(advice: Advice) -> Iterator[str]:
    """The commands for the best option, and for a faster one with more hardware."""
    one = "one switch" if advice.question.cluster.ranks <= LARGEST_FANOUT else "a tree"
    yield "To run it:" if advice.best.switches else f"To run {one} although the ring is faster:"
    yield _indented(commands(advice, advice.best))
    if advice.fastest is not advice.best:
        yield f"With more hardware, {advice.fastest.name}:"
        yield _indented(commands(advice, advice.fastest))


def _indented(lines: list[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def as_json(advice: Advice) -> dict[str, Any]:
    """Return all figures; times in seconds, and None for a batch at which nothing hides."""
    return {
        "question": title(advice),
        "options": [
            {
                "name": option.name,
                "communication_seconds": option.time.communication,
                "step_seconds": option.time.after,
                "overlapped_step_seconds": option.time.overlapped,
                "communication_share": option.time.share,
                "faster_than_ring": option.faster,
                "bytes_per_rank": option.octets,
                "hiding_batch_factor": option.hides if math.isfinite(option.hides) else None,
                "switches": option.switches,
            }
            for option in advice.options
        ],
        "best": advice.best.name,
        "slots": advice.pool.slots,
        "window": advice.pool.window,
        "round_trip_seconds": advice.pool.round_trip,
        "limit": advice.limit[1],
        "contributions_per_second": advice.limit[0],
        "switches_side_by_side": advice.side_by_side,
        "fanouts": list(advice.network.fanouts),
        "reasons": list(advice.reasons),
        "commands": commands(advice, advice.best),
    }
