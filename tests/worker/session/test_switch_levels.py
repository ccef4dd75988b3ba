# SPDX-License-Identifier: Apache-2.0
"""What the controller's answer says of the switches above a rank."""

from __future__ import annotations

from typing import cast

from p4reduce.control import control_pb2 as pb
from p4reduce.session.job_client import JoinedJob, Member
from p4reduce.session.port import PortShare
from p4reduce.wire.format import Endpoint
from p4reduce.wire.rank_sets import Child, Level

MEETING = Endpoint("02:00:00:00:00:01", "10.77.255.254", 0xBEE0)
HERE = Endpoint("02:00:00:00:00:02", "10.77.0.1", 49152)


def joined(ready: pb.Ready) -> JoinedJob:
    member = Member(7, 2, 4, 1, HERE, MEETING)
    return JoinedJob(member, cast(PortShare, None), ready)


def test_contributions_go_to_the_switch_that_the_hello_came_in_by() -> None:
    assert joined(pb.Ready()).switch == MEETING  # an older controller
    told = joined(pb.Ready(switch_mac="02:00:00:00:00:09", switch_ip="10.77.255.250"))
    assert told.switch == Endpoint("02:00:00:00:00:09", "10.77.255.250", 0xBEE0)


def test_ranks_of_other_leaves_have_names() -> None:
    ready = pb.Ready(
        levels=[
            pb.Level(switch="b", children=[pb.Child(ranks=[2]), pb.Child(ranks=[3])]),
            pb.Level(
                switch="root",
                children=[pb.Child(switch="a", ranks=[0, 1]), pb.Child(switch="b", ranks=[2, 3])],
            ),
        ]
    )
    own, above = joined(ready).levels
    assert own == Level("b", (Child((2,)), Child((3,))))
    assert above.describe(above.missing(0b10)) == "ranks 0, 1 (switch a)"
    assert above.ranks(0b01) == (0, 1)


def test_a_rank_at_the_root_knows_the_switches_below() -> None:
    ready = pb.Ready(
        levels=[
            pb.Level(
                switch="root",
                children=[pb.Child(ranks=[2]), pb.Child(switch="a", ranks=[0, 1])],
            )
        ]
    )
    [only] = joined(ready).levels
    assert only.describe(only.missing(0b01)) == "ranks 0, 1 (switch a)"


def test_one_switch_needs_no_name() -> None:
    assert joined(pb.Ready()).levels == ()
    ready = pb.Ready(levels=[pb.Level(switch="switch", children=[pb.Child(ranks=[0])])])
    assert joined(ready).levels == (Level("", (Child((0,)),)),)
