// SPDX-License-Identifier: Apache-2.0
// Loops in actions: nested ones, break and continue, return and exit within them; jumps forward
// that are no plain conditional; arguments below zero; ranges of signed keys.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> kind; bit<8> count; int<8> x; int<16> y; bit<8> step; }
header report_h { bit<32> sum; bit<16> turns; int<32> wide; int<8> small; bit<8> seen; int<72> huge; }
struct headers_t { command_h command; report_h report; }
struct metadata_t { bit<8> turns; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(256) kept;
    action sum() {
        for (bit<8> i = 1; i <= hdr.command.count; i = i + 1) {
            hdr.report.sum = hdr.report.sum + (bit<32>)i;
        }
    }
    action product() {
        for (bit<8> i = 0; i < hdr.command.count; i = i + 1) {
            for (bit<8> j = 0; j < hdr.command.count; j = j + 1) {
                if (j == i + 3) {
                    break;
                }
                if ((i + j) & 1 == 0) {
                    hdr.report.turns = hdr.report.turns + 1;
                    continue;
                }
                hdr.report.sum = hdr.report.sum + 1;
            }
        }
    }
    action leave() {
        for (bit<8> i = 0; i < hdr.command.count; i = i + 1) {
            hdr.report.turns = (bit<16>)i;
            if (i == 5) {
                return;
            } else if (i == 3 && hdr.command.step == 9) {
                exit;
            }
            hdr.report.sum = hdr.report.sum + 2;
        }
        hdr.report.seen = 1;
    }
    action registers() {
        for (bit<32> i = 0; i < (bit<32>)hdr.command.count; i = i + 3) {
            bit<32> value;
            kept.read(value, i);
            kept.write(i + 1, value + 1);
            hdr.report.sum = hdr.report.sum + value;
        }
    }
    // For ever, if `step` is 0; on the way bits of the counter are lost.
    action endless() {
        for (bit<8> i = 0; i != hdr.command.count; i = i + hdr.command.step) {
            hdr.report.turns = hdr.report.turns + 1;
        }
    }
    // Two returns in the middle, so that the ways join where no `if` ends.
    action early() {
        if (hdr.command.count < 10) {
            hdr.report.sum = 1;
            if (hdr.command.step == 1) { return; }
            hdr.report.sum = hdr.report.sum + 10;
            if (hdr.command.step == 2) { return; }
            hdr.report.sum = hdr.report.sum + 100;
        }
        hdr.report.sum = hdr.report.sum + 1000;
    }
    action nothing() { }
    table loops {
        key = { hdr.command.kind: exact; }
        actions = { sum; product; leave; registers; endless; early; nothing; }
        const entries = {
            0: sum(); 1: product(); 2: leave(); 3: registers(); 4: endless(); 5: early();
        }
        const default_action = nothing();
    }
    action signed_(int<8> a, int<16> b, int<72> c) {
        hdr.report.small = a;
        hdr.report.wide = (int<32>)b * 3 - (int<32>)a;
        hdr.report.huge = c;
        if (a < 0) { hdr.report.seen = hdr.report.seen | 2; }
        if (b < hdr.command.y) { hdr.report.seen = hdr.report.seen | 4; }
        if (c < -1) { hdr.report.seen = hdr.report.seen | 8; }
    }
    table signs {
        key = { hdr.command.step: exact; }
        actions = { signed_; }
        const entries = {
            1: signed_(-1, -300, -5);
            2: signed_(-128, 32767, 0x7fffffffffffffffff);
            3: signed_(127, -32768, -0x800000000000000000);
        }
        default_action = signed_(-7, -8, -9);
    }
    action in_range(int<8> which) { hdr.report.small = hdr.report.small + which; }
    // By their bits: what is below zero is more than what is above.
    table ranges {
        key = { hdr.command.x: range; hdr.command.y: range; }
        actions = { in_range; nothing; }
        const entries = {
            (1..100, 0..1000): in_range(-1);
            (0..127, _): in_range(-2);
            (_, 5..6): in_range(3);
        }
        const default_action = nothing();
    }
    apply {
        sm.egress_spec = 3;
        hdr.report.setValid();
        loops.apply();
        signs.apply();
        ranges.apply();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action count() {
        for (int<8> i = -4; i < hdr.command.x; i = i + 40) {
            if (hdr.command.kind == 200) { exit; }
            hdr.report.turns = hdr.report.turns + 0x100;
        }
    }
    apply { count(); hdr.report.seen = hdr.report.seen | 0x80; }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.report); packet.emit(hdr.command); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
