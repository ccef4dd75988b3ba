# SPDX-License-Identifier: Apache-2.0
"""Known faults of such protocols, each planted in the real program or the real worker.

A check that finds nothing in a correct program says little; these say what it would have found.
Faults of the switch are edits of p4src/, compiled by p4c; those of the worker override a method of
`SlotMachine`; those of the controller change the order of what it does.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce.protocol.slots import SlotMachine
from p4reduce.protocol.window import Gate
from p4reduce.session.ledger import Ledger
from p4reduce.tensors.blocks import Indices
from p4reduce.tensors.stream import Collective
from p4reduce.wire.answers import BLOCK, JOB, NEXT_BLOCK, ROUND, TAG, Answers
from p4reduce.wire.format import NO_BLOCK, Flag

from p4reduce_model.cases import zeros
from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.jobs import Control, control_steps, installation, removal, restart
from p4reduce_model.process import REAL, Code
from p4reduce_model.scenario import Call, Scenario
from p4reduce_model.system import System

_ROOT = Path(__file__).resolve().parents[2]
_AGGREGATION = "include/aggregation.p4"


@dataclass(frozen=True)
class Fault:
    """A fault, and the smallest scenario that shows it.

    Attributes:
        name: of the fault.
        text: what is wrong, in one line.
        scenario: where it shows.
        breaks: the invariant that is found not to hold.
        edits: of files below p4src/: (file, what is there once, what is put there instead).
        code, control, unchecked: as `System` takes them.
    """

    name: str
    text: str
    scenario: Scenario
    breaks: str
    edits: tuple[tuple[str, str, str], ...] = ()
    code: Code = REAL
    control: Callable[[Scenario], Control] = control_steps
    unchecked: frozenset[str] = frozenset()

    def program(self) -> bytes | None:
        """The switch's program with the fault in it, or None. Needs p4c where there are edits."""
        return compile_with(self.edits) if self.edits else None

    def hunt(self, program: bytes | None) -> tuple[System, Outcome]:
        """Explore the scenario with the fault in it."""
        for reduce in (True, False):
            system = System(self.scenario, program, self.code, self.control, self.unchecked)
            outcome = explore(system, reduce=reduce)
            if outcome.violation is None or outcome.trace or outcome.run:
                break  # else only a frame that was left out shows it: go there without leaving out
        return system, outcome


def compile_with(edits: tuple[tuple[str, str, str], ...]) -> bytes:
    """Compile p4src/ with some changes; return p4c's JSON.

    Raises:
        ValueError: what an edit replaces is not there, or more than once.
    """
    spec = importlib.util.spec_from_file_location("compile_p4", _ROOT / "tools" / "compile_p4.py")
    assert spec is not None
    assert spec.loader is not None
    compiler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    with tempfile.TemporaryDirectory() as scratch:
        sources, target = Path(scratch, "p4src"), Path(scratch, "compiled")
        shutil.copytree(_ROOT / "p4src", sources)
        for file, old, new in edits:
            text = (sources / file).read_text()
            if text.count(old) != 1:
                raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once")
            (sources / file).write_text(text.replace(old, new))
        compiler.compile_program(target, sources)
        return (target / "p4reduce.json").read_bytes()


# -- Faults of the worker ------------------------------------------------------------------------


class _RepeatsAnother(SlotMachine):
    def _repeat(self, slots: Indices) -> None:
        super()._repeat(slots)
        rows = self._row[slots]
        other = self._row[(slots + 1) % self._slots]
        self.outgoing.payload[rows] = self.outgoing.payload[other]


class _CancelsAll(SlotMachine):
    def _advance(self, collective: Collective, answers: Answers) -> None:
        self.timers.stop()
        super()._advance(collective, answers)


class _RepeatsUnpadded(SlotMachine):
    def _repeat(self, slots: Indices) -> None:
        self._sendable.append(self._row[slots])


