// SPDX-License-Identifier: Apache-2.0
// Lab 2: sum the lanes of two ranks.
#include "lab.p4"

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<8>>(SLOTS) heard;  // how many ranks a slot has heard
    register<bit<32>>(SLOTS) sum_a;
    register<bit<32>>(SLOTS) sum_b;
    register<bit<32>>(SLOTS) sum_c;
    register<bit<32>>(SLOTS) sum_d;

    apply {
        // TODO: the first frame of a slot leaves its lanes in the registers, and is dropped:
        // mark_to_drop(sm). The second one takes their sum to both ranks: sm.mcast_grp = RANKS. Then
        // the slot is as before the first one. A frame whose slot is not there is dropped.
        sm.mcast_grp = RANKS;
    }
}

V1Switch(LabParser(), LabVerify(), Lab(), LabEgress(), LabCompute(), LabDeparser()) main;
