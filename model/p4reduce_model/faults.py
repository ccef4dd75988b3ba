# SPDX-License-Identifier: Apache-2.0
"""Known faults of such protocols, each planted in the real program or the real worker.

A check that finds nothing in a correct program says little; these say what it would have found.
Faults of the switch are edits of p4src/, compiled by p4c; those of the worker are edits of its
engine in C, compiled as well; those of the controller change the order of what it does.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from p4reduce.tensors.continuing import Continuation, Rounds, Words

from p4reduce_model.explorer import Outcome, explore
from p4reduce_model.jobs import Control, control_steps, installation, removal, restart
from p4reduce_model.process import REAL, Code
from p4reduce_model.scenario import Call, Scenario
from p4reduce_model.system import System

_ROOT = Path(__file__).resolve().parents[2]
_AGGREGATION, _SLOTS = "common/aggregation.p4", "v1model/slots.p4"


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
        compiler.compile_program(target, sources, ["p4reduce"])
        return (target / "p4reduce.json").read_bytes()


# -- Faults of the worker: edits of csrc/worker ---------------------------------------------------

_RECEIVE, _ROUNDS, _TIMERS, _WINDOW = "receive.c", "rounds.c", "timers.c", "window.c"
_COMPARES_TAG = (_RECEIVE, "return p4r_get_tag(frame) == stream->tag &&", "return")

_REPEATS_ANOTHER = (
    (
        _TIMERS,
        "    slots->counts.retransmissions++;\n",
        "    slots->counts.retransmissions++;\n"
        "    uint64_t other = (uint64_t)slots->row[(slot + 1) % slots->slots];\n"
        "    __builtin_memcpy(slots->outgoing + (uint64_t)slots->row[slot] * 2048 + 80,\n"
        "                     slots->outgoing + other * 2048 + 80, 1024);\n",
    ),
)
_CANCELS_ALL = (
    (
        _RECEIVE,
        "    p4r_window_completed(slots, rounds, troubled);\n",
        "    p4r_window_completed(slots, rounds, troubled);\n"
        "    for (uint32_t slot = 0; slot < slots->slots; slot++)\n"
        "        slots->due[slot] = 1.0 / 0.0;\n",
    ),
)
_REPEATS_UNPADDED = ((_TIMERS, "    (void)p4r_pad(slots, slot);\n", ""),)
_SKIPS_EMPTY_ROUNDS = (
    (
        _ROUNDS,
        "    return filled && !stream->reads;\n",
        "    if (!flags) {\n"
        "        slots->waiting[slot] = 0;\n"
        "        slots->queued_count--;\n"
        "    }\n"
        "    return filled && !stream->reads;\n",
    ),
)
_REUSES_SLOTS_EARLY = (
    (
        _RECEIVE,
        "        /* What follows a repeated result is late",
        "        if (next != P4R_NO_BLOCK && slots->announced[slot] == stream->count)\n"
        "            goes_on = p4r_end_stripe(slots, slot, now);\n"
        "        /* What follows a repeated result is late",
    ),
)
_FORGETS_ITS_BLOCK = (
    (
        _ROUNDS,
        "mine ? stream->next_nonzero[block + stream->stripes] : slots->announced[slot];",
        "mine ? stream->next_nonzero[block + stream->stripes] : stream->count;",
    ),
)
_TAKES_ANY_ROUND = (
    (
        _RECEIVE,
        "int awaited = slots->expected[slot] == (int64_t)p4r_get_round(frame);",
        "int awaited = slots->expected[slot] != P4R_IDLE;",
    ),
    (_RECEIVE, "           p4r_get_block(frame) == (uint32_t)slots->block[slot] &&\n", ""),
    _COMPARES_TAG,
)
_TAKES_ANY_JOB = (
    (
        _RECEIVE,
        "for (int i = 0; i < P4R_COMPARED; i++)",
        "for (int i = 0; i < P4R_COMPARED - 1; i++)",
    ),
)
_IGNORES_MISMATCH = (
    (_RECEIVE, "} else if (p4r_get_flags(frame) & P4R_FLAG_MISMATCH) {", "} else if (0) {"),
    _COMPARES_TAG,
)
_ONE_HALF_IS_ENOUGH = (
    (_RECEIVE, "slots->parts[slot] |= (uint8_t)part;", "slots->parts[slot] |= P4R_WHOLE;"),
)
_TIMES_IDLE_SLOTS = (
    (_TIMERS, "        if (slots->expected[slot] == P4R_IDLE)\n            continue;", "       "),
    (_TIMERS, "struct p4r_trace *trace = slots->streams[slot]->trace;", "void *trace = 0;"),
    (_WINDOW, "            if (slots->order[slot] != P4R_LAST)\n    ", ""),
)
# Odd ranks let out the last slots first.
_KEEPS_BACK_AT_WILL = (
    (
        _ROUNDS,
        "stream->sequence * slots->slots + stripe - stream->before;",
        "stream->sequence * slots->slots - stream->before +\n"
        "                         (slots->rank & 1 ? slots->slots - 1 - stripe : stripe);",
    ),
)


# -- Faults of recovery --------------------------------------------------------------------------

_KEEPS_NO_RESULT = (
    (_RECEIVE, "    keep(slots, frame, lanes, slot, part);\n", "    (void)keep;\n"),
)
_KEEPS_ONE_HALF = (
    (
        _RECEIVE,
        "kept + P4R_PAYLOAD_OFFSET + (part == P4R_SECOND ? half : 0)",
        "kept + P4R_PAYLOAD_OFFSET",
    ),
)
# As a repetition from the start of a call would: what is there may be half of the result.
_READS_ITS_INPUT_AGAIN = (
    (
        _ROUNDS,
        "        slots->some_open |= slots->opening[slot];\n",
        "        slots->some_open |= slots->opening[slot];\n"
        "        if (slots->row[slot] % P4R_SHAPES == P4R_FILLED)\n"
        "            p4r_block_encode(&slots->streams[slot]->codec,\n"
        "                             &slots->streams[slot]->source,\n"
        "                             &slots->streams[slot]->residual, slots->block[slot],\n"
        "                             slots->block[slot], slots->exponent[slot],\n"
        "                             frame_of(slots, slots->row[slot]) + P4R_PAYLOAD_OFFSET);\n",
    ),
)


def _hands_over_the_wrong_round(finished: Rounds, words: list[Words]) -> Continuation:
    """Let the last rank that lacks the result hand over what it has, of the round before."""
    found = Continuation.of(finished, words)
    behind = [
        max(n for n, said in enumerate(words) if not np.array_equal(said, words[giver]))
        for giver in found.givers.tolist()
    ]
    return replace(found, givers=np.array(behind, np.int64))


def _continues_where_the_last_one_is(finished: Rounds, words: list[Words]) -> Continuation:
    """Ranks that have a result go back to its round, for those that lack it."""
    found = Continuation.of(finished, words)
    newest = found.newest.copy()
    newest[found.slots] -= np.uint32(1)
    nothing = found.slots[:0]
    return Continuation(newest, nothing, nothing, found.lacking[:0])


def _nobody_hands_over(finished: Rounds, words: list[Words]) -> Continuation:
    found = Continuation.of(finished, words)
    return replace(found, slots=found.slots[:0], givers=found.givers[:0], lacking=found.lacking[:0])


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
    "zeros", ranks=2, slots=1, lives=((Call(3, zeros=frozenset({(0, 0), (1, 1), (0, 2)})),),)
)
_HALVES = Scenario("halves", ranks=2, slots=1, lives=((Call(1, zeros=frozenset({(0, 0)})),),))
_CALLS = Scenario("calls in a row", ranks=2, slots=1, lives=((Call(1), Call(1)),))
_DIFFERENT = Scenario(
    "different calls", ranks=2, slots=1, lives=((Call(1, differs=frozenset({1})),),)
)
_LIVES = Scenario("re-created", ranks=2, slots=1, lives=((Call(1),), (Call(1),)))
_RECOVERED_HALVES = Scenario(
    "recovery, halves",
    ranks=3,
    slots=1,
    lives=((Call(1, in_place=True, zeros=frozenset({(0, 0)})),),),
    recoveries=1,
)
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
                _SLOTS,
                "register<bit<8>,  bit<32>>(SLOT_STATES) finals;\n",
                "register<bit<8>,  bit<32>>(SLOT_STATES) finals;\n"
                "register<bit<8>,  bit<32>>(SLOT_STATES) counts;\n"
                "register<ranks_t, bit<32>>(SLOT_STATES) heard_ranks;\n",
            ),
            (
                _SLOTS,
                "        meta.claim = CLAIM_OPENED;\n"
                "        if (job == hdr.agg.job && ahead == 0) {\n"
                "            meta.claim = CLAIM_CURRENT;\n"
                "        } else if (job == hdr.agg.job && ahead >= 0x80000000) {\n"
                "            meta.claim = CLAIM_STALE;\n"
                "        } else if (hdr.agg.kind == KIND_CONTRIBUTE) {\n",
                "        bit<8> count;\n"
                "        ranks_t here;\n"
                "        ranks_t other;\n"
                "        heard_ranks.read(here, meta.index);\n"
                "        counts.read(count, meta.index);\n"
                "        meta.unheard = meta.grant.worker_bit & ~here;\n"
                "        meta.claim = CLAIM_OPENED;\n"
                "        if (meta.unheard == 0 || count != 0) {\n"
                "            meta.claim = CLAIM_CURRENT;\n"
                "        }\n"
                "        if (meta.unheard != 0) {\n"
                "            heard_ranks.read(other, meta.index ^ 1);\n"
                "            heard_ranks.write(meta.index ^ 1, other & ~meta.grant.worker_bit);\n"
                "            heard_ranks.write(meta.index, here | meta.grant.worker_bit);\n"
                "            count = count + 1;\n"
                "            if (count == 2) {\n"  # ranks, in the scenario
                "                count = 0;\n"
                "            }\n"
                "            counts.write(meta.index, count);\n"
                "        }\n"
                "        meta.missing = (ranks_t)count;\n"
                "        if (meta.claim == CLAIM_OPENED) {\n",
            ),
            (_SLOTS, "            hear_first();\n", ""),
            (_SLOTS, "                hear_more();\n", ""),
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
                _SLOTS,
                "(bit<32>)meta.grant.slot << 1 | (hdr.agg.round & 1)",
                "(bit<32>)meta.grant.slot << 1",
            ),
        ),
    ),
    Fault(
        "an older round is a new one",
        "a late duplicate overwrites a newer round",
        _ONE,
        "rounds go on",
        ((_SLOTS, "ahead >= 0x80000000", "false"),),
    ),
    Fault(
        "added twice",
        "the switch adds a retransmission like a first contribution",
        _ONE,
        "counted once",
        ((_SLOTS, "meta.unheard = meta.missing & ", "meta.unheard = "),),
    ),
    Fault(
        "the last next block",
        "the next block is what the last rank says, not the smallest",
        _SPARSE,
        "same block",
        (
            (
                _SLOTS,
                "if (hdr.agg.next_block < next_block\n"
                "                || hdr.agg.next_block == next_block "
                "&& hdr.agg.next_exponent > next_exponent) {",
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
                _SLOTS,
                "if (job == hdr.agg.job && ahead == 0) {",
                "if (job != 0 && ahead == 0) {",
            ),
        ),
    ),
    Fault(
        "mismatch unnoticed",
        "the switch adds up what belongs to different calls",
        _DIFFERENT,
        "progress",
        ((_SLOTS, "meta.sticky = meta.sticky | FLAG_MISMATCH;", "tag = hdr.agg.tag;"),),
    ),
    Fault(
        "no answer twice",
        "the switch does not answer a retransmission for which it has the result",
        _ONE,
        "progress",
        ((_AGGREGATION, "meta.port = meta.ingress_port;", "meta.port = NOWHERE;"),),
    ),
    Fault(
        "repeats another packet",
        "a timer repeats a slot's header with the data of another slot",
        _TWO,
        "counted once",
        code=Code(edits=_REPEATS_ANOTHER),
    ),
    Fault(
        "cancels another timer",
        "a result stops the timers of all slots",
        _TWO,
        "progress",
        code=Code(edits=_CANCELS_ALL),
    ),
    Fault(
        "repeats unpadded",
        "a repeated contribution without payload leaves no room for the result",
        _SPARSE,
        "progress",
        code=Code(edits=_REPEATS_UNPADDED),
    ),
    Fault(
        "skips empty rounds",
        "a rank without data for a round does not answer it",
        _SPARSE,
        "progress",
        code=Code(edits=_SKIPS_EMPTY_ROUNDS),
    ),
    Fault(
        "reuses a slot early",
        "a slot goes to the next call before the reply to the last has come",
        _CALLS,
        "results",
        code=Code(edits=_REUSES_SLOTS_EARLY),
    ),
    Fault(
        "forgets its block",
        "a rank that answers another's round forgets the block that it has announced",
        _SPARSE,
        "results",
        code=Code(edits=_FORGETS_ITS_BLOCK),
    ),
    Fault(
        "takes any round",
        "a rank takes a result without comparing round, block and tag",
        _ONE,
        "same block",
        code=Code(edits=_TAKES_ANY_ROUND),
    ),
    Fault(
        "takes any job",
        "a rank takes a result of an earlier incarnation",
        _LIVES,
        "progress",
        code=Code(edits=_TAKES_ANY_JOB),
    ),
    Fault(
        "mismatch ignored",
        "a rank takes the result of a round in which the ranks did not agree",
        _DIFFERENT,
        "mismatch",
        code=Code(edits=_IGNORES_MISMATCH),
    ),
    Fault(
        "one half is enough",
        "a rank goes on when half of a result has come",
        _HALVES,
        "results",
        code=Code(edits=_ONE_HALF_IS_ENOUGH),
    ),
    Fault(
        "idle slots are timed",
        "a repetition that the transport takes late starts the timer of an idle slot",
        _SLOW,
        "progress",
        code=Code(edits=_TIMES_IDLE_SLOTS),
    ),
    Fault(
        "keeps back at will",
        "with small windows, ranks keep back different slots and wait for each other",
        Scenario("windows", ranks=2, slots=2, lives=((Call(2),),), windows=True),
        "progress",
        code=Code(edits=_KEEPS_BACK_AT_WILL),
    ),
    Fault(
        "keeps no last result",
        "a rank has nothing to hand over when its call has returned",
        _RECOVERY,
        "no error",
        code=Code(edits=_KEEPS_NO_RESULT),
    ),
    Fault(
        "keeps one half",
        "the second half of a kept result overwrites the first",
        _RECOVERED_HALVES,
        "results",
        code=Code(edits=_KEEPS_ONE_HALF),
    ),
    Fault(
        "reads its input again",
        "what is sent again is read from an array that half of the result has overwritten",
        _RECOVERED_HALVES,
        "counted once",
        code=Code(edits=_READS_ITS_INPUT_AGAIN),
    ),
    Fault(
        "hands over the wrong round",
        "a rank hands over its last result although that is of the round before",
        _RECOVERY,
        "no error",
        code=Code(agree=_hands_over_the_wrong_round),
    ),
    Fault(
        "goes back a round",
        "ranks that have a result repeat its round for those that lack it",
        _RECOVERY,
        "progress",
        code=Code(agree=_continues_where_the_last_one_is),
    ),
    Fault(
        "nobody hands over",
        "all go on at the next round, also a rank that lacks the result of the one before",
        _RECOVERY,
        "progress",
        code=Code(agree=_nobody_hands_over),
    ),
    Fault(
        "settles without handing over",
        "after the loss of a rank, nobody gives those that remain the results that they lack",
        Scenario("a rank is lost", ranks=3, slots=1, lives=((Call(1), Call(0)),), settles=True),
        "never one of each",
        code=Code(agree=_nobody_hands_over),
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
