# SPDX-License-Identifier: Apache-2.0
"""The switches of a simulation: the compiled program, with the entries of the controller."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from p4reduce.wire.format import Endpoint
from p4reduce_controller.fabric.layout import DELIVERIES, lay_out, own_addresses
from p4reduce_controller.fabric.schema import Entity, Group, Row
from p4reduce_controller.jobs.job import REPLICAS_A_RANK, Attachment, Job, Member, MemberState
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.pipeline_choice import load_pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import Entry

from bench.scale.ranks import endpoint_of, switch_endpoint
from bench.scale.shape import Shape

_FULL, _HALVES, _UP = 2, 3, 4
_UP_REPLICA = 1000

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


def entities_of(shape: Shape, switch: int, job: int, slots: int) -> list[Entity]:
    """Return what a job needs on one switch of a tree, as `controller` would write it."""
    if switch == shape.root and len(shape.fanouts) == 1:
        return _star(job, slots, [endpoint_of(rank) for rank in range(shape.ranks)])
    children = shape.children(switch)
    everybody = (1 << len(children)) - 1
    entities: list[Entity] = []
    for number, child in enumerate(children):
        at, name = address_of(shape, child), child if child < shape.ranks else number
        address = {
            "mac": parse_mac(at.mac),
            "ip": parse_ip(at.ip),
            "udp_port": at.udp_port,
            "rank": name,
        }
        for part, action in enumerate(DELIVERIES):
            replica = {"replica": 1 + REPLICAS_A_RANK * number + part}
            entities.append(Row("delivery", replica, action, address))
    wholes = [(n + 1, 1 + REPLICAS_A_RANK * n) for n in range(len(children))]
    halves = [
        (n + 1, 1 + REPLICAS_A_RANK * n + part) for n in range(len(children)) for part in (1, 2)
    ]
    entities += [Group(_FULL, tuple(wholes)), Group(_HALVES, tuple(halves))]
    own = {"slot_base": 0, "slot_count": slots, "group_full": _FULL, "group_halves": _HALVES}
    action = "grant"
    if switch != shape.root:
        action = "grant_partial"
        own["group_up"] = _UP
        entities += _to_parent(shape, switch, job, slots, everybody)
    for number, child in enumerate(children):
        key = {
            "ingress_port": number + 1,
            "src_ip": parse_ip(address_of(shape, child).ip),
            "job": job,
            "rank": child if child < shape.ranks else number,
        }
        bits = {"worker_bit": 1 << number, "all_workers": everybody}
        entities.append(Row("admission", key, action, {**bits, **own}))
    return entities


def address_of(shape: Shape, node: int) -> Endpoint:
    """The addresses of a rank or a switch."""
    return endpoint_of(node) if node < shape.ranks else switch_endpoint(node - shape.ranks)


def _to_parent(shape: Shape, switch: int, job: int, slots: int, everybody: int) -> list[Entity]:
    """What a switch needs for its uplink."""
    parent = shape.parent(switch)
    at, number, port = address_of(shape, parent.node), parent.port - 1, shape.uplink(switch)
    address = {
        "mac": parse_mac(at.mac),
        "ip": parse_ip(at.ip),
        "udp_port": at.udp_port,
        "rank": number,
    }
    key = {"ingress_port": port, "src_ip": parse_ip(at.ip), "job": job, "rank": number}
    passed = {"all_workers": everybody, "slot_base": 0, "slot_count": slots, "group_full": _FULL}
    return [
        Row("delivery", {"replica": _UP_REPLICA}, "whole", address),
        Group(_UP, ((port, _UP_REPLICA),)),
        Row("uplink", key, "pass_down", passed),
    ]


def _star(job: int, slots: int, ranks: list[Endpoint]) -> list[Entity]:
    described = Job(
        name="simulation",
        incarnation=job,
        world_size=len(ranks),
        slots=range(slots),
        created=0.0,
        by_operator=False,
        secret=b"",
        groups=[_FULL, _HALVES],
        replica_ids=list(range(1, 1 + REPLICAS_A_RANK * len(ranks))),
    )
    for rank, at in enumerate(ranks):
        attachment = Attachment(rank + 1, parse_mac(at.mac), parse_ip(at.ip), at.udp_port)
        described.members[rank] = Member(
            rank, 0, "", 0, rank, state=MemberState.ATTACHED, attachment=attachment
        )
    return [entity for stage in lay_out(described).stages for entity in stage]
