// SPDX-License-Identifier: Apache-2.0
// Lab 3: frames are lost, so ranks repeat them.
#include "lab.p4"

const bit<8> ALL = 3;  // a bit for each of the ranks 0 and 1

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    // TODO: one copy of a slot is not enough. Which other register does a copy need?
    register<bit<8>>(SLOTS) heard;  // a bit for each rank
    register<bit<32>>(SLOTS) sum_a;
    register<bit<32>>(SLOTS) sum_b;
    register<bit<32>>(SLOTS) sum_c;
    register<bit<32>>(SLOTS) sum_d;

    apply {
        bit<32> at = (bit<32>)hdr.lab.slot;
        if (at >= SLOTS) {
            mark_to_drop(sm);
            return;
        }
        bit<8> own = 8w1 << hdr.lab.rank;
        bit<8> ranks;
        bit<32> a;
        bit<32> b;
        bit<32> c;
        bit<32> d;
        heard.read(ranks, at);
        sum_a.read(a, at);
        sum_b.read(b, at);
        sum_c.read(c, at);
        sum_d.read(d, at);

        // TODO: who was heard already must not be added again; if the sum is complete, the rank
        // that asks gets it once more, by its own port: sm.egress_spec = sm.ingress_port.
        if (ranks == 0 || ranks == ALL) {
            ranks = own;
        } else {
            hdr.lanes.a = hdr.lanes.a + a;
            hdr.lanes.b = hdr.lanes.b + b;
            hdr.lanes.c = hdr.lanes.c + c;
            hdr.lanes.d = hdr.lanes.d + d;
            ranks = ALL;
        }
        heard.write(at, ranks);
        sum_a.write(at, hdr.lanes.a);
        sum_b.write(at, hdr.lanes.b);
        sum_c.write(at, hdr.lanes.c);
        sum_d.write(at, hdr.lanes.d);
        if (ranks == ALL) {
            sm.mcast_grp = RANKS;
        } else {
            mark_to_drop(sm);
        }
    }
}

V1Switch(LabParser(), LabVerify(), Lab(), LabEgress(), LabCompute(), LabDeparser()) main;
