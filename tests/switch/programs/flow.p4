// SPDX-License-Identifier: Apache-2.0
// Control flow: exit, return, conditionals in actions, ways that join late; header validity,
// header copies and comparison.
#include <core.p4>
#include <v1model.p4>

header trace_h { bit<8> command; bit<8> argument; bit<32> trace; }
header pair_h { bit<16> x; bit<16> y; }
struct headers_t { trace_h t; pair_h one; pair_h two; }
struct metadata_t { bit<8> steps; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.t);
        transition select(hdr.t.command) { 0x40 &&& 0x40: pairs; default: accept; }
    }
    state pairs { packet.extract(hdr.one); packet.extract(hdr.two); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Inner(inout headers_t hdr) {
    apply {
        hdr.t.trace = hdr.t.trace | 0x100;
        if (hdr.t.argument == 1) { return; }
        hdr.t.trace = hdr.t.trace | 0x200;
        if (hdr.t.argument == 2) { exit; }
        hdr.t.trace = hdr.t.trace | 0x400;
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Inner() inner;
    action conditional() {
        if (hdr.t.argument > 10) {
            hdr.t.trace = hdr.t.trace | 0x10;
            if (hdr.t.argument > 20) {
                hdr.t.trace = hdr.t.trace | 0x20;
            }
        } else {
            hdr.t.trace = hdr.t.trace | 0x40;
        }
        hdr.t.trace = hdr.t.trace | 0x80;
    }
    action leave() { hdr.t.trace = 0xdead; exit; }
    table deciding {
        key = { hdr.t.argument : exact; }
        actions = { conditional; leave; NoAction; }
        const default_action = NoAction();
        const entries = { 5 : conditional(); 15 : conditional(); 25 : conditional(); 99 : leave(); }
    }
    apply {
        sm.egress_spec = 1;
        if (hdr.t.command == 0) {
            inner.apply(hdr);
            hdr.t.trace = hdr.t.trace | 1;
        } else if (hdr.t.command == 1) {
            deciding.apply();
            hdr.t.trace = hdr.t.trace | 2;
        } else if (hdr.t.command == 2) {
            // Ways that join only at the end of the control.
            if (hdr.t.argument[0:0] == 1) {
                hdr.t.trace = hdr.t.trace + 1;
                if (hdr.t.argument[1:1] == 1) { hdr.t.trace = hdr.t.trace + 2; return; }
            }
            if (hdr.t.argument[2:2] == 1) {
                hdr.t.trace = hdr.t.trace + 4;
                if (hdr.t.argument[3:3] == 1) { hdr.t.trace = hdr.t.trace + 8; return; }
            }
            hdr.t.trace = hdr.t.trace + 16;
        } else if (hdr.t.command == 0x40) {
            hdr.one = hdr.two;
        } else if (hdr.t.command == 0x41) {
            if (hdr.one == hdr.two) { hdr.t.trace = 7; } else { hdr.t.trace = 8; }
        } else if (hdr.t.command == 0x42) {
            hdr.two.setInvalid();
            hdr.one = hdr.two;
        } else if (hdr.t.command == 0x43) {
            pair_h swap = hdr.one;
            hdr.one = hdr.two;
            hdr.two = swap;
            hdr.two.x = hdr.two.x + 1;
        } else if (hdr.t.command == 3) {
            hdr.two.setValid();
            hdr.two.y = 9;
        } else if (hdr.t.command == 0x44) {
            hdr.one.setInvalid();
            hdr.one.setValid();
        }
        meta.steps = meta.steps + 1;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.t.command == 4) {
            hdr.t.trace = 4;
            if (hdr.t.argument == 1) { exit; }
            hdr.t.trace = 5;
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
