# SPDX-License-Identifier: Apache-2.0
"""What has to hold of the switch's registers and of frames. `worker.py` says it of results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from p4reduce.wire.format import NO_BLOCK, Flag, Format, FrameKind
from p4reduce.wire.lanes import unpack

from p4reduce_model.found import Violation
from p4reduce_model.frames import Frame
from p4reduce_model.scenario import FIRST_JOB, Scenario
from p4reduce_model.wiring import Wiring


@dataclass(frozen=True)
class Cell:
    """What the registers hold about one version of a slot.

    Attributes:
        paid: whether it has lanes.
        final: whether a leaf has the result of all here, and not the sums of its own ranks.
    """

    job: int
    round: int
    heard: int
    tag: int
    block: int
    format: int
    flags: int
    paid: bool
    final: bool
    words: tuple[int, ...]


class Invariants:
    """The invariants of one scenario.

    Attributes:
        calls: which calls each tag stands for, as (life, call); to be filled in.
    """

    def __init__(self, scenario: Scenario, unchecked: frozenset[str] = frozenset()) -> None:
        self._scenario = scenario
        self._unchecked = unchecked
        self.calls: dict[int, set[tuple[int, int]]] = {}
        self._rounds: dict[tuple[int, int, int], tuple[int, int]] = {}
        wiring = Wiring(scenario)
        self._names = wiring.names
        self._children = [wiring.children(number) for number in range(len(wiring.names))]

    # -- The switch ----------------------------------------------------------------------------

    def check_cells(self, switch: int, cells: tuple[Cell, ...]) -> None:
        """Each cell holds one contribution of every rank heard, to that very round, and no more.

        On a leaf, if the round is final, of all ranks; on the root, of all below who was heard.
        """
        for cell in cells:
            if cell.job and not cell.flags & Flag.MISMATCH:
                self._check_cell(switch, cell)

    def _check_cell(self, switch: int, cell: Cell) -> None:
        where = f"the cell of job {cell.job}, round {cell.round}"
        if len(self._names) > 1:
            where += f" of the {self._names[switch]}"
        life, call = self._call(cell.job, cell.tag, where)
        everybody = self._everybody(switch)
        if cell.heard & ~everybody:
            self._fail("counted once", f"{where} has heard {cell.heard:#b}")
        heard = self._ranks(switch, cell.heard)
        if cell.final:
            if cell.heard != everybody:
                self._fail("complete results", f"{where} is final, but has heard {heard} only")
            heard = list(range(self._scenario.ranks))
        wanted = self._sum(life, call, cell.block, heard)
        if not cell.paid:
            if wanted.any():
                self._fail(
                    "counted once",
                    f"{where} has heard {heard}, but lacks "
                    f"{self._scenario.addends(life, call, wanted)}",
                )
            return
        data = b"".join(word.to_bytes(256, "big") for word in cell.words)
        lanes = unpack(np.frombuffer(data, np.uint8), Format(cell.format)).astype(np.int64)
        self._compare((life, call), lanes, wanted, where)

    # -- Frames --------------------------------------------------------------------------------

    def check_sent_by(self, switch: int, frame: Frame) -> None:
        """A result has one contribution of each rank. A leaf's sum has one of each of its ranks."""
        head = frame.header
        if head.kind is FrameKind.STATUS or head.flags & Flag.MISMATCH:
            return
        result = head.kind is FrameKind.RESULT
        where = f"the {'result' if result else 'sum'} {frame}"
        life, call = self._call(head.job, head.tag, where)
        everybody = self._everybody(switch)
        if head.contributors != everybody:
            self._fail("complete results", f"{where} lacks ranks")
        ranks = list(range(self._scenario.ranks)) if result else self._ranks(switch, everybody)
        wanted = self._sum(life, call, head.block, ranks)
        half = self._scenario.half(life, call)
        if result and head.flags & Flag.FIRST_HALF:
            wanted = wanted[:half]
        elif result and head.flags & Flag.SECOND_HALF:
            wanted = wanted[half:]
        lanes = frame.lanes if head.flags & Flag.PAYLOAD else np.zeros_like(wanted)
        self._compare((life, call), lanes, wanted, where)

    def check_contribution(self, frame: Frame) -> None:
        """All ranks mean the same block by a round, unless they do not call the same.

        Blocks are compared across all runs of the search, as they depend on the calls alone. After
        a recovery they do not: how many calls are repeated differs from run to run. So jobs that
        follow one are left out.
        """
        head = frame.header
        if self._scenario.recoveries and head.job != self._scenario.job(0):
            return
        meant = (head.tag, head.block)
        other = self._rounds.setdefault((head.job, head.slot, head.round), meant)
        calls = {one for tag in (meant[0], other[0]) for one in self.calls.get(tag, ())}
        if meant != other and all(self._scenario.result(*one) is not None for one in calls):
            self._fail(
                "same block",
                f"rank {head.rank} sends {frame}, but another rank has meant block "
                f"{'none' if other[1] == NO_BLOCK else other[1]}, tag {other[0]:#x}",
            )

    def check_order(self, before: str, after: str, *, is_later: bool) -> None:
        """No cell goes back to an earlier round."""
        if not is_later:
            self._fail("rounds go on", f"a cell goes from {before} back to {after}")

    # -- Helpers -------------------------------------------------------------------------------

    def _fail(self, invariant: str, text: str) -> None:
        if invariant not in self._unchecked:
            raise Violation(invariant, text)

    def _everybody(self, switch: int) -> int:
        """The bits of all whom a switch hears."""
        return (1 << len(self._children[switch])) - 1

    def _ranks(self, switch: int, bits: int) -> list[int]:
        """The ranks that some bits of a switch stand for."""
        children = enumerate(self._children[switch])
        return [rank for number, ranks in children if bits >> number & 1 for rank in ranks]

    def _call(self, job: int, tag: int, where: str) -> tuple[int, int]:
        life = job - FIRST_JOB
        for one in self.calls.get(tag, ()):
            if one[0] == life:
                return one
        raise Violation("counted once", f"{where} has the tag {tag:#x}, which no call of it has")

    def _sum(self, life: int, call: int, block: int, ranks: list[int]) -> npt.NDArray[np.int64]:
        """The sum of one contribution to a block of each of these ranks."""
        scenario = self._scenario
        half = scenario.half(life, call)
        lanes = np.zeros(2 * half, np.int64)
        if block == NO_BLOCK:
            return lanes
        for rank in ranks:
            addend = scenario.addend(life, rank, call, block)
            lane = scenario.lane[addend]
            lanes[[lane, lane + half]] += scenario.lane_value(addend)
        return lanes

    def _compare(
        self,
        call: tuple[int, int],
        lanes: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.int64],
        where: str,
    ) -> None:
        if not np.array_equal(lanes, wanted):
            holds, should = (self._scenario.addends(*call, part) for part in (lanes, wanted))
            self._fail("counted once", f"{where} holds {holds}, and should hold {should}")
