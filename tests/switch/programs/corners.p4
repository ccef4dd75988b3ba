// SPDX-License-Identifier: Apache-2.0
// What is seldom written: fields and parameters of no bits, a copy of all standard metadata, a stack of
// more elements than 64, a selector that selects by nothing.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<0> none; bit<8> x; bit<0> more; bit<8> y; }
header b_h { bit<8> z; }
struct headers_t { a_h a; b_h[100] many; }
struct metadata_t { bit<0> nothing; bit<8> seen; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.a);
        transition many;
    }
    state many {
        packet.extract(hdr.many.next);
        transition select(hdr.many.last.z) { 0x80 &&& 0x80: many; default: accept; }
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action_selector(HashAlgorithm.crc32, 16, 8) ways;
    action set(bit<0> nothing, bit<8> value) {
        hdr.a.none = nothing;
        meta.nothing = hdr.a.more;
        hdr.a.y = value;
    }
    table by_nothing {
        key = { hdr.a.none: exact; hdr.a.x: exact; }
        actions = { set; NoAction; }
        default_action = NoAction();
    }
    table by_x {
        key = { hdr.a.x: exact; }
        actions = { set; NoAction; }
        const entries = { 1: set(0, 0x11); 2: set(0, 0x22); }
        default_action = NoAction();
    }
    action go(bit<9> port) { sm.egress_spec = port; }
    table chosen {
        key = { hdr.a.y: exact; }
        actions = { go; NoAction; }
        implementation = ways;
    }
    apply {
        sm.egress_spec = 3;
        standard_metadata_t kept = sm;
        by_nothing.apply();
        by_x.apply();
        chosen.apply();
        log_msg("all of it: {}", { kept });
        hdr.many[99].z = (bit<8>)kept.packet_length;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