class _SkipsEmptyRounds(SlotMachine):
    def _contribute(
        self,
        collective: Collective,
        slots: Indices,
        blocks: Indices,
        announced: Indices,
        flags: npt.NDArray[np.uint32],
    ) -> None:
        super()._contribute(collective, slots, blocks, announced, flags)
        if blocks[0] != NO_BLOCK and not flags[0]:
            self._sendable.pop()


class _ReusesSlotsEarly(SlotMachine):
    def _contribute(
        self,
        collective: Collective,
        slots: Indices,
        blocks: Indices,
        announced: Indices,
        flags: npt.NDArray[np.uint32],
    ) -> None:
        super()._contribute(collective, slots, blocks, announced, flags)
        last = (announced == collective.none) & (blocks != NO_BLOCK)
        if last.any():
            self._end_stripes(collective, slots[last])


class _ForgetsItsBlock(SlotMachine):
    def _advance(self, collective: Collective, answers: Answers) -> None:
        others = answers.header[NEXT_BLOCK] != self._announced[answers.slots]
        self._announced[answers.slots[others]] = collective.none
        super()._advance(collective, answers)


class _TakesAnyRound(SlotMachine):
    def _under_way(self, answers: Answers) -> tuple[Answers, Answers | None]:
        slots = answers.slots
        waiting = self._expected[slots] >= 0
        answers.header[ROUND, waiting] = self._expected[slots][waiting]
        answers.header[BLOCK, waiting] = self._block[slots][waiting]
        answers.header[TAG, waiting] = self._tag[slots][waiting]
        return super()._under_way(answers)


class _TakesAnyJob(SlotMachine):
    def _answers_to_us(self, buffer, count):  # type: ignore[no-untyped-def]
        buffer.header[:count, JOB] = self._job
        return super()._answers_to_us(buffer, count)


class _IgnoresMismatch(SlotMachine):
    def _under_way(self, answers: Answers) -> tuple[Answers, Answers | None]:
        answers.flags &= ~np.uint32(Flag.MISMATCH)
        answers.header[TAG] = self._tag[answers.slots]
        return super()._under_way(answers)


class _OneHalfIsEnough(SlotMachine):
    def _join_halves(self, buffer, answers, parts):  # type: ignore[no-untyped-def]
        self._parts[answers.slots[parts != 0]] |= 3 & ~parts[parts != 0]
        return super()._join_halves(buffer, answers, parts)


