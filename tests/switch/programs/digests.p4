// SPDX-License-Identifier: Apache-2.0
// Digests: a struct of fields of different widths, and one of a single field.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> which; bit<8> answer; bit<16> port; bit<48> address; }
struct headers_t { a_h a; }
struct metadata_t { }
struct learned_t { bit<48> address; bit<9> port; bit<8> which; }
struct seen_t { bit<16> port; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 255;
        hdr.a.answer = 1;
        if (hdr.a.which & 1 == 1) {
            digest<learned_t>(1, { hdr.a.address, (bit<9>)hdr.a.port, hdr.a.which });
        }
        if (hdr.a.which & 2 == 2) {
            digest<seen_t>(1, { hdr.a.port });
        }
        // What is sent is what the packet had at the call.
        hdr.a.address = 0;
        if (hdr.a.which & 4 == 4) { mark_to_drop(sm); }
        if (hdr.a.which & 8 == 8) { exit; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
