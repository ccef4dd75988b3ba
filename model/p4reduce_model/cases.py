# SPDX-License-Identifier: Apache-2.0
"""The cases that are explored: small ones with every test run, larger ones by `make model`."""

from __future__ import annotations

from p4reduce_model.scenario import Call, Scenario

_SPARSE = Call(3, zeros=frozenset({(0, 0), (1, 1), (0, 2)}))
_SPARSE_3 = Call(3, zeros=frozenset({(0, 0), (1, 1), (2, 2), (2, 1)}))
_TWICE = (Call(2), Call(1, in_place=True, dtype="int8"))
_ONE_WITHOUT = Call(1, zeros=frozenset({(0, 0)}))
_OVERTAKING = (Call(1), Call(1, priority=2), Call(1, priority=1))
_RECOVERED = (Call(1, in_place=True), Call(0))
_IN_ROW = (Call(2, in_place=True), Call(1))
_HALVES = (Call(1, in_place=True, zeros=frozenset({(0, 0)})),)

# A negotiation and the sum of one rank, a negotiation and that of the other.
_WITHOUT_ONE = (Call(1), _ONE_WITHOUT, Call(1), Call(1, zeros=frozenset({(1, 0)})))

TREE_PAIR = Scenario("tree, 1 rank a leaf", ranks=2, leaves=2, slots=1, lives=((Call(2),),))
TREE_PAIR_BARE = TREE_PAIR.but(name="tree, 1 rank a leaf, zeros", lives=((_ONE_WITHOUT,),))
TREE = Scenario("tree", ranks=4, leaves=2, slots=1, lives=((Call(1),),))
TREE_MEETING = TREE.but(name="tree, meeting", lives=((Call(0),),))
ROOT = 2  # of two leaves, which are 0 and 1
_TREE_MISMATCH = Call(1, differs=frozenset({3}))

SMALL = [
    Scenario("dense", ranks=2, slots=1, lives=((Call(4),),)),
    Scenario("dense, 3 ranks", ranks=3, slots=1, lives=((Call(3),),)),
    Scenario("dense, 2 slots", ranks=2, slots=2, lives=((Call(2),),)),
    Scenario("calls in a row", ranks=2, slots=1, lives=((*_TWICE, Call(0)),)),
    Scenario("zeros", ranks=2, slots=1, lives=((_SPARSE,),)),
    Scenario("floats", ranks=2, slots=1, lives=((Call(2, dtype="float32"),),)),
    Scenario(
        "4 bits",
        ranks=2,
        slots=1,
        lives=((Call(2, dtype="int8", precision="int4", zeros=frozenset({(0, 1)})),),),
    ),
    Scenario("rounds overflow", ranks=2, slots=1, lives=((Call(3),),), first_round=0xFFFFFFFE),
    Scenario("slow transport", ranks=2, slots=1, lives=((Call(2),),), hesitant=True),
    Scenario(
        "mismatch", ranks=2, slots=1, lives=((Call(1), Call(1, differs=frozenset({1})), Call(1)),)
    ),
    Scenario(
        "mismatch, 2 slots",
        ranks=2,
        slots=2,
        lives=((Call(1), Call(2, differs=frozenset({0})), Call(1)),),
    ),
    Scenario("re-created", ranks=2, slots=1, lives=((Call(1),), (Call(1),))),
    Scenario("switch restarts", ranks=2, slots=1, lives=((Call(1),), (Call(1),)), wiped=True),
    Scenario("windows", ranks=2, slots=2, lives=((Call(2),),), windows=True),
    Scenario("3 classes", ranks=2, slots=3, urgent=(1, 1), lives=(_OVERTAKING,)),
    Scenario("recovery", ranks=2, slots=1, lives=(_RECOVERED,), recoveries=1),
    Scenario("a rank is lost", ranks=3, slots=1, lives=(_RECOVERED,), settles=True),
    Scenario("a rank is lost, 2 slots", ranks=2, slots=2, lives=(_IN_ROW,), settles=True),
    Scenario("a rank is lost, zeros", ranks=2, slots=1, lives=((_SPARSE,),), settles=True),
    Scenario("recovery, twice", ranks=2, slots=1, lives=(_RECOVERED[:1],), recoveries=2),
    Scenario(
        "recovery, 2 slots", ranks=2, slots=2, lives=((Call(2, in_place=True),),), recoveries=1
    ),
    TREE_PAIR,
    TREE_PAIR.but(name="tree, 1 rank a leaf, a leaf restarts", lives=((Call(0),),) * 2, wiped=True),
    TREE_PAIR.but(
        name="tree, 1 rank a leaf, the root restarts",
        lives=((Call(0),),) * 2,
        wiped=True,
        struck=ROOT,
    ),
    TREE_MEETING,
    TREE_MEETING.but(name="tree, meeting, a leaf is lost", ends_wiped=True),
    TREE_MEETING.but(name="tree, meeting, the root is lost", ends_wiped=True, struck=ROOT),
    Scenario("late ranks", ranks=2, slots=1, lives=(_WITHOUT_ONE,)),
    Scenario("one asks for all, 3 ranks", ranks=3, slots=1, lives=((Call(2),),), few=1),
    TREE_MEETING.but(name="tree, meeting, one asks for all", few=1),
]

