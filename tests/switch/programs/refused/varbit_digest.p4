// SPDX-License-Identifier: Apache-2.0
// Refused: a digest with a varbit field.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> n; varbit<64> v; }
struct headers_t { a_h a; }
struct metadata_t { }
struct seen_t { bit<8> n; varbit<64> v; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a, 16); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        digest<seen_t>(1, { hdr.a.n, hdr.a.v });
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
