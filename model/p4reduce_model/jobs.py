# SPDX-License-Identifier: Apache-2.0
"""The jobs of a scenario as the controller puts them on switches and takes them off again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.fabric.schema import Entity, TableRow

from p4reduce_model.scenario import Scenario
from p4reduce_model.wiring import Wiring

Stages = tuple[tuple[Entity, ...], ...]


@dataclass(frozen=True)
class ControlStep:
    """One thing that the controller does to a switch at once.

    Attributes:
        text: for people.
        insert, delete: what comes and what goes.
        switch: which one.
        wipes: the switch restarts: its registers are zero.
        waits: not before all ranks have noticed that the switch is lost.
    """

    text: str
    insert: tuple[Entity, ...] = ()
    delete: tuple[Entity, ...] = ()
    switch: int = 0
    wipes: bool = False
    waits: bool = False


@dataclass(frozen=True)
class Control:
    """What the controller does.

    Attributes:
        steps: one after the other, each at any time.
        ready: for each life of the job, after how many steps its ranks may begin.
        lost: for each life, after how many steps its ranks may notice that the switch is lost, if
            they continue in the next one.
    """

    steps: list[ControlStep]
    ready: list[int]
    lost: list[int] = field(default_factory=list)


def stages(scenario: Scenario, life: int) -> list[Stages]:
    """What the controller writes for one life of the job, by switch and by its own `lay_out`."""
    wiring = Wiring(scenario)
    layouts = lay_out(wiring.job(life), wiring.topology, wiring.plan)
    return [layouts[name].stages for name in wiring.names]


def control_steps(scenario: Scenario) -> Control:
    """All that the controller does after the first job runs.

    The order is that of `Fabric.install` and `Fabric.remove`. In a tree the root is installed first
    and removed last. Each entry of the admission table is a step. Any other stage is one step,
    since no entry refers to it yet and so no frame can see half of it.
    """
    steps: list[ControlStep] = []
    ready, lost = [0], []
    for life in range(1, scenario.jobs):
        if scenario.wiped or scenario.recoveries:
            switches = range(len(stages(scenario, life)))
            others = [switch for switch in switches if switch != scenario.struck]
            steps += [*restart(scenario, life - 1), *removal(scenario, life - 1, others)]
        else:
            steps += removal(scenario, life - 1)
        lost.append(len(steps))
        steps += [
            replace(step, waits=scenario.recoveries > 0) for step in installation(scenario, life)
        ]
        ready.append(len(steps))
    if scenario.ends_wiped:
        steps += restart(scenario, scenario.jobs - 1)
    return Control(steps, ready, lost if scenario.recoveries else [])


def installation(
    scenario: Scenario, life: int, switches: Sequence[int] | None = None
) -> list[ControlStep]:
    """The steps that put a life of the job on these switches; None: on all."""
    by_switch = stages(scenario, life)
    steps = []
    for switch in reversed(range(len(by_switch)) if switches is None else switches):
        *others, admissions = by_switch[switch]
        name = Wiring(scenario).names[switch]
        steps += [
            ControlStep(f"{name}: inserts {_said(stage)}", insert=stage, switch=switch)
            for stage in (*filter(None, others), *((entity,) for entity in admissions))
        ]
    return steps


def removal(
    scenario: Scenario, life: int, switches: Sequence[int] | None = None
) -> list[ControlStep]:
    """The steps that take a life of the job off these switches; None: off all."""
    by_switch = stages(scenario, life)
    steps = []
    for switch in range(len(by_switch)) if switches is None else switches:
        *others, admissions = by_switch[switch]
        name = Wiring(scenario).names[switch]
        steps += [
            ControlStep(f"{name}: removes {_said(stage)}", delete=stage, switch=switch)
            for stage in (*((entity,) for entity in admissions), *filter(None, reversed(others)))
        ]
    return steps


def restart(scenario: Scenario, life: int) -> list[ControlStep]:
    """The one step in which a switch loses everything."""
    switch = scenario.struck
    gone = tuple(entity for stage in stages(scenario, life)[switch] for entity in stage)
    name = Wiring(scenario).names[switch]
    return [ControlStep(f"{name} restarts, empty", delete=gone, switch=switch, wipes=True)]


def _said(stage: Sequence[Entity]) -> str:
    names = []
    for entity in stage:
        if isinstance(entity, TableRow) and entity.table == "admission":
            names.append(f"the admission of {entity.match['rank']}, job {entity.match['job']}")
        else:
            names.append(entity.table if isinstance(entity, TableRow) else str(entity))
    return ", ".join(dict.fromkeys(names))
