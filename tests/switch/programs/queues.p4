// SPDX-License-Identifier: Apache-2.0
// What egress sees of its queue: each frame says where it goes and with which priority, and comes out
// with all that the target tells.
#include <core.p4>
#include <v1model.p4>

header probe_t {
    bit<16> to;         // a port, or with the highest bit set a multicast group
    bit<8> priority;
    bit<8> clone_to;    // a clone session for a copy from egress, 0: none
    bit<8> turns;       // so often it is recirculated
    bit<8> tag;
    bit<32> enq_timestamp;
    bit<32> enq_qdepth;
    bit<32> deq_timedelta;
    bit<32> deq_qdepth;
}

struct headers_t {
    probe_t probe;
}

struct meta_t {
    @field_list(1)
    bit<8> turns;
}

parser parse(packet_in packet, out headers_t hdr, inout meta_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.probe);
        transition accept;
    }
}

control verify_nothing(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.probe.to[15:15] == 1) {
            standard.mcast_grp = hdr.probe.to & 0x7fff;
        } else {
            standard.egress_spec = (bit<9>)hdr.probe.to;
        }
        standard.priority = (bit<3>)hdr.probe.priority;
    }
}

control egress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.probe.enq_timestamp = standard.enq_timestamp;
        hdr.probe.enq_qdepth = (bit<32>)standard.enq_qdepth;
        hdr.probe.deq_timedelta = standard.deq_timedelta;
        hdr.probe.deq_qdepth = (bit<32>)standard.deq_qdepth;
        if (standard.instance_type == 2) {
            hdr.probe.tag = hdr.probe.tag + 100;
        } else if (hdr.probe.clone_to != 0) {
            clone(CloneType.E2E, (bit<32>)hdr.probe.clone_to);
        }
        if (hdr.probe.turns != 0) {
            hdr.probe.turns = hdr.probe.turns - 1;
            recirculate_preserving_field_list(1);
        }
    }
}

control update_nothing(inout headers_t hdr, inout meta_t meta) {
    apply {}
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.probe);
    }
}

V1Switch(parse(), verify_nothing(), ingress(), egress(), update_nothing(), deparse()) main;
