# SPDX-License-Identifier: Apache-2.0
"""Jobs over trees of switches, without one: who needs which switch, and whom a loss hits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs_world import SWITCH_IP, SWITCH_MAC, World, join, make_jobs, refused
from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.fabric.schema import TableRow
from p4reduce_controller.jobs.job import Attachment, Job
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.lifecycle import Jobs
from p4reduce_controller.jobs.plan import PlanChild, parts, plan, plan_as_it_was
from p4reduce_controller.jobs.refusals import Cause
from p4reduce_controller.topology.switches import Switch, Topology, Uplink

LEAVES = 64


def tree(leaves: int = 3, ports: int = 64) -> Topology:
    """Leaves below two spines below a root; the last leaf hangs at the root itself."""
    uplinks = {"spine-0": Uplink(500, "root", 1), "spine-1": Uplink(500, "root", 2)}
    for number in range(leaves):
        parent = "root" if number == leaves - 1 else f"spine-{number % 2}"
        uplinks[f"leaf-{number}"] = Uplink(500, parent, number + 3)
    return _topology(uplinks, ports)


def _topology(uplinks: dict[str, Uplink], ports: int) -> Topology:
    switches = {
        name: Switch(
            name,
            SWITCH_IP - place,
            SWITCH_MAC + place,
            tuple(range(1, ports + 1)) if name.startswith("leaf") else (),
            uplink=uplinks.get(name),
        )
        for place, name in enumerate(["root", *uplinks], start=1)
    }
    return Topology(switches, (SWITCH_IP, SWITCH_MAC))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def jobs(world: World) -> Jobs:
    return make_jobs(world, tree())


def attached(jobs: Jobs, leaves: list[int], name: str = "train") -> Job:
    """Let a rank attach at each of those leaves."""
    job: Job | None = None
    for rank, leaf in enumerate(leaves):
        job, member = join(jobs, name, rank, len(leaves))
        at = Attachment(
            rank % 64 + 1,
            member.mac,
            jobs.holdings.suggested_ip(member),
            49152,
            f"leaf-{leaf}",
        )
        jobs.hello(job.incarnation, rank, member.nonce, at)
    assert job is not None
    return job


def test_a_plan_of_three_levels(jobs: Jobs) -> None:
    job = attached(jobs, [0, 1, 0, 2])
    assert plan(job, jobs.topology) == {
        "root": (
            PlanChild((3,), "leaf-2"),
            PlanChild((0, 2), "spine-0"),
            PlanChild((1,), "spine-1"),
        ),
        "leaf-2": (PlanChild((3,)),),
        "spine-0": (PlanChild((0, 2), "leaf-0"),),
        "spine-1": (PlanChild((1,), "leaf-1"),),
        "leaf-0": (PlanChild((0,)), PlanChild((2,))),
        "leaf-1": (PlanChild((1,)),),
    }
    assert list(job.shares) == ["root", "leaf-2", "spine-0", "spine-1", "leaf-0", "leaf-1"]


def test_the_entries_of_leaf_spine_and_root(jobs: Jobs) -> None:
    job = attached(jobs, [0, 1, 0, 2])
    topology = jobs.topology
    layouts = lay_out(job, topology, plan(job, topology))
    spine, leaf, root = layouts["spine-0"], layouts["leaf-0"], layouts["root"]
    assert {row.action for row in root.admissions} == {"grant"}
    assert not root.uplinks
    # The leaf is its spine's only child, and the spine the root's second one.
    [from_leaf] = spine.admissions
    assert from_leaf.match == {
        "ingress_port": 3,
        "src_ip": topology.switches["leaf-0"].ip,
        "job": job.incarnation,
        "rank": 0,
    }
    assert from_leaf.action == "grant_partial"
    full, halves, up = (group.group for group in spine.groups)
    share = job.shares["spine-0"]
    common = {"slot_base": share.slots.start, "slot_count": 32, "group_full": full}
    assert from_leaf.params == {
        "worker_bit": 1,
        "all_workers": 1,
        **common,
        "group_halves": halves,
        "group_up": up,
    }
    [uplink] = spine.uplinks
    above = topology.switches["root"]
    assert uplink.match == {
        "ingress_port": 500,
        "src_ip": above.ip,
        "job": job.incarnation,
        "rank": 1,
    }
    assert (uplink.action, uplink.params) == ("pass_down", {"all_workers": 1, **common})
    [(port, replica)] = spine.groups[2].replicas
    assert port == 500
    assert spine.deliveries[-1] == TableRow(
        "delivery",
        {"replica": replica},
        "whole",
        {"mac": above.mac, "ip": above.ip, "udp_port": 0xBEE0, "rank": 1},
    )
    # A rank keeps its number in frames, its bit is its place.
    assert [(row.match["rank"], row.params["worker_bit"]) for row in leaf.admissions] == [
        (0, 1),
        (2, 2),
    ]
    assert not spine.stations
    assert len(leaf.stations) == 2


@pytest.mark.long
def test_4096_ranks(world: World) -> None:
    uplinks = {f"leaf-{leaf}": Uplink(500, "root", leaf + 1) for leaf in range(LEAVES)}
    jobs = make_jobs(world, _topology(uplinks, 64))
    job = attached(jobs, [rank // 64 for rank in range(4096)])
    assert job.configuring
    planned = plan(job, jobs.topology)
    assert {len(children) for children in planned.values()} == {64}
    layouts = lay_out(job, jobs.topology, planned)
    assert sum(len(layout.admissions) for layout in layouts.values()) == 4096 + 64
    jobs.on_configured(job)
    for rank, member in job.members.items():
        jobs.heartbeat(job.incarnation, rank, member.nonce, completed=rank + 1)
    assert job.completed_by_all == 1
    message = refused(Cause.INVALID, lambda: join(jobs, "more", 0, 4097))
    assert message == "world size 4097 is not within 1 and 4096"


def test_too_many_ranks_at_one_leaf(world: World) -> None:
    jobs = make_jobs(world, tree(ports=100))
    job = attached(jobs, [0] * 64 + [1])
    assert job.configuring
    crowd = attached(jobs, [0] * 65, "crowd")
    assert (crowd.state, crowd.cause) == (JobState.FAILED, Cause.EXHAUSTED)
    assert "switch leaf-0 would have 65 ranks and switches below it" in crowd.reason


def test_a_loss_hits_only_the_jobs_that_need_it(jobs: Jobs, world: World) -> None:
    wide, left, right = (
        attached(jobs, leaves, name)
        for name, leaves in (("wide", [0, 1]), ("left", [0, 0]), ("right", [1, 1]))
    )
    for job in (wide, left, right):
        jobs.on_configured(job)
    jobs.on_part_lost("leaf-1", "it burns")
    assert (wide.state, left.state, right.state) == (
        JobState.FAILED,
        JobState.RUNNING,
        JobState.FAILED,
    )
    assert wide.reason == "switch leaf-1 was lost: it burns"
    jobs.on_part_back("leaf-1")
    link = jobs.topology.uplinks["spine-0"].text("spine-0")
    again = attached(jobs, [0, 2], "again")
    jobs.on_configured(again)
    jobs.on_part_lost(link, "dead")
    assert (again.state, left.state) == (JobState.FAILED, JobState.RUNNING)
    assert again.reason == "the link from spine-0 port 500 to root port 1 was lost: dead"


def test_links_that_are_gone_since_the_job_was_laid_out(jobs: Jobs) -> None:
    """By another topology file, between two lives of the controller."""
    job = attached(jobs, [0, 1])
    assert plan_as_it_was(job, jobs.topology) == plan(job, jobs.topology)
    switches = dict(jobs.topology.switches)
    switches["spine-0"] = replace(switches["spine-0"], uplink=None)
    without = Topology(switches, (SWITCH_IP, SWITCH_MAC))
    assert plan_as_it_was(job, without) is None
    assert parts(job, without) == parts(job, jobs.topology) - {
        jobs.topology.uplinks["spine-0"].text("spine-0")
    }


def test_a_job_waits_for_the_switches_that_it_needs(jobs: Jobs, world: World) -> None:
    jobs.on_part_lost("root", "it burns")
    here = attached(jobs, [0, 0], "here")
    assert world.to_configure == [here]
    there = attached(jobs, [0, 1], "there")
    assert not there.configuring
    assert str(jobs.why_closed_for(there)) == "switch root was lost: it burns"
    jobs.on_part_back("root")
    assert world.to_configure == [here, there]


def test_a_loss_while_the_switches_are_written_to(jobs: Jobs, world: World) -> None:
    job = attached(jobs, [0, 1])
    jobs.on_part_lost("leaf-1", "it burns")
    assert (job.state, job.configuring, world.to_withdraw) == (JobState.FORMING, False, [job])
    assert [member.attachment is None for member in job.active] == [False, True]
    jobs.on_configured(job)  # what had been begun comes too late
    assert job.state is JobState.FORMING
    jobs.on_part_back("leaf-1")
    member = job.members[1]
    at = Attachment(9, member.mac, jobs.holdings.suggested_ip(member), 49152, "leaf-2")
    jobs.hello(job.incarnation, 1, member.nonce, at)  # it comes back at another leaf
    assert world.to_configure == [job, job]
    assert list(job.shares) == ["root", "leaf-2", "spine-0", "leaf-0"]
    jobs.on_configured(job)
    jobs.delete("train")
    jobs.release(job)
    for name in jobs.topology.switches:
        assert jobs.holdings.slots_free(name) == 1024


def test_links_that_were_not_probed_yet(jobs: Jobs, world: World) -> None:
    link = jobs.topology.uplinks["leaf-2"].text("leaf-2")
    running = attached(jobs, [0, 2], "running")
    jobs.on_configured(running)
    jobs.on_part_unproven(link, "no probe has come through it yet")
    assert running.state is JobState.RUNNING
    waits = attached(jobs, [0, 2], "waits")
    assert not waits.configuring
    jobs.on_part_back(link)
    assert waits.configuring
