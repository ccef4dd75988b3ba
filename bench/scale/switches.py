# SPDX-License-Identifier: Apache-2.0
"""The switches of a simulation: the compiled program, with the entries of the controller."""

from __future__ import annotations

from collections.abc import Iterable

from p4reduce.wire.format import Endpoint
from p4reduce_controller.fabric.layout import lay_out, own_addresses
from p4reduce_controller.fabric.schema import Entity
from p4reduce_controller.jobs.job import (
    REPLICAS_A_CHILD,
    Attachment,
    Job,
    JobMember,
    MemberState,
    Share,
)
from p4reduce_controller.jobs.plan import plan
from p4reduce_controller.topology.switches import Switch, Topology, Uplink
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.pipeline_choice import load_pipeline

from bench.scale.ranks import endpoint_of, switch_endpoint
from bench.scale.shape import Shape, name_of
from bench.switch.job import CONFIG, insert

MEETING = switch_endpoint(200)  # where ranks greet a tree; nobody does here


def make_switch(here: Endpoint, entities: Iterable[Entity]) -> Pipeline:
    """Load the program and put entries in, as machine code where that can be."""
    pipeline = load_pipeline(CONFIG.read_bytes())
    for entity in (*own_addresses(parse_ip(here.ip), parse_mac(here.mac)), *entities):
        insert(pipeline, entity)
    return pipeline


def lay_out_job(shape: Shape, job: int, slots: int) -> dict[int, list[Entity]]:
    """Return what the controller writes for a job with a rank at each place, by switch's node."""
    nodes = {name_of(node): node for level in shape.levels[1:] for node in level}
    topology = Topology(
        {name: _switch(shape, node) for name, node in nodes.items()},
        (parse_ip(MEETING.ip), parse_mac(MEETING.mac)),
    )
    described = Job(
        name="simulation",
        incarnation=job,
        world_size=shape.ranks,
        slot_count=slots,
        created=0.0,
        by_operator=False,
        secret=b"",
    )
    for rank in range(shape.ranks):
        at, place = endpoint_of(rank), shape.parent(rank)
        addresses = parse_mac(at.mac), parse_ip(at.ip), at.udp_port
        attached = Attachment(place.port, *addresses, name_of(place.node))
        described.members[rank] = JobMember(
            rank, 0, "", 0, rank, state=MemberState.ATTACHED, attachment=attached
        )
    planned = plan(described, topology)
    for name, children in planned.items():
        below_root = nodes[name] != shape.root
        replicas = REPLICAS_A_CHILD * len(children) + below_root
        described.shares[name] = Share(
            range(slots), list(range(2, 4 + below_root)), list(range(1, 1 + replicas))
        )
    layouts = lay_out(described, topology, planned)
    return {
        nodes[name]: [entity for stage in layout.stages for entity in stage]
        for name, layout in layouts.items()
    }


def address_of(shape: Shape, node: int) -> Endpoint:
    """The addresses of a rank or a switch."""
    return endpoint_of(node) if node < shape.ranks else switch_endpoint(node - shape.ranks)


def _switch(shape: Shape, node: int) -> Switch:
    """A switch as the controller knows it."""
    at = address_of(shape, node)
    uplink = None
    if node != shape.root:
        parent = shape.parent(node)
        uplink = Uplink(shape.uplink(node), name_of(parent.node), parent.port)
    leaf = node in shape.levels[1]
    ports = tuple(range(1, len(shape.children(node)) + 1)) if leaf else ()
    return Switch(name_of(node), parse_ip(at.ip), parse_mac(at.mac), ports, uplink=uplink)