LARGE = [
    TREE_PAIR.but(name="tree, 1 rank a leaf, late ranks", lives=(_WITHOUT_ONE[:2],)),
    Scenario("late ranks, recovery", ranks=2, slots=1, lives=(_WITHOUT_ONE[:2],), recoveries=1),
    Scenario("dense, 4 ranks", ranks=4, slots=1, lives=((Call(3),),)),
    Scenario("dense, 2 slots, 8 blocks", ranks=2, slots=2, lives=((Call(8),),)),
    Scenario("3 ranks, 2 slots", ranks=3, slots=2, lives=((Call(2),),)),
    Scenario("calls in a row, 2 slots", ranks=2, slots=2, lives=((Call(1), Call(2), Call(1)),)),
    Scenario("zeros, 3 ranks", ranks=3, slots=1, lives=((_SPARSE_3,),)),
    Scenario("zeros, 2 slots", ranks=2, slots=2, lives=((_SPARSE,),)),
    Scenario("slow transport, 2 slots", ranks=2, slots=2, lives=((Call(2),),), hesitant=True),
    Scenario("re-created, 3 blocks", ranks=2, slots=1, lives=((Call(3),), (Call(3),))),
    Scenario("re-created, 3 ranks", ranks=3, slots=1, lives=((Call(1),), (Call(1),))),
    Scenario("re-created twice", ranks=2, slots=1, lives=((Call(1),), (Call(1),), (Call(1),))),
    Scenario(
        "switch restarts, 3 blocks", ranks=2, slots=1, lives=((Call(3),), (Call(3),)), wiped=True
    ),
    Scenario("windows, 3 slots", ranks=2, slots=3, lives=((Call(3),),), windows=True),
    Scenario("windows, 3 ranks", ranks=3, slots=2, lives=((Call(2),),), windows=True),
    Scenario("a rank is lost, halves", ranks=3, slots=1, lives=(_HALVES,), settles=True),
    Scenario(
        "recovery, a rank is lost",
        ranks=2,
        slots=1,
        lives=(_RECOVERED,),
        recoveries=1,
        settles=True,
    ),
    Scenario("recovery, twice, 2 calls", ranks=2, slots=1, lives=(_RECOVERED,), recoveries=2),
    Scenario("recovery, halves", ranks=3, slots=1, lives=(_HALVES,), recoveries=1),
    Scenario("recovery, 3 calls", ranks=2, slots=1, lives=((*_RECOVERED, Call(1)),), recoveries=1),
    Scenario(
        "recovery, 2 slots, 2 calls", ranks=2, slots=2, lives=((Call(1), Call(2)),), recoveries=1
    ),
    Scenario("recovery, 3 ranks", ranks=3, slots=1, lives=(_RECOVERED,), recoveries=1),
    Scenario("recovery, 2 slots, twice", ranks=2, slots=2, lives=((Call(2),),), recoveries=2),
    TREE,
    TREE.but(name="tree, one asks for all", few=1),
    TREE.but(name="tree, a leaf is lost", ends_wiped=True),
    TREE.but(name="tree, the root is lost", ends_wiped=True, struck=ROOT),
    TREE.but(name="tree, zeros", lives=((_ONE_WITHOUT,),)),
    TREE.but(name="tree, mismatch", lives=((_TREE_MISMATCH,),)),
    TREE_PAIR.but(
        name="tree, 1 rank a leaf, a leaf restarts, with a block",
        lives=((Call(1),),) * 2,
        wiped=True,
    ),
    TREE_PAIR.but(
        name="tree, 1 rank a leaf, the root restarts, with a block",
        lives=((Call(1),),) * 2,
        wiped=True,
        struck=ROOT,
    ),
    TREE_MEETING.but(name="tree, meeting, a leaf restarts", lives=((Call(0),),) * 2, wiped=True),
    TREE_MEETING.but(
        name="tree, meeting, the root restarts", lives=((Call(0),),) * 2, wiped=True, struck=ROOT
    ),
]