class _TimesIdleSlots(SlotMachine):
    def sent(self, rows: Indices, now: float) -> None:
        super().sent(rows, now)
        self.timers.sent(rows // 3, now)

    def _by_owner(self, slots: Indices) -> list[tuple[Collective, Indices | None]]:
        # The last collective may be over, and an idle slot is nobody's.
        return super()._by_owner(slots) if self._collectives else []


class _OwnOrder(Gate):
    """Odd ranks let out the last slots first."""

    rank = 0

    def enter(self, slots: Indices, sequence: int, stripes: npt.NDArray[np.int64]) -> None:
        super().enter(slots, sequence, stripes if not self.rank % 2 else self._slots - 1 - stripes)


class _KeepsBackAtWill(SlotMachine):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.gate = _OwnOrder(self._slots, self.timers)
        self.gate.rank = arguments["rank"]


class _KeepsNoCopy(Ledger):
    def add(self, collective: Collective) -> None:
        super().add(collective)
        self._entries[-1].snapshot = collective.source


class _LetsGoEarly(Ledger):
    def add(self, collective: Collective) -> None:
        super().add(collective)
        self._entries = [entry for entry in self._entries if not entry.running.done()]


# -- Faults of the controller --------------------------------------------------------------------


def _slots_given_early(scenario: Scenario) -> Control:
    before, after = removal(scenario, 0), installation(scenario, 1)
    return Control([*after, *before], [0, len(after)])


def _same_job_after_restart(scenario: Scenario) -> Control:
    return Control([*restart(scenario, 0), *installation(scenario, 0)], [0])


# -- All of them ---------------------------------------------------------------------------------

_ONE = Scenario("one slot", ranks=2, slots=1, lives=((Call(3),),))
_TWO = Scenario("two slots", ranks=2, slots=2, lives=((Call(2),),))
_SPARSE = Scenario(
    "zeros", ranks=2, slots=1, lives=((Call(3, zeros=zeros((0, 0), (1, 1), (0, 2))),),)
)
_HALVES = Scenario("halves", ranks=2, slots=1, lives=((Call(1, zeros=zeros((0, 0))),),))
_CALLS = Scenario("calls in a row", ranks=2, slots=1, lives=((Call(1), Call(1)),))
_DIFFERENT = Scenario(
    "different calls", ranks=2, slots=1, lives=((Call(1, differs=frozenset({1})),),)
)
_LIVES = Scenario("re-created", ranks=2, slots=1, lives=((Call(1),), (Call(1),)))
_RECOVERY = Scenario(
    "recovery", ranks=2, slots=1, lives=((Call(1, in_place=True), Call(0)),), recoveries=1
)
_SLOW = Scenario("slow transport", ranks=2, slots=1, lives=((Call(1),),), hesitant=True)

FAULTS = [
    Fault(
        "no round in the switch",
        "as in SwitchML, cells know who was heard but not in which round: what a rank sends clears "
        "its bit in the other version, and a duplicate overtaken by that is taken as new",
        _ONE,
        "progress",
        (
            (
                _AGGREGATION,
                "    Lanes() lanes;\n",
                "    Lanes() lanes;\n"
                "    register<bit<8>, bit<32>>(SLOT_STATES) counts;\n"
                "    bit<8> count;\n"
                "    ranks_t here;\n",
            ),
            (
                _AGGREGATION,
                "        current = job == hdr.agg.job && ahead == 0;\n"
                "        stale = job == hdr.agg.job && ahead >= 0x80000000;\n",
                "        heard_ranks.read(here, index);\n"
                "        counts.read(count, index);\n"
                "        heard = here & meta.grant.worker_bit != 0;\n"
                "        current = heard || count != 0;\n"
                "        stale = false;\n"
                "        if (!heard) {\n"
                "            ranks_t other;\n"
                "            heard_ranks.read(other, index ^ 1);\n"
                "            heard_ranks.write(index ^ 1, other & ~meta.grant.worker_bit);\n"
                "            count = count + 1;\n"
                "            if (count == 2) {\n"  # ranks, in the scenario
                "                count = 0;\n"
                "            }\n"
                "            counts.write(index, count);\n"
                "        }\n",
            ),
            (
                _AGGREGATION,
                "        contributors = meta.grant.worker_bit;\n",
                "        contributors = here | meta.grant.worker_bit;\n",
            ),
            (
                _AGGREGATION,
                "complete = contributors == meta.grant.all_workers;",
                "complete = count == 0;",
            ),
        ),
        # Cells say less here, so what they say is not compared.
        unchecked=frozenset({"rounds go on", "counted once", "complete results"}),
    ),
    Fault(
        "one version a slot",
        "the next round overwrites a result that another rank has not got yet",
        _ONE,
        "progress",
        (
            (
                _AGGREGATION,
                "(bit<32>)hdr.agg.slot) << 1 | (hdr.agg.round & 1)",
                "(bit<32>)hdr.agg.slot) << 1",
            ),
        ),
    ),
    Fault(
        "an older round is a new one",
        "a late duplicate overwrites a newer round",
        _ONE,
        "rounds go on",
        ((_AGGREGATION, "ahead >= 0x80000000;", "false;"),),
    ),
    Fault(
        "added twice",
        "the switch adds a retransmission like a first contribution",
        _ONE,
        "counted once",
        ((_AGGREGATION, "heard = contributors == before;", "heard = false;"),),
    ),
    Fault(
        "the last next block",
        "the next block is what the last rank says, not the smallest",
        _SPARSE,
        "same block",
        (
            (
                _AGGREGATION,
                "if (hdr.agg.next_block < next_block\n"
                "                    || hdr.agg.next_block == next_block\n"
                "                        && hdr.agg.next_exponent > next_exponent) {",
                "if (true) {",
            ),
        ),
    ),
    Fault(
        "jobs share cells",
        "the switch does not compare the job: what an earlier one has left is joined",
        _LIVES,
        "counted once",
        (
            (
                _AGGREGATION,
                "current = job == hdr.agg.job && ahead == 0;",
                "current = job != 0 && ahead == 0;",
            ),
        ),
    ),
    Fault(
        "mismatch unnoticed",
        "the switch adds up what belongs to different calls",
        _DIFFERENT,
        "progress",
        ((_AGGREGATION, "flags = flags | FLAG_MISMATCH;", "tag = hdr.agg.tag;"),),
    ),
    Fault(
        "no answer twice",
        "the switch does not answer a retransmission for which it has the result",
        _ONE,
        "progress",
        ((_AGGREGATION, "            to_sender();", "            drop_stale();"),),
    ),
    Fault(
        "repeats another packet",
        "a timer repeats a slot's header with the data of another slot",
        _TWO,
        "counted once",
        code=Code(machine=_RepeatsAnother),
    ),
    Fault(
        "cancels another timer",
        "a result stops the timers of all slots",
        _TWO,
        "progress",
        code=Code(machine=_CancelsAll),
    ),
    Fault(
        "repeats unpadded",
        "a repeated contribution without payload leaves no room for the result",
        _SPARSE,
        "progress",
        code=Code(machine=_RepeatsUnpadded),
    ),
    Fault(
        "skips empty rounds",
        "a rank without data for a round does not answer it",
        _SPARSE,
        "progress",
        code=Code(machine=_SkipsEmptyRounds),
    ),
    Fault(
        "reuses a slot early",
        "a slot goes to the next call before the reply to the last has come",
        _CALLS,
        "results",
        code=Code(machine=_ReusesSlotsEarly),
    ),
    Fault(
        "forgets its block",
        "a rank that answers another's round forgets the block that it has announced",
        _SPARSE,
        "results",
        code=Code(machine=_ForgetsItsBlock),
    ),
    Fault(
        "takes any round",
        "a rank takes a result without comparing round, block and tag",
        _ONE,
        "same block",
        code=Code(machine=_TakesAnyRound),
    ),
    Fault(
        "takes any job",
        "a rank takes a result of an earlier incarnation",
        _LIVES,
        "progress",
        code=Code(machine=_TakesAnyJob),
    ),
    Fault(
        "mismatch ignored",
        "a rank takes the result of a round in which the ranks did not agree",
        _DIFFERENT,
        "mismatch",
        code=Code(machine=_IgnoresMismatch),
    ),
    Fault(
        "one half is enough",
        "a rank goes on when half of a result has come",
        _HALVES,
        "results",
        code=Code(machine=_OneHalfIsEnough),
    ),
    Fault(
        "idle slots are timed",
        "a repetition that the transport takes late starts the timer of an idle slot",
        _SLOW,
        "progress",
        code=Code(machine=_TimesIdleSlots),
    ),
    Fault(
        "keeps back at will",
        "with small windows, ranks keep back different slots and wait for each other",
        Scenario("windows", ranks=2, slots=2, lives=((Call(2),),), windows=True),
        "progress",
        code=Code(machine=_KeepsBackAtWill),
    ),
    Fault(
        "keeps no copy",
        "what is repeated on a fresh switch is read from an array that the result has overwritten",
        _RECOVERY,
        "counted once",
        code=Code(ledger=_KeepsNoCopy),
    ),
    Fault(
        "lets go early",
        "an input is let go of when this rank has the result, while another may lack it",
        _RECOVERY,
        "no error",
        code=Code(ledger=_LetsGoEarly),
    ),
    Fault(
        "resumes too late",
        "after a recovery the ranks go on where the first of them was, not the last",
        _RECOVERY,
        "progress",
        code=Code(resume_from=max),
    ),
    Fault(
        "slots given early",
        "the controller gives slots to a job before the entries of the last are gone",
        _LIVES,
        "rounds go on",
        control=_slots_given_early,
    ),
    Fault(
        "same job after a restart",
        "the job goes on as it was when the switch has lost its registers",
        _ONE,
        "progress",
        control=_same_job_after_restart,
    ),
]
