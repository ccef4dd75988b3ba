// SPDX-License-Identifier: Apache-2.0
// Refused: a stack of header unions that is only emitted.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; }
header b_h { bit<16> x; }
header_union u_h { a_h a; b_h b; }
struct headers_t { a_h a; u_h[2] us; }
struct metadata_t { bit<8> m; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.a);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { sm.egress_spec = 1; }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
