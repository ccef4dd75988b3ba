// SPDX-License-Identifier: Apache-2.0
// assert, assume and log_msg in every control.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<8> y; }
struct headers_t { a_h a; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        assert(hdr.a.x != 1);
        assume(hdr.a.x != 2);
        if (hdr.a.x == 3) {
            log_msg("plain");
            log_msg("x = {}, sum = {}, port {}", {hdr.a.x, hdr.a.x + hdr.a.y, sm.ingress_port});
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { assert(hdr.a.y != 1 || hdr.a.x == 3); }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
