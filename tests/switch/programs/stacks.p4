// SPDX-License-Identifier: Apache-2.0
// Header stacks: next and last in the parser, push and pop, indices, copies, StackOutOfBounds.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> index; bit<16> failure; bit<32> trace; }
header label_h { bit<12> value; bit<3> spare; bit<1> more; }
struct headers_t { command_h command; label_h[3] labels; label_h extra; label_h[3] copy; }
struct metadata_t { bit<32> last; }

#define WRITE_CONSTANT 1
#define PUSH_ONE 2
#define PUSH_TWO 3
#define POP_ONE 4
#define POP_TWO 5
#define READ_AT 6
#define WRITE_AT 7
#define COPY_FROM 8
#define HASH_AT 9
#define SWAP 10
#define COPY_STACK 11
#define COPY_AND_CHANGE 14
#define COPY_IN_PARSER 15

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what) { 0xff: extra; default: labels; }
    }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.more) { 1: labels; default: done; }
    }
    state done {
        meta.last = (bit<32>)hdr.labels.last.value << 8 | hdr.labels.lastIndex;
        transition select(hdr.command.what) { COPY_IN_PARSER: copy; default: accept; }
    }
    state copy { hdr.extra = hdr.labels[hdr.command.index]; transition accept; }
    state extra { packet.extract(hdr.extra); meta.last = hdr.labels.lastIndex; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action push_one() { hdr.labels.push_front(1); }
    action in_table(bit<12> value) { hdr.labels[1].value = value; }
    table by_label {
        key = { hdr.labels[0].value : exact; }
        actions = { in_table; push_one; NoAction; }
        const default_action = NoAction();
        const entries = { 0x111 : in_table(0xaaa); 0x222 : push_one(); }
    }
    apply {
        sm.egress_spec = 1;
        if (sm.parser_error == error.StackOutOfBounds) {
            hdr.command.failure = 1;
        } else if (sm.parser_error != error.NoError) {
            hdr.command.failure = 2;
        }
        hdr.command.trace = meta.last;
        if (hdr.command.what == WRITE_CONSTANT) {
            hdr.labels[1].value = 0xabc;
        } else if (hdr.command.what == PUSH_ONE) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = 0x5;
        } else if (hdr.command.what == PUSH_TWO) {
            hdr.labels.push_front(2);
        } else if (hdr.command.what == POP_ONE) {
            hdr.labels.pop_front(1);
        } else if (hdr.command.what == POP_TWO) {
            hdr.labels.pop_front(2);
        } else if (hdr.command.what == READ_AT) {
            hdr.command.trace = (bit<32>)hdr.labels[hdr.command.index].value;
        } else if (hdr.command.what == WRITE_AT) {
            hdr.labels[hdr.command.index].value = 0xfed;
        } else if (hdr.command.what == COPY_FROM) {
            hdr.extra = hdr.labels[hdr.command.index];
        } else if (hdr.command.what == HASH_AT) {
            hash(hdr.labels[hdr.command.index].value, HashAlgorithm.crc16, 12w0,
                 { hdr.command.index }, 16w4096);
        } else if (hdr.command.what == COPY_STACK || hdr.command.what == COPY_AND_CHANGE) {
            hdr.copy = hdr.labels;
            if (hdr.command.what == COPY_AND_CHANGE) { hdr.copy[1].value = 0x7; }
            if (hdr.copy == hdr.labels) { hdr.command.trace = 1; }
            if (hdr.copy != hdr.labels) { hdr.command.trace = 2; }
        } else if (hdr.command.what == SWAP) {
            label_h swap = hdr.labels[0];
            hdr.labels[0] = hdr.labels[2];
            hdr.labels[2] = swap;
        }
        by_label.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.command.what == 12) { hdr.labels.push_front(1); }
        if (hdr.command.what == 13) { hdr.labels.pop_front(1); }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
