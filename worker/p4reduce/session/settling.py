# SPDX-License-Identifier: Apache-2.0
"""After the loss of a rank: the ranks that remain agree on which collectives are over.

They use the point of continuation that is used after the loss of a switch (`tensors.continuing`),
and the controller passes on what they say. Each result that one of them has comes to all of them.
So a collective that one of them has completed is complete on all, and any other one is on none.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Set

import numpy as np
import numpy.typing as npt

from p4reduce.control.client import NoAnswerError
from p4reduce.session.job_client import JobClient, Member
from p4reduce.session.machine import Machine
from p4reduce.session.waiting import Waiting
from p4reduce.tensors.continuing import MESSAGE_BYTES, Continuation, Messages, words_of

_AT_ONCE = 48  # results in a step: a request has at most 64 KiB


def settle_calls(job_client: JobClient, member: Member, machine: Machine, waiting: Waiting) -> None:
    """Agree, and take what this rank lacks.

    If a further rank is lost meanwhile, those that remain begin again: it may have been the one
    that hands over. Nothing else uses the machine meanwhile.

    Raises:
        ControlError, ClientClosedError: no agreement was reached.
        P4ReduceError: waiting became useless, or the ranks are out of step.
    """
    steps = itertools.count()

    def say(said: bytes) -> dict[int, bytes]:
        """Take a step: say something, and return what all say."""
        step = next(steps)
        return waiting.retry(
            lambda: job_client.settle(member, step, said, waiting.left, waiting.check),
            lambda error: True,
            NoAnswerError,
        )

    while True:
        words = say(words_of(machine.finished).tobytes())
        finished = [np.frombuffer(one, np.int32) for one in words.values()]
        found = Continuation.of(machine.finished, finished)
        place = list(words).index(member.rank)
        given = found.given_by(place, machine.results(found.slots))
        results = _handed_over(given, found.givers == place, words.keys(), say)
        if results is not None:
            machine.take_results(*found.lacked(results), time.monotonic())
            return


def _handed_over(
    given: Messages,
    own: npt.NDArray[np.bool_],
    ranks: Set[int],
    say: Callable[[bytes], dict[int, bytes]],
) -> Messages | None:
    """Return what all ranks have handed over; None: one of them is lost."""
    results = np.zeros((len(given), MESSAGE_BYTES), np.uint8)
    for first in range(0, len(given), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        said = say(given[part].tobytes() if own[part].any() else b"")
        if said.keys() != ranks:
            return None
        for one in said.values():
            if one:
                results[part] |= np.frombuffer(one, np.uint8).reshape(-1, MESSAGE_BYTES)
    return results
