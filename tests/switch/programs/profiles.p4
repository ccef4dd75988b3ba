// SPDX-License-Identifier: Apache-2.0
// Indirect tables: an action selector, and an action profile that two tables share.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<8> y; bit<16> z; bit<8> w; bit<8> trace; }
header b_h { bit<16> u; }
struct headers_t { a_h a; b_h b; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.a);
        transition select(hdr.a.w) {
            1: more;
            default: accept;
        }
    }
    state more { packet.extract(hdr.b); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    @max_group_size(6) action_selector(HashAlgorithm.crc16, 8, 16) balancer;
    action_profile(4) hops;
    direct_counter(CounterType.packets_and_bytes) picks;
    action forward(bit<9> port) { sm.egress_spec = port; }
    action stamp(bit<8> value, bit<9> port) { hdr.a.y = value; sm.egress_spec = port; }
    action mark(bit<8> bits) { hdr.a.trace = hdr.a.trace | bits; }
    table picked {
        key = {
            hdr.a.x : exact;
            hdr.a.y : selector;
            hdr.a.z : selector;
            hdr.b.u : selector;
        }
        actions = { forward; stamp; }
        implementation = balancer;
        counters = picks;
        size = 16;
    }
    table first {
        key = { hdr.a.z : ternary; }
        actions = { mark; NoAction; }
        implementation = hops;
    }
    table second {
        key = { hdr.a.y : lpm; }
        actions = { NoAction; mark; }
        implementation = hops;
    }
    apply {
        sm.egress_spec = 9;
        if (!picked.apply().hit) { hdr.a.trace = hdr.a.trace | 0x80; }
        switch (first.apply().action_run) {
            mark: { hdr.a.trace = hdr.a.trace | 0x40; }
            NoAction: { hdr.a.trace = hdr.a.trace | 0x20; }
        }
        second.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
