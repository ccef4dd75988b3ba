// SPDX-License-Identifier: Apache-2.0
// Digests of lists: p4c numbers them in the P4Info, and calls each "digest" in the JSON.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> which; bit<8> answer; bit<16> port; bit<48> address; }
struct headers_t { a_h a; }
struct metadata_t { }
struct seen_t { bit<16> port; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action learn(bit<8> extra) { digest(1, { extra, hdr.a.port }); }
    action see() { digest<seen_t>(1, { hdr.a.port }); }
    table by_kind {
        key = { hdr.a.which: exact; }
        actions = { learn; see; NoAction; }
        default_action = NoAction;
        const entries = { 8: learn(0x99); 16: see(); }
    }
    apply {
        sm.egress_spec = 255;
        hdr.a.answer = 1;
        if (hdr.a.which & 1 == 1) {
            digest(1, { hdr.a.address, (bit<9>)hdr.a.port, hdr.a.which });
        }
        // Two of the same type.
        if (hdr.a.which & 2 == 2) { digest(1, { hdr.a.port }); }
        if (hdr.a.which & 4 == 4) { digest(1, { hdr.a.address[15:0] }); }
        by_kind.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
