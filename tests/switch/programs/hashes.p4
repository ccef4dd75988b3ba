// SPDX-License-Identifier: Apache-2.0
// Every hash algorithm of v1model that simple_switch knows.
#include <core.p4>
#include <v1model.p4>

header input_h { bit<8> x; bit<12> y; bit<4> z; bit<32> w; }
header output_h {
    bit<32> crc32; bit<32> crc32_custom; bit<16> crc16; bit<16> crc16_custom;
    bit<64> identity; bit<16> csum16; bit<16> xor16;
}
struct headers_t { output_h o; input_h i; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
#define HASH(field, width) \
    hash(hdr.o.field, HashAlgorithm.field, width##w0, { hdr.i.x, hdr.i.y, hdr.i.z, hdr.i.w }, LIMIT)
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
#define LIMIT 33w0x100000000
        HASH(crc32, 32);
        HASH(crc32_custom, 32);
        HASH(crc16, 16);
        HASH(crc16_custom, 16);
        HASH(csum16, 16);
        HASH(xor16, 16);
#undef LIMIT
#define LIMIT 64w0xffffffffffffffff
        HASH(identity, 64);
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
