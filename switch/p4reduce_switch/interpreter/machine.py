# SPDX-License-Identifier: Apache-2.0
"""Runs frames through a program, in the order of simple_switch's documentation and source.

A frame runs through the parser, the verification of checksums and ingress. Each copy then runs
through egress, the update of checksums and the deparser. What a clone or a replayed packet keeps
has the value that it has at the end of the control, not at the primitive's call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from p4reduce_switch.interpreter.actions import Actions, PacketDropped, Visit
from p4reduce_switch.interpreter.expressions import store_to
from p4reduce_switch.interpreter.packet import Kept, PacketState
from p4reduce_switch.interpreter.parser import PacketParser
from p4reduce_switch.program.ir import NOWHERE, FieldList, Program
from p4reduce_switch.program.limits import MAX_HEADER_GROWTH
from p4reduce_switch.program.replays import InstanceType, belongs_to_headers
from p4reduce_switch.state.clone_sessions import UNLIMITED
from p4reduce_switch.state.lasting import LastingState

_Copies: TypeAlias = Iterable[tuple[int, int]]  # port and instance of each
_Frames: TypeAlias = list[tuple[int, bytes]]  # port and bytes of each


class Machine:
    """Runs frames.

    Args:
        program: what to run.
        pipeline: its tables, counters and all else that outlives a packet.
        visit: called at each point of the program.
    """

    def __init__(self, program: Program, pipeline: LastingState, visit: Visit | None) -> None:
        self._program = program
        self._pipeline = pipeline
        actions = Actions(program, pipeline, visit)
        self._parse = PacketParser(actions).run
        self._parse_first = actions.visited("control", "parser", NOWHERE, self._parse)
        self._verify = actions.checksums(program.verify)
        ingress, egress = actions.control(program.ingress), actions.control(program.egress)
        self._run_ingress = actions.visited("control", "ingress", NOWHERE, ingress)
        self._run_egress = actions.visited("control", "egress", NOWHERE, egress)
        self._update = actions.checksums(program.update)
        self._deparser = [(name, actions.layouts[name]) for name in program.deparser]
        self._blank = PacketState.blank(program.headers.values())
        self._getters = {name: actions.bits(field) for name, field in program.intrinsic.items()}
        self._setters = {name: store_to(field) for name, field in program.intrinsic.items()}

    def process(self, port: int, frame: bytes) -> _Frames:
        """Run a frame and all packets that it leads to; return those to send, with their ports."""
        self._pipeline.stats.frames_in += 1
        frames = self._ingress(port, frame, InstanceType.NORMAL, {})
        self._pipeline.replays.run(frames)
        if self._pipeline.queues is not None:
            return self._pipeline.queues.release()
        self._pipeline.stats.frames_out += len(frames)
        return frames

    def _ingress(self, port: int, frame: bytes, type_: InstanceType, kept: Kept) -> _Frames:
        packet = self._start(port, frame)
        if type_ is not InstanceType.NORMAL:
            self._set(packet, ingress_global_timestamp=0, instance_type=type_)
        packet.update(kept)
        try:
            self._parse_first(packet)
            for field, value in self._verify(packet):
                if packet[str(field)] & (1 << field.width) - 1 != value:
                    self._set(packet, checksum_error=1)
            self._run_ingress(packet)
        except PacketDropped:
            return []
        if packet.digest:
            fields = self._program.kept.digests[packet.digest].fields
            self._pipeline.digests[packet.digest].learn(*(packet[str(each)] for each in fields))
        return self._forward(port, packet)

    def _start(self, port: int, frame: bytes) -> PacketState:
        packet, now = self._blank.copy(), self._pipeline.now()
        packet.frame, packet.length = frame, len(frame)
        self._set(packet, ingress_port=port, packet_length=len(frame), ingress_global_timestamp=now)
        return packet

    def _forward(self, port: int, packet: PacketState) -> _Frames:
        """After ingress: multicast goes before unicast, unicast to the drop port is a drop."""
        frames, stats = self._clone_at_ingress(port, packet), self._pipeline.stats
        if packet.resubmit is not None:
            self._again(packet, packet.frame, InstanceType.RESUBMITTED, packet.resubmit)
        elif group := self._get(packet, "mcast_grp"):
            copies: _Copies = self._pipeline.multicast.destinations.get(group, ())
            stats.dropped_no_replica += not copies
            self._set(packet, instance_type=InstanceType.REPLICATION)
            packet.most = UNLIMITED  # simple_switch forgets `truncate` when it makes copies
            frames += self._send(packet, copies)
        elif (spec := self._get(packet, "egress_spec")) == self._pipeline.drop_port:
            stats.dropped_ingress += 1
        else:
            self._set(packet, instance_type=InstanceType.NORMAL)
            frames += self._send(packet, [(spec, 0)])
        return frames

    def _clone_at_ingress(self, port: int, origin: PacketState) -> _Frames:
        """Send clones made at the end of ingress: of the frame as it came in, parsed again."""
        copies, most, kept = self._clones(origin)
        if not copies:
            return []
        packet = self._start(port, origin.frame)
        try:
            self._parse(packet)
        except PacketDropped:
            return []
        self._reset(packet, kept, most, InstanceType.INGRESS_CLONE)
        return self._send(packet, copies)

    def _send(self, packet: PacketState, copies: _Copies) -> _Frames:
        """Run egress for each copy, unless it has to wait in a queue."""
        if self._pipeline.queues is not None:
            for port, instance in copies:
                self._later(packet, port, instance)
            return []
        now = self._pipeline.now()
        outs = [
            (port, self._egress(port, now, 0, 0, instance, packet)) for port, instance in copies
        ]
        return [(port, out) for port, out in outs if out is not None]

    def _later(self, packet: PacketState, port: int, instance: int) -> None:
        """Run egress for a copy after its time in the queue, or after the present packet."""
        if self._pipeline.queues is not None:
            priority = self._get(packet, "priority")
            self._pipeline.queues.push(port, priority, self._egress, (instance, packet))
        else:
            run = (port, self._egress, (port, self._pipeline.now(), 0, 0, instance, packet))
            self._pipeline.replays.waiting.append(run)

    def _egress(
        self, port: int, enqueued: int, before: int, behind: int, instance: int, origin: PacketState
    ) -> bytes | None:
        """Run a copy, which was queued at `enqueued`, with so many others `before` and `behind` it
        then and now. Return the frame that leaves, or None: it is dropped, or runs again."""
        packet, pipeline, now = origin.copy(), self._pipeline, self._pipeline.now()
        self._set(packet, egress_port=port, egress_rid=instance, packet_length=packet.length)
        self._set(packet, egress_global_timestamp=now, enq_timestamp=enqueued)
        self._set(packet, deq_timedelta=now - enqueued, enq_qdepth=before, deq_qdepth=behind)
        self._set(packet, egress_spec=pipeline.drop_port + 1)  # anything but the drop port
        try:
            self._run_egress(packet)
        except PacketDropped:
            return None
        self._clone_at_egress(packet, *self._clones(packet))
        if self._get(packet, "egress_spec") == pipeline.drop_port:
            pipeline.stats.dropped_egress += 1
            return None
        for field, value in self._update(packet):
            store_to(field)(packet, value)
        headers = [layout.pack(packet) for name, layout in self._deparser if name in packet.valid]
        out = b"".join(headers) + packet.payload
        if len(out) > len(packet.frame) + MAX_HEADER_GROWTH:
            pipeline.stats.dropped_growth += 1
            return None
        if packet.recirculate is not None:  # uncut, because simple_switch forgets `truncate` here
            self._again(packet, out, InstanceType.RECIRCULATED, packet.recirculate)
            return None
        return out[: packet.most]

    def _clone_at_egress(self, origin: PacketState, copies: _Copies, most: int, kept: Kept) -> None:
        """Clone a packet with the headers as egress left them, before checksums are updated."""
        for port, instance in copies:
            packet = origin.copy()
            self._reset(packet, kept, most, InstanceType.EGRESS_CLONE)
            self._later(packet, port, instance)

    def _clones(self, packet: PacketState) -> tuple[_Copies, int, Kept]:
        """The copies of the clone session that was asked for, their most bytes, what they keep."""
        if packet.clone is None:
            return (), UNLIMITED, {}
        session, kept = packet.clone
        copies, most = self._pipeline.clone_sessions.destinations.get(session, ((), UNLIMITED))
        return copies, most, packet.kept(kept)

    def _again(
        self, packet: PacketState, frame: bytes, type_: InstanceType, kept: FieldList
    ) -> None:
        """The frame waits for ingress. All metadata starts from zero, the ingress port as well."""
        run = (None, self._ingress, (0, frame, type_, packet.kept(kept)))
        self._pipeline.replays.waiting.append(run)

    def _reset(self, packet: PacketState, kept: Kept, most: int, type_: InstanceType) -> None:
        """Make a packet a clone. Its metadata is zero, except what it keeps."""
        metadata = [h for h in self._program.headers.values() if h.is_metadata]
        fields = [f for h in metadata for f in h.fields if not belongs_to_headers(f)]
        packet |= dict.fromkeys(map(str, fields), 0) | kept
        packet.most = most
        self._set(packet, instance_type=type_)

    def _get(self, packet: PacketState, name: str) -> int:
        """A field of the target; 0 if the program does not have it."""
        getter = self._getters.get(name)
        return 0 if getter is None else getter(packet)

    def _set(self, packet: PacketState, **values: int) -> None:
        """Set fields of the target, as far as the program has them."""
        for name, value in values.items():
            if (store := self._setters.get(name)) is not None:
                store(packet, value)
