// SPDX-License-Identifier: Apache-2.0
// Registers of several widths, indirect counters, indices beyond the end.
#include <core.p4>
#include <v1model.p4>

header op_h { bit<8> op; bit<32> index; bit<8> small; bit<32> medium; bit<2048> wide; int<16> signed; }
struct headers_t { op_h op; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.op); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<5>>(4) small;
    register<bit<32>>(8) medium;
    register<bit<2048>>(8) wide;
    register<int<16>>(2) signed;
    counter(4, CounterType.packets_and_bytes) counts;

    apply {
        sm.egress_spec = sm.ingress_port;
        counts.count(hdr.op.index);
        if (hdr.op.op == 0) {
            bit<5> value;
            small.read(value, hdr.op.index);
            hdr.op.small = (bit<8>)value;
            medium.read(hdr.op.medium, hdr.op.index);
            wide.read(hdr.op.wide, hdr.op.index & 7);
            signed.read(hdr.op.signed, hdr.op.index);
        } else {
            small.write(hdr.op.index, hdr.op.small[4:0] + 1);
            medium.write(hdr.op.index, hdr.op.medium);
            wide.write(hdr.op.index, hdr.op.wide + 1);
            signed.write(hdr.op.index, hdr.op.signed);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
