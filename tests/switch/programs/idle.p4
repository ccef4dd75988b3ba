// SPDX-License-Identifier: Apache-2.0
// Idle timeouts: of a table with an exact key, and of one with a ternary key and counters.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<8> y; bit<8> hits; }
struct headers_t { a_h a; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets) seen;
    action hit(bit<8> bits) { hdr.a.hits = hdr.a.hits | bits; }
    table ages {
        key = { hdr.a.x : exact; }
        actions = { hit; NoAction; }
        support_timeout = true;
        size = 16;
    }
    table ages_too {
        key = { hdr.a.y : ternary; }
        actions = { hit; }
        counters = seen;
        support_timeout = true;
    }
    apply {
        sm.egress_spec = 255;
        ages.apply();
        ages_too.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
