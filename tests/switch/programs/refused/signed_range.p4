// SPDX-License-Identifier: Apache-2.0
// Refused: a range of a signed key.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; }
struct headers_t { a_h a; a_h[3] st; }
struct metadata_t { bit<8> m; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.a);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    int<8> value;
    table by_value {
        key = { value : range; }
        actions = { NoAction; }
    }
    apply {
        sm.egress_spec = 1;
        value = (int<8>)hdr.a.x;
        by_value.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
