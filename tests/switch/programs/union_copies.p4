// SPDX-License-Identifier: Apache-2.0
// The last union of a stack, and one of its headers, assigned in the parser. BMv2 does not load it.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> first; bit<8> failure; }
header one_h { bit<8> value; }
header two_h { bit<16> value; }
header_union either_t { one_h one; two_h two; }
struct headers_t { command_h command; either_t[2] eithers; either_t copy; one_h kept; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.first) { 1: one; 2: two; default: copy; }
    }
    state one { packet.extract(hdr.eithers.next.one); transition copy; }
    state two { packet.extract(hdr.eithers.next.two); transition copy; }
    state copy {
        hdr.copy = hdr.eithers.last;
        hdr.kept = hdr.eithers.last.one;
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        if (sm.parser_error == error.StackOutOfBounds) { hdr.command.failure = 1; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
