// SPDX-License-Identifier: Apache-2.0
// Of stacks of unions, and of varbit fields, what p4c writes but BMv2 does not load, or ends at.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> index; bit<8> result; bit<8> last; }
header short_h { bit<8> kind; bit<8> x; }
header varied_h { bit<8> kind; varbit<32> z; bit<8> y; }
header_union item_t { short_h s; varied_h v; }
header piece_h { bit<8> bits; varbit<32> data; }
struct headers_t { command_h command; item_t[3] items; piece_h[3] pieces; }
struct metadata_t { bit<8> last; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what) { 1: item; 2: item; 3: item; default: pieces; }
    }
    state item {
        packet.extract(hdr.items.next.s);
        meta.last = hdr.items.last.s.x;
        transition select(hdr.items.last.s.kind) { 1: item; 2: varied; default: accept; }
    }
    state varied {
        packet.extract(hdr.items.next.v, 16);
        transition accept;
    }
    state pieces {
        packet.extract(hdr.pieces.next, 8);
        packet.extract(hdr.pieces.next, 24);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action found() { hdr.command.result = 0x11; }
    action missing() { hdr.command.result = 0x22; }
    table by_validity {
        key = { hdr.items[1].isValid() : exact; hdr.items[1].v.isValid() : exact; }
        actions = { found; missing; NoAction; }
        const default_action = NoAction();
        const entries = { (true, true) : found(); (false, false) : missing(); }
    }
    apply {
        sm.egress_spec = 1;
        hdr.command.last = meta.last;
        if (hdr.command.what == 1) {
            if (hdr.items[2].isValid()) { hdr.command.result = 1; }
        } else if (hdr.command.what == 2) {
            by_validity.apply();
        } else if (hdr.command.what == 3) {
            item_t own;
            if (hdr.items[2].s.isValid()) { own.s.setValid(); own.s = hdr.items[0].s; }
            if (own.isValid()) { hdr.command.result = 3; }
            hdr.items[1] = own;
        } else if (hdr.command.what == 4) {
            hdr.pieces[0].data = hdr.pieces[hdr.command.index].data;
        } else if (hdr.command.what == 5) {
            hdr.pieces[hdr.command.index].data = hdr.pieces[0].data;
        } else if (hdr.command.what == 6) {
            hdr.pieces[0] = hdr.pieces[hdr.command.index];
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
