# SPDX-License-Identifier: Apache-2.0
"""The switches of a simulation: the compiled program, with the entries of the controller."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from p4reduce.wire.format import Endpoint
from p4reduce_controller.fabric.layout import lay_out, own_addresses
from p4reduce_controller.fabric.schema import Entity, Group, Row
from p4reduce_controller.jobs.job import REPLICAS_A_RANK, Attachment, Job, Member, MemberState
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.pipeline_choice import load_pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Entry

CONFIG = Path(__file__).resolve().parents[2] / "p4src" / "compiled" / "p4reduce.json"


def make_switch(here: Endpoint, entities: Iterable[Entity]) -> Pipeline:
    """Load the program and put entries in, as machine code where that can be."""
    pipeline = load_pipeline(CONFIG.read_bytes())
    for entity in (*own_addresses(parse_ip(here.ip), parse_mac(here.mac)), *entities):
        _insert(pipeline, entity)
    return pipeline


def _insert(pipeline: Pipeline, entity: Entity) -> None:
    if isinstance(entity, Group):
        replicas = [Replica(port, instance) for port, instance in entity.replicas]
        pipeline.multicast.insert(entity.group, replicas)
        return
    if not isinstance(entity, Row):
        raise TypeError(f"a job needs tables and groups only, not {entity}")
    table = pipeline.tables[entity.table]
    args = tuple(entity.params[name] for name, _ in table.actions[entity.action].params)
    table.insert(Entry(tuple(entity.match[key.name] for key in table.key), 0, entity.action, args))


def star_entities(job: int, slots: int, ranks: list[Endpoint]) -> list[Entity]:
    """What the controller writes for a job whose ranks are at the ports from 1 on."""
    described = Job(
        name="simulation",
        incarnation=job,
        world_size=len(ranks),
        slots=range(slots),
        created=0.0,
        by_operator=False,
        secret=b"",
        groups=[2, 3],
        replica_ids=list(range(1, 1 + REPLICAS_A_RANK * len(ranks))),
    )
    for rank, at in enumerate(ranks):
        attachment = Attachment(rank + 1, parse_mac(at.mac), parse_ip(at.ip), at.udp_port)
        described.members[rank] = Member(
            rank, 0, "", 0, rank, state=MemberState.ATTACHED, attachment=attachment
        )
    return [entity for stage in lay_out(described).stages for entity in stage]
