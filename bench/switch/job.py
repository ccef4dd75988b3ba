# SPDX-License-Identifier: Apache-2.0
"""A job on one switch as the controller lays it out, and the frames of its ranks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from p4reduce.wire import format as wire
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_controller.fabric.layout import own_addresses
from p4reduce_controller.fabric.p4client import SwitchClient
from p4reduce_controller.fabric.schema import Entity, MulticastGroup, Op, TableRow, Update
from p4reduce_controller.values.mac_ip import parse_ip, parse_mac
from p4reduce_switch.pipeline import Pipeline
from p4reduce_switch.state.multicast import Replica
from p4reduce_switch.state.tables import TableEntry

CONFIG = Path(__file__).resolve().parents[2] / "p4src" / "compiled" / "p4reduce.json"
SWITCH = wire.Endpoint("02:70:34:72:65:64", "10.77.255.254", wire.AGGREGATION_PORT)
JOB = 1
SLOTS = 32
RANKS = 4


def endpoint(rank: int) -> wire.Endpoint:
    """The addresses of the rank at port rank + 1."""
    return wire.Endpoint(f"02:00:00:00:01:{rank:02x}", f"10.77.0.{rank + 1}", 49152 + rank)


def switch_entities() -> Sequence[Entity]:
    """What a switch has without any job."""
    return own_addresses(parse_ip(SWITCH.ip), parse_mac(SWITCH.mac))


def job_entities(
    members: Sequence[int],
    slots: int,
    *,
    job: int = JOB,
    slot_base: int = 0,
    first_replica: int = 1,
) -> list[Entity]:
    """What a job needs: admission, delivery, multicast.

    The ranks have the ports of `members`, in their order. A job's groups are 2 * job for whole
    results, and the next one for halves. It has three instances for each member from
    `first_replica` on.
    """
    whole, halves = 2 * job, 2 * job + 1
    everybody = (1 << len(members)) - 1
    rows: list[Entity] = []
    replicas: dict[int, list[tuple[int, int]]] = {whole: [], halves: []}
    for rank, member in enumerate(members):
        at, port = endpoint(member), member + 1
        ip = parse_ip(at.ip)
        to = {"mac": parse_mac(at.mac), "ip": ip, "udp_port": at.udp_port, "rank": rank}
        for offset, action in enumerate(("whole", "first_half", "second_half")):
            replica = first_replica + 3 * rank + offset
            rows.append(TableRow("delivery", {"replica": replica}, action, to))
            replicas[halves if offset else whole].append((port, replica))
        match = {"ingress_port": port, "src_ip": ip, "job": job, "rank": rank}
        grant = {
            "worker_bit": 1 << rank,
            "all_workers": everybody,
            "slot_base": slot_base,
            "slot_count": slots,
            "group_full": whole,
            "group_halves": halves,
        }
        rows.append(TableRow("admission", match, "grant", grant))
    return [*rows, *(MulticastGroup(group, tuple(some)) for group, some in replicas.items())]


def configure(
    client: SwitchClient, ranks: int, slots: int, program: PipelineProgram | None = None
) -> None:
    """Put the program (another one with the same tables, if given) on the switch, with one job."""
    client.set_pipeline(program or load_program())
    entities = (*switch_entities(), *job_entities(range(ranks), slots))
    client.write([Update(Op.INSERT, one) for one in entities])


def insert(pipeline: Pipeline, entity: Entity) -> None:
    """Put an entry or a group into a switch of this process."""
    if isinstance(entity, MulticastGroup):
        replicas = [Replica(port, instance) for port, instance in entity.replicas]
        pipeline.multicast.insert(entity.group, replicas)
        return
    if not isinstance(entity, TableRow):
        raise TypeError(f"a job needs tables and groups only, not {entity}")
    table = pipeline.tables[entity.table]
    args = tuple(entity.params[name] for name, _ in table.actions[entity.action].params)
    match = tuple(entity.match[key.name] for key in table.key)
    table.insert(TableEntry(match, 0, entity.action, args))


def admit(pipeline: Pipeline) -> None:
    """One job of `RANKS` ranks in a switch of this process."""
    for entity in (*switch_entities(), *job_entities(range(RANKS), SLOTS)):
        insert(pipeline, entity)


def contribution(
    rank: int,
    slot: int,
    round_: int,
    lanes: bytes,
    slots: int = SLOTS,
    lane_format: wire.Format = wire.Format.INT32,
) -> bytes:
    """A frame from a rank to the switch; each round of a slot has its next block."""
    header = wire.header_bytes(
        kind=wire.FrameKind.CONTRIBUTE,
        flags=int(wire.Flag.PAYLOAD) if lanes else 0,
        rank=rank,
        job=JOB,
        slot=slot,
        format=lane_format,
        next_exponent=127,
        round=round_,
        block=round_ * slots + slot,
        next_block=(round_ + 1) * slots + slot,
        tag=1,
    )
    return wire.template(endpoint(rank), SWITCH, header, lanes)


def frames_of(first_round: int, rounds: int) -> list[tuple[int, bytes]]:
    """What all ranks send to all slots in some rounds, with the port of each."""
    generator = random.Random(first_round)
    lanes = [generator.randbytes(wire.PAYLOAD_BYTES) for _ in range(RANKS)]
    return [
        (rank + 1, contribution(rank, slot, round_, lanes[rank]))
        for round_ in range(first_round, first_round + rounds)
        for slot in range(SLOTS)
        for rank in range(RANKS)
    ]
