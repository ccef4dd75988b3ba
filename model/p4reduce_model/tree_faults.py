# SPDX-License-Identifier: Apache-2.0
"""Faults of a tree of switches, each planted in the real program or in what the controller does."""

from __future__ import annotations

from p4reduce_model.cases import ROOT, TREE_MEETING, TREE_PAIR, TREE_PAIR_BARE
from p4reduce_model.faults import Fault
from p4reduce_model.jobs import Control, installation, restart
from p4reduce_model.scenario import Scenario

_AGGREGATION, _SLOTS = "common/aggregation.p4", "v1model/slots.p4"


def _same_job_after_a_restart(scenario: Scenario) -> Control:
    return Control([*restart(scenario, 0), *installation(scenario, 0, [scenario.struck])], [0])


TREE_FAULTS = [
    Fault(
        "answers with its own sum",
        "a leaf answers a repetition with what it has, though its parent has not answered",
        TREE_PAIR,
        "counted once",
        ((_SLOTS, "ask_parent();", "meta.final = FINAL_EMPTY | (meta.paid << 1);"),),
    ),
    Fault(
        "forgets what is final",
        "a leaf keeps its parent's result, but takes it for the sums of its own ranks",
        TREE_PAIR,
        "counted once",
        (
            (_SLOTS, "finals.write(meta.index, FINAL_LANES);", ""),
            (_SLOTS, "finals.write(meta.index, FINAL_EMPTY);", ""),
        ),
    ),
    Fault(
        "adds a leaf twice",
        "the root adds what a leaf sends again, as if it had not been heard",
        TREE_PAIR,
        "counted once",
        (
            (
                _SLOTS,
                "meta.unheard = meta.missing & meta.grant.worker_bit;",
                "meta.unheard = meta.grant.worker_bit;\n"
                "        if (meta.partial == 1) {\n"
                "            meta.unheard = meta.unheard & meta.missing;\n"
                "        }",
            ),
        ),
    ),
    Fault(
        "keeps half a result",
        "a leaf stores one half of its parent's result in place of its sums",
        TREE_PAIR_BARE,
        "counted once",
        (
            (
                _SLOTS,
                "(FLAG_FIRST_HALF | FLAG_SECOND_HALF) != 0) {\n"
                "                askers.write(meta.index, 0);",
                "(FLAG_FIRST_HALF | FLAG_SECOND_HALF) != 0) {\n"
                "                finals.write(meta.index, FINAL_LANES);",
            ),
            (
                _AGGREGATION,
                "SET(FLAG_FIRST_HALF),   _, _, _,          _          ): to_ranks(LaneOp.NOTHING,",
                "SET(FLAG_FIRST_HALF),   _, _, _,          _          ): to_ranks(LaneOp.STORE,",
            ),
        ),
    ),
    Fault(
        "takes an old answer",
        "a leaf does not ask which round its parent's result is of",
        TREE_PAIR,
        "counted once",
        (
            (
                _SLOTS,
                "if (job == hdr.agg.job && ahead == 0) {",
                "if (job == hdr.agg.job && ahead == 0 || hdr.agg.kind == KIND_RESULT) {",
            ),
            (_SLOTS, "hear_nothing();", "meta.missing = 0;"),
        ),
    ),
    Fault(
        "nobody's turn again",
        "one rank of a leaf has asked for the result, and no other may ever since",
        TREE_MEETING,
        "progress",
        (
            (
                _SLOTS,
                "asked == 0 || asked & meta.grant.worker_bit != 0",
                "asked == 0",
            ),
        ),
    ),
    Fault(
        "same job on a restarted leaf",
        "the job goes on as it was when a leaf has lost its registers",
        TREE_MEETING,
        "progress",
        control=_same_job_after_a_restart,
    ),
    Fault(
        "same job on a restarted root",
        "the job goes on as it was when the root has lost its registers",
        TREE_MEETING.but(struck=ROOT),
        "progress",
        control=_same_job_after_a_restart,
    ),
]
