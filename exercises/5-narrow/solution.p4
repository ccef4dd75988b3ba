// SPDX-License-Identifier: Apache-2.0
// Lab 5: a narrow lane format: a word is four int8 lanes.
#include "lab.p4"

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<8>>(SLOTS) heard;  // how many ranks a slot has heard
    register<bit<32>>(SLOTS) sum_a;
    register<bit<32>>(SLOTS) sum_b;
    register<bit<32>>(SLOTS) sum_c;
    register<bit<32>>(SLOTS) sum_d;

    action add(in bit<8> x, in bit<8> y, out bit<8> sum) {
        // A sum of two int8 lanes needs 9 bits; 16 are enough.
        int<16> wide = (int<16>)(int<8>)x + (int<16>)(int<8>)y;
        if (wide > 127) {
            wide = 127;
            hdr.lab.flags = hdr.lab.flags | OVERFLOW;
        } else if (wide < -128) {
            wide = -128;
            hdr.lab.flags = hdr.lab.flags | OVERFLOW;
        }
        sum = (bit<8>)(bit<16>)wide;
    }

    action add_word(inout bit<32> word, in bit<32> other) {
        bit<8> first;
        bit<8> second;
        bit<8> third;
        bit<8> fourth;
        add(word[31:24], other[31:24], first);
        add(word[23:16], other[23:16], second);
        add(word[15:8], other[15:8], third);
        add(word[7:0], other[7:0], fourth);
        word = first ++ second ++ third ++ fourth;
    }

    apply {
        bit<32> slot = (bit<32>)hdr.lab.slot;
        if (slot >= SLOTS) {
            mark_to_drop(sm);
            return;
        }
        bit<8> ranks;
        heard.read(ranks, slot);
        if (ranks == 0) {
            sum_a.write(slot, hdr.lanes.a);
            sum_b.write(slot, hdr.lanes.b);
            sum_c.write(slot, hdr.lanes.c);
            sum_d.write(slot, hdr.lanes.d);
            heard.write(slot, 1);
            mark_to_drop(sm);
        } else {
            bit<32> sum;
            sum_a.read(sum, slot);
            add_word(hdr.lanes.a, sum);
            sum_b.read(sum, slot);
            add_word(hdr.lanes.b, sum);
            sum_c.read(sum, slot);
            add_word(hdr.lanes.c, sum);
            sum_d.read(sum, slot);
            add_word(hdr.lanes.d, sum);
            heard.write(slot, 0);
            sm.mcast_grp = RANKS;
        }
    }
}

V1Switch(LabParser(), LabVerify(), Lab(), LabEgress(), LabCompute(), LabDeparser()) main;
