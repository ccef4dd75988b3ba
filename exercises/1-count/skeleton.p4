// SPDX-License-Identifier: Apache-2.0
// Lab 1: a register that counts.
#include "lab.p4"

const bit<32> PORTS = 512;

control Lab(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(PORTS) frames;  // by port

    apply {
        // TODO: count the frames of each port in `frames`, and write the count into hdr.lab.count.
        // A register is read into a variable, frames.read(variable, index), and written by
        // frames.write(index, value). sm.ingress_port has 9 bits; an index has 32: (bit<32>)x.
        sm.egress_spec = sm.ingress_port;
    }
}

V1Switch(LabParser(), LabVerify(), Lab(), LabEgress(), LabCompute(), LabDeparser()) main;
