# SPDX-License-Identifier: Apache-2.0
"""The jobs of a scenario as the controller puts them on the switch and takes them off again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from p4reduce.wire.format import AGGREGATION_PORT, Endpoint
from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.fabric.schema import Entity, Row
from p4reduce_controller.jobs.job import Attachment, Job, Member, MemberState, Share
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.topology.switches import ONLY, only_switch
from p4reduce_controller.values.mac_ip import format_ip, format_mac, parse_ip, parse_mac

from p4reduce_model.scenario import FIRST_SLOT, Scenario

SWITCH = Endpoint("02:70:34:72:65:64", "10.77.255.254", AGGREGATION_PORT)


@dataclass(frozen=True)
class ControlStep:
    """One thing that the controller does to the switch at once.

    Attributes:
        text: for people.
        insert, delete: what comes and what goes.
        wipes: the switch restarts: its registers are zero.
        waits: not before all ranks have noticed that the switch is lost.
    """

    text: str
    insert: tuple[Entity, ...] = ()
    delete: tuple[Entity, ...] = ()
    wipes: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Control:
    """What the controller does.

    Attributes:
        steps: one after the other, each at any time.
        ready: for each life of the job, after how many steps its ranks may begin.
        lost: for each life, after how many steps its ranks may notice that the switch is lost, if
            they go on in the next one.
    """

    steps: list[ControlStep]
    ready: list[int]
    lost: list[int] = field(default_factory=list)


def port_of(rank: int) -> int:
    """The switch's port that a rank is at, in all lives of the job."""
    return rank + 1


def endpoint_of(rank: int) -> Endpoint:
    """A rank's addresses; those of an earlier life are used again, as only the worst is of use."""
    return Endpoint(format_mac(0x02_00_00_00_01_00 + rank), format_ip(0x0A4D0001 + rank), 49152)


def stages(scenario: Scenario, life: int) -> tuple[tuple[Entity, ...], ...]:
    """What the controller writes for one life of the job, by its own `lay_out`."""
    job = Job(
        name="model",
        incarnation=scenario.job(life),
        world_size=scenario.ranks,
        slot_count=scenario.slots,
        created=0.0,
        by_operator=False,
        secret=b"",
    )
    groups = [2 + 2 * life, 3 + 2 * life]
    replica_ids = [1 + 3 * scenario.ranks * life + n for n in range(3 * scenario.ranks)]
    job.shares = {ONLY: Share(_slots(scenario), groups, replica_ids)}
    for rank in range(scenario.ranks):
        at = endpoint_of(rank)
        attachment = Attachment(port_of(rank), parse_mac(at.mac), parse_ip(at.ip), at.udp_port)
        job.members[rank] = Member(
            rank, 0, "", 0, rank, 0.0, state=MemberState.ATTACHED, attachment=attachment
        )
    topology = only_switch(0, 0, ())
    return lay_out(job, topology, plan(job, topology))[ONLY].stages


def control_steps(scenario: Scenario) -> Control:
    """All that the controller does after the first job runs.

    The order is that of `Fabric.install` and `Fabric.remove`. Entries of the admission table come
    and go one by one; a stage that nothing refers to is one step, as no frame can tell.
    """
    steps: list[ControlStep] = []
    ready, lost = [0], []
    for life in range(1, scenario.jobs):
        wiped = scenario.wiped or scenario.recoveries
        steps += restart(scenario, life - 1) if wiped else removal(scenario, life - 1)
        lost.append(len(steps))
        steps += [
            replace(step, waits=scenario.recoveries > 0) for step in installation(scenario, life)
        ]
        ready.append(len(steps))
    return Control(steps, ready, lost if scenario.recoveries else [])


def installation(scenario: Scenario, life: int) -> list[ControlStep]:
    """The steps that put a life of the job on the switch."""
    *stages_, admissions = stages(scenario, life)
    return [ControlStep(f"inserts {_said(stage)}", insert=stage) for stage in stages_] + [
        ControlStep(f"inserts {_said([entity])}", insert=(entity,)) for entity in admissions
    ]


def removal(scenario: Scenario, life: int) -> list[ControlStep]:
    """The steps that take a life of the job off the switch."""
    *stages_, admissions = stages(scenario, life)
    return [
        ControlStep(f"removes {_said([entity])}", delete=(entity,)) for entity in admissions
    ] + [ControlStep(f"removes {_said(stage)}", delete=stage) for stage in reversed(stages_)]


def restart(scenario: Scenario, life: int) -> list[ControlStep]:
    """The one step in which the switch loses everything."""
    gone = tuple(entity for stage in stages(scenario, life) for entity in stage)
    return [ControlStep("the switch restarts, empty", delete=gone, wipes=True)]


def _slots(scenario: Scenario) -> range:
    return range(FIRST_SLOT, FIRST_SLOT + scenario.slots)


def _said(stage: Sequence[Entity]) -> str:
    names = []
    for entity in stage:
        if isinstance(entity, Row) and entity.table == "admission":
            names.append(f"the admission of rank {entity.match['rank']}, job {entity.match['job']}")
        else:
            names.append(entity.table if isinstance(entity, Row) else str(entity))
    return ", ".join(dict.fromkeys(names))
