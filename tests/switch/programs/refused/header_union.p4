// SPDX-License-Identifier: Apache-2.0
// Refused: a header union.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<8> y; }
header b_h { bit<16> z; }
header_union u_t { a_h a; b_h b; }
struct headers_t { u_t u; }
struct metadata_t { @field_list(1) bit<8> m; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.u.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { sm.egress_spec = 1; }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply {  } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
