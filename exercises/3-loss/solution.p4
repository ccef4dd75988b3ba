// SPDX-License-Identifier: Apache-2.0
// Lab 3: frames are lost, so ranks repeat them.
#include "lab.p4"

const bit<8> ALL = 3;  // a bit for each of the ranks 0 and 1
const bit<32> COPIES = 2 * SLOTS;

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(COPIES) rounds;  // which round a copy is about
    register<bit<8>>(COPIES) heard;    // a bit for each rank
    register<bit<32>>(COPIES) sum_a;
    register<bit<32>>(COPIES) sum_b;
    register<bit<32>>(COPIES) sum_c;
    register<bit<32>>(COPIES) sum_d;

    apply {
        if ((bit<32>)hdr.lab.slot >= SLOTS) {
            mark_to_drop(sm);
            return;
        }
        // Even rounds use one copy, odd ones the other: a rank is one round behind at most.
        bit<32> at = 2 * (bit<32>)hdr.lab.slot + (hdr.lab.round & 1);
        bit<8> own = 8w1 << hdr.lab.rank;
        bit<32> known;
        bit<8> ranks;
        rounds.read(known, at);
        heard.read(ranks, at);
        if (hdr.lab.round < known) {  // a late duplicate
            mark_to_drop(sm);
            return;
        }
        if (hdr.lab.round > known) {
            ranks = 0;
        }
        bit<32> a;
        bit<32> b;
        bit<32> c;
        bit<32> d;
        sum_a.read(a, at);
        sum_b.read(b, at);
        sum_c.read(c, at);
        sum_d.read(d, at);
        if (ranks & own != 0) {  // repeated
            if (ranks == ALL) {
                hdr.lanes = {a, b, c, d};
                sm.egress_spec = sm.ingress_port;
            } else {
                mark_to_drop(sm);
            }
            return;
        }
        if (ranks != 0) {
            hdr.lanes.a = hdr.lanes.a + a;
            hdr.lanes.b = hdr.lanes.b + b;
            hdr.lanes.c = hdr.lanes.c + c;
            hdr.lanes.d = hdr.lanes.d + d;
        }
        ranks = ranks | own;
        rounds.write(at, hdr.lab.round);
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
