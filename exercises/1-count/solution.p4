// SPDX-License-Identifier: Apache-2.0
// Lab 1: a register that counts.
#include "lab.p4"

const bit<32> PORTS = 512;

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(PORTS) frames;  // by port

    apply {
        bit<32> seen;
        frames.read(seen, (bit<32>)sm.ingress_port);
        seen = seen + 1;
        frames.write((bit<32>)sm.ingress_port, seen);
        hdr.lab.count = seen;
        sm.egress_spec = sm.ingress_port;
    }
}

V1Switch(LabParser(), LabVerify(), Lab(), LabEgress(), LabCompute(), LabDeparser()) main;
