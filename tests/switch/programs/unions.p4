// SPDX-License-Identifier: Apache-2.0
// Header unions: at most one of their headers is valid. Copies and comparison.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> kind; bit<8> what; }
header a_h { bit<8> x; bit<8> y; }
header b_h { bit<24> z; }
header_union u_t { a_h a; b_h b; }
struct headers_t { command_h command; u_t u; u_t v; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.kind) { 1: a; 2: b; 3: both; default: accept; }
    }
    state a { packet.extract(hdr.u.a); transition accept; }
    state b { packet.extract(hdr.u.b); transition accept; }
    state both { packet.extract(hdr.u.a); packet.extract(hdr.u.b); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        if (hdr.command.what == 1) {
            hdr.u.a.setValid();
            hdr.u.a.x = 0xaa;
            hdr.u.a.y = 0xbb;
        } else if (hdr.command.what == 2) {
            hdr.u.b.setValid();
            hdr.u.b.z = 0xcccccc;
        } else if (hdr.command.what == 3) {
            hdr.u.a.setInvalid();
        } else if (hdr.command.what == 4) {
            hdr.v = hdr.u;
        } else if (hdr.command.what == 5) {
            hdr.v = hdr.u;
            hdr.u.a.setValid();
            hdr.u.a.x = 1;
            hdr.u.a.y = 2;
        }
        if (hdr.u == hdr.v) { hdr.command.kind = hdr.command.kind | 0x40; }
        if (hdr.u != hdr.v) { hdr.command.kind = hdr.command.kind | 0x80; }
        if (hdr.u.a.isValid()) { hdr.command.kind = hdr.command.kind | 0x10; }
        if (hdr.u.b.isValid()) { hdr.command.kind = hdr.command.kind | 0x20; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
