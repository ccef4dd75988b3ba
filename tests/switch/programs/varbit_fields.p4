// SPDX-License-Identifier: Apache-2.0
// Varbit fields as values: anywhere in a header, assigned, copied, compared, hashed and summed up,
// in stacks and unions.
#include <core.p4>
#include <v1model.p4>

#define SWAP 1
#define COPY 2
#define COMPARE 3
#define ADD_AGAIN 4
#define ADD 5
#define HASH 6
#define SET_AROUND 7
#define COPY_IN_EGRESS 8
#define ASSIGN_IN_PARSER 9
#define TWICE 10
#define WRAPPED 11
#define STACK 12
#define STACK_COPY_IN_PARSER 13
#define STACK_COPY 14
#define PUSH 15
#define POP 16
#define ONLY 17
#define ONLY_SWAP 18
#define CHECKED 19
#define CHECKED_CHANGED 20
#define UNION_A 21
#define UNION_B 22
#define COPY_UNION 23
#define REMOVE_IN_EGRESS 24

header command_h {
    bit<8> what; bit<8> first; bit<8> second; bit<8> index;
    bit<8> failure; bit<8> result; bit<16> hashed; bit<32> length;
}
header inside_h { bit<4> a; varbit<64> v; bit<4> b; bit<8> c; }
header only_h { varbit<160> v; }
header checked_h { bit<8> n; bit<16> sum; varbit<320> options; bit<8> m; }
header other_h { bit<16> n; varbit<104> v; bit<16> m; int<8> k; }
header_union u_t { inside_h a; other_h b; }
struct headers_t {
    command_h command; inside_h one; inside_h two; only_h only; only_h another; checked_h checked;
    inside_h[2] items; inside_h[2] copies; u_t u; u_t w;
}
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what) {
            TWICE: twice; WRAPPED: wrapped; ONLY: only; ONLY_SWAP: only;
            STACK: items; STACK_COPY_IN_PARSER: items; STACK_COPY: items; PUSH: items; POP: items;
            CHECKED: checked; CHECKED_CHANGED: checked;
            UNION_A: union_a; UNION_B: union_b; COPY_UNION: union_b;
            default: two;
        }
    }
    state two {
        packet.extract(hdr.one, (bit<32>)hdr.command.first);
        packet.extract(hdr.two, (bit<32>)hdr.command.second);
        transition select(hdr.command.what) { ASSIGN_IN_PARSER: assigned; default: accept; }
    }
    state assigned { hdr.two.v = hdr.one.v; transition accept; }
    state twice {
        packet.extract(hdr.one, (bit<32>)hdr.command.first);
        packet.extract(hdr.one, (bit<32>)hdr.command.second);
        transition accept;
    }
    state wrapped {
        packet.extract(hdr.one, (bit<32>)hdr.command.first - 16);
        transition accept;
    }
    state only {
        packet.extract(hdr.only, (bit<32>)hdr.command.first);
        packet.extract(hdr.another, (bit<32>)hdr.command.second);
        transition accept;
    }
    state items {
        packet.extract(hdr.items.next, (bit<32>)hdr.command.first);
        packet.extract(hdr.items.next, (bit<32>)hdr.items.last.c);
        transition select(hdr.command.what) { STACK_COPY_IN_PARSER: copied; default: more; }
    }
    state copied { hdr.copies = hdr.items; transition accept; }
    state more {
        transition select(hdr.command.index) { 7: again; default: accept; }
    }
    state again { packet.extract(hdr.items.next, 8); transition accept; }
    state checked {
        packet.extract(hdr.checked, (bit<32>)hdr.command.first);
        transition accept;
    }
    state union_a {
        packet.extract(hdr.u.b, (bit<32>)hdr.command.first);
        packet.extract(hdr.u.a, (bit<32>)hdr.command.second);
        transition accept;
    }
    state union_b {
        packet.extract(hdr.u.a, (bit<32>)hdr.command.first);
        packet.extract(hdr.u.b, (bit<32>)hdr.command.second);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.checked.isValid(), { hdr.checked.n, hdr.checked.options, hdr.checked.m },
                        hdr.checked.sum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        if (sm.parser_error == error.PacketTooShort) {
            hdr.command.failure = 1;
        } else if (sm.parser_error == error.HeaderTooShort) {
            hdr.command.failure = 2;
        } else if (sm.parser_error == error.ParserInvalidArgument) {
            hdr.command.failure = 3;
        } else if (sm.parser_error == error.StackOutOfBounds) {
            hdr.command.failure = 4;
        } else if (sm.checksum_error == 1) {
            hdr.command.failure = 5;
        }
        if (hdr.command.what == SWAP) {
            varbit<64> kept = hdr.one.v;
            hdr.one.v = hdr.two.v;
            hdr.two.v = kept;
        } else if (hdr.command.what == COPY) {
            hdr.two = hdr.one;
        } else if (hdr.command.what == COMPARE) {
            if (hdr.one == hdr.two) { hdr.command.result = hdr.command.result | 1; }
            if (hdr.one != hdr.two) { hdr.command.result = hdr.command.result | 2; }
            if (hdr.one.v == hdr.two.v) { hdr.command.result = hdr.command.result | 4; }
            if (hdr.one.v != hdr.two.v) { hdr.command.result = hdr.command.result | 8; }
        } else if (hdr.command.what == ADD_AGAIN) {
            hdr.one.setInvalid();
            hdr.one.setValid();
            hdr.one.c = 0x77;
        } else if (hdr.command.what == ADD) {
            hdr.checked.setValid();
            hdr.checked.n = 0x55;
            hdr.only.setValid();
            hdr.copies[1].setValid();
            hdr.copies[1].b = 0x9;
        } else if (hdr.command.what == HASH) {
            hash(hdr.command.hashed, HashAlgorithm.crc16, 16w0,
                 { hdr.one.a, hdr.one.v, hdr.two.v, hdr.two.c }, 32w65536);
        } else if (hdr.command.what == SET_AROUND) {
            hdr.one.a = 0xa;
            hdr.one.b = 0xb;
            hdr.one.c = 0xcc;
        } else if (hdr.command.what == STACK_COPY) {
            hdr.copies = hdr.items;
            hdr.copies[0].v = hdr.items[1].v;
            if (hdr.copies == hdr.items) { hdr.command.result = 1; }
        } else if (hdr.command.what == PUSH) {
            hdr.items.push_front(1);
        } else if (hdr.command.what == POP) {
            hdr.items.pop_front(1);
        } else if (hdr.command.what == ONLY_SWAP) {
            only_h kept = hdr.only;
            hdr.only = hdr.another;
            hdr.another = kept;
        } else if (hdr.command.what == CHECKED_CHANGED) {
            hdr.checked.n = hdr.checked.n + 1;
        } else if (hdr.command.what == COPY_UNION) {
            hdr.w = hdr.u;
            if (hdr.w == hdr.u) { hdr.command.result = 1; }
            if (hdr.w.b.v == hdr.u.b.v) { hdr.command.result = hdr.command.result | 2; }
            hdr.w.b.k = hdr.w.b.k - 1;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.command.length = sm.packet_length;
        if (hdr.command.what == COPY_IN_EGRESS) {
            hdr.one.v = hdr.two.v;
        } else if (hdr.command.what == REMOVE_IN_EGRESS) {
            hdr.two.setInvalid();
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.checked.isValid(), { hdr.checked.n, hdr.checked.options, hdr.checked.m },
                        hdr.checked.sum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
