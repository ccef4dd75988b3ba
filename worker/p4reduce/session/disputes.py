# SPDX-License-Identifier: Apache-2.0
"""Disputes: ranks report their calls to the controller, and get those of all ranks."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest

from p4reduce_common.threads import new_thread

from p4reduce.control import control_pb2 as pb
from p4reduce.control.client import ClientClosedError, ControlError
from p4reduce.errors import MismatchError
from p4reduce.session.job_client import JobClient, Member
from p4reduce.tensors.dispute import Dispute
from p4reduce.tensors.stream import Collective
from p4reduce.wire.format import Format
from p4reduce.wire.rank_sets import describe_ranks

_TIMEOUT = 5.0  # seconds; the controller answers within two
_MOST_CALLS = 32  # that are reported: the latest ones up to the one that showed it
_MOST_BYTES = 30_000  # of the names of pieces; a request has at most 64 KiB
_LONGEST_TEXT = 400  # bytes of a call, and of a piece
_GROUPS_SHOWN = 4
_SHAPE = re.compile(r", shape \([0-9, ]*\)")


def explain(
    dispute: Dispute,
    job_client: JobClient,
    member: Member,
    ended: Callable[[MismatchError], object],
) -> None:
    """Find out in a thread which rank called what, and call `ended` there with the error."""

    def ask() -> None:
        error = dispute.error
        try:
            before = [one for one in dispute.in_flight if one.sequence <= dispute.found.sequence]
            error = explained(error, reported(before), job_client, member)
        finally:
            ended(error)

    new_thread(ask, f"p4reduce-compare-{member.rank}").start()


def reported(collectives: Sequence[Collective]) -> list[pb.Called]:
    """Return the report of the latest collectives for the controller, in order.

    Those before them are left out. Each is cut as on all ranks, whatever else a rank reports:
    equal calls would look different otherwise.
    """
    left = _MOST_BYTES
    calls: list[pb.Called] = []
    for one in reversed(collectives[-_MOST_CALLS:]):
        text = one.call.describe(one.number, fully=True)
        if one.format is not Format.INT32:
            text += f" as {one.format.name.lower()}"
        pieces = [_cut(piece) for piece in one.call.describe_pieces()]
        ends = list(accumulate(len(piece.encode()) for piece in pieces))
        fitting = bisect(ends, _MOST_BYTES)
        left -= ends[fitting - 1] if fitting else 0
        if left < 0:
            break
        calls.append(pb.Called(sequence=one.sequence, text=_cut(text), pieces=pieces[:fitting]))
    return calls[::-1]


def explained(
    error: MismatchError, calls: Sequence[pb.Called], job_client: JobClient, member: Member
) -> MismatchError:
    """Return an error that says which ranks called what, or the given one if that is unknown."""
    try:
        reply = job_client.compare(member, calls, _TIMEOUT)
    except (ControlError, ClientClosedError):  # it is away, or older than this
        return error
    callings = sorted(reply.callings, key=lambda one: (len(one.ranks), one.ranks[0]))
    if len(callings) < 2:
        return error
    most = callings[-1]
    odd = callings[:-1] if len(callings[-2].ranks) < len(most.ranks) else callings
    said = [
        f"{describe_ranks(one.ranks)} called {_text(one.called, most.called, callings[0].called)}"
        for one in callings
    ]
    if len(said) > _GROUPS_SHOWN + 1:  # at least two are left out
        said[_GROUPS_SHOWN - 1 : -1] = [f"{len(said) - _GROUPS_SHOWN} more kinds of calls"]
    if reply.silent:
        said.append(f"{describe_ranks(reply.silent)} did not report a call")
    hint = ""
    if len({_without_shapes(one.called) for one in callings}) == 1:
        hint = "; init(check_shapes=False), on all ranks, lets the shapes differ"
    return MismatchError(
        f"the ranks do not agree on what they reduce: {'; '.join(said)}{hint}",
        ranks=sorted(rank for one in odd for rank in one.ranks),
    )


def _text(called: pb.Called, most: pb.Called, fewest: pb.Called) -> str:
    """Say a call, and which of its pieces is the first that another one has not."""
    other = most if called.pieces != most.pieces else fewest
    pairs = zip_longest(called.pieces, other.pieces)
    different = next((mine for mine, theirs in pairs if mine != theirs and mine is not None), "")
    return called.text + (f" with {different}" if different else "")


def _without_shapes(called: pb.Called) -> tuple[str, ...]:
    return tuple(_SHAPE.sub("", text) for text in (called.text, *called.pieces))


def _cut(text: str) -> str:
    return text.encode()[:_LONGEST_TEXT].decode(errors="ignore")
