// SPDX-License-Identifier: Apache-2.0
// Parser value sets: of one field, and of several.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<12> y; bit<4> z; bit<16> found; }
struct headers_t { a_h a; }
struct metadata_t { bit<16> found; }
struct pair_t { bit<12> y; bit<4> z; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    value_set<bit<8>>(4) single;
    value_set<pair_t>(2) pairs;
    state start {
        packet.extract(hdr.a);
        transition select(hdr.a.x) { single: in_single; default: try_pairs; }
    }
    state in_single { meta.found = 1; transition accept; }
    state try_pairs {
        transition select(hdr.a.y, hdr.a.z) { pairs: in_pairs; default: accept; }
    }
    state in_pairs { meta.found = 2; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { sm.egress_spec = 1; hdr.a.found = meta.found; }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
