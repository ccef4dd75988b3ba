// SPDX-License-Identifier: Apache-2.0
// Stacks of header unions, validity of unions, and copies of whole stacks in the parser.
#include <core.p4>
#include <v1model.p4>

#define COPY 1
#define COPY_ELEMENT 2
#define SET_OTHER 3
#define PUSH 4
#define PUSH_TWO 5
#define POP 6
#define POP_TWO 7
#define COPY_IN_PARSER 8
#define COMPARE 9
#define REMOVE 10
#define PUSH_IN_EGRESS 11
#define LOCAL 12

header command_h { bit<8> what; bit<8> failure; bit<8> result; bit<8> count; }
header kind_h { bit<8> kind; }
header short_h { bit<8> x; bit<8> more; }
header long_h { bit<24> y; bit<8> more; }
header varied_h { bit<8> n; varbit<64> z; bit<8> more; }
header_union item_t { short_h s; long_h l; varied_h v; }
struct headers_t { command_h command; item_t[3] items; item_t[3] copies; item_t single; kind_h end; }
struct metadata_t { bit<32> last; bit<8> kind; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.command); transition item; }
    state item {
        meta.kind = packet.lookahead<bit<8>>();
        transition select(meta.kind) { 1: short; 2: long; 3: varied; 4: again; 9: single; default: done; }
    }
    state short { packet.extract(hdr.items.next.s); transition item; }
    state long { packet.extract(hdr.items.next.l); transition item; }
    state varied {
        packet.extract(hdr.items.next.v, 16);
        transition item;
    }
    state again {
        packet.extract(hdr.items.next.v, 24);
        transition item;
    }
    state single {
        packet.extract(hdr.single.s);
        packet.extract(hdr.single.v, 8);
        transition done;
    }
    state done {
        transition select(hdr.command.what) { COPY_IN_PARSER: copied; default: counted; }
    }
    state copied { hdr.copies = hdr.items; transition counted; }
    state counted {
        meta.last = hdr.items.lastIndex;
        packet.extract(hdr.end);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.command.count = (bit<8>)meta.last;
        if (sm.parser_error == error.StackOutOfBounds) {
            hdr.command.failure = 1;
        } else if (sm.parser_error != error.NoError) {
            hdr.command.failure = 2;
        }
        if (hdr.single.isValid()) { hdr.command.result = 0x80; }
        if (hdr.command.what == COPY) {
            hdr.copies = hdr.items;
        } else if (hdr.command.what == COPY_ELEMENT) {
            hdr.single = hdr.items[1];
            hdr.items[0] = hdr.items[2];
        } else if (hdr.command.what == SET_OTHER) {
            hdr.items[0].l.setValid();
            hdr.items[0].l.y = 0xabcdef;
            hdr.items[0].l.more = 1;
            hdr.items[2].s.setValid();
            hdr.items[2].s.x = 7;
            hdr.items[2].s.more = 8;
        } else if (hdr.command.what == PUSH) {
            hdr.items.push_front(1);
        } else if (hdr.command.what == PUSH_TWO) {
            hdr.items.push_front(2);
        } else if (hdr.command.what == POP) {
            hdr.items.pop_front(1);
        } else if (hdr.command.what == POP_TWO) {
            hdr.items.pop_front(2);
        } else if (hdr.command.what == COMPARE) {
            hdr.copies = hdr.items;
            hdr.copies[1].s.setInvalid();
            if (hdr.copies == hdr.items) { hdr.command.result = hdr.command.result | 1; }
            if (hdr.items[0] == hdr.items[1]) { hdr.command.result = hdr.command.result | 2; }
            if (hdr.items[1] != hdr.copies[1]) { hdr.command.result = hdr.command.result | 4; }
        } else if (hdr.command.what == REMOVE) {
            hdr.items[1].s.setInvalid();
            hdr.items[1].v.setInvalid();
        } else if (hdr.command.what == LOCAL) {
            item_t own;
            own.s.setValid();
            own.s.x = 5;
            own.s.more = 6;
            hdr.items[0] = own;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.command.what == PUSH_IN_EGRESS) { hdr.items.push_front(1); }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
