// SPDX-License-Identifier: Apache-2.0
// One program with every construct of docs/v1model.md that p4c writes and BMv2 runs, all at work on
// the same packet.
#include <core.p4>
#include <v1model.p4>

error { Wrong }

header command_h {
    bit<8> kind; bit<8> index; bit<16> a; bit<16> b; int<16> s; int<16> t; bit<8> length; bit<8> loops;
}
header label_h { bit<12> value; bit<3> rest; bit<1> last; }
header option_h { bit<8> size; varbit<64> data; }
header short_h { bit<8> x; }
header long_h { bit<24> x; }
header_union either_t { short_h short; long_h long; }
header checked_h { bit<16> x; bit<16> y; bit<16> sum; bit<16> whole; }
header report_h {
    bit<16> sum; bit<16> difference; bit<16> product; bit<16> quotient; bit<16> rest; bit<16> bits;
    bit<16> shifts; int<16> saturated; bit<16> capped; bit<8> flags; bit<8> error_; bit<32> crc; bit<16> hash;
    bit<16> from_table; bit<16> kept; bit<16> color; bit<8> lowest; bit<8> turns; bit<16> copied;
    bit<8> depth; bit<8> checked; bit<16> instance; bit<8> ahead; bit<8> round;
}
struct headers_t {
    report_h report; command_h command; option_h option; label_h[3] labels; label_h[3] others;
    label_h one; either_t either; either_t other; checked_h checked;
}
struct point_t { bit<16> x; bit<16> y; }
struct metadata_t {
    @field_list(1) bit<8> round;
    point_t point;
    point_t copy;
    bit<2> color;
    bit<8> ahead;
    bit<8> member;
    bit<8> depth;
}
struct seen_t { bit<8> kind; bit<16> a; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    value_set<bit<8>>(4) kinds;
    state start {
        meta.ahead = packet.lookahead<bit<8>>();
        packet.extract(hdr.command);
        verify(hdr.command.kind != 99, error.Wrong);
        transition select(hdr.command.kind) {
            kinds: member;
            0..31: labels;
            32 &&& 0xE0: option;
            64 &&& 0xE0: skip;
            96 &&& 0xE0: either;
            default: accept;
        }
    }
    state member { meta.member = 1; transition labels; }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.last) { 0: labels; 1: behind; }
    }
    state behind {
        hdr.one.setValid();
        hdr.one.value = hdr.labels.last.value + 1;
        meta.depth = (bit<8>)hdr.labels.lastIndex;
        transition select(packet.lookahead<bit<8>>()) { 0x77: checked; default: accept; }
    }
    state option {
        packet.extract(hdr.option, (bit<32>)(hdr.command.length & 0x38));
        transition checked;
    }
    state skip {
        packet.advance((bit<32>)(hdr.command.length & 0x18));
        transition select(hdr.command.a[3:0], hdr.command.b) { (1, _): checked; (_, 2): either; }
    }
    state either {
        transition select(hdr.command.length) {
            0: short;
            1: long;
            default: accept;
        }
    }
    state short { packet.extract(hdr.either.short); transition accept; }
    state long { packet.extract(hdr.either.long); transition checked; }
    state checked { packet.extract(hdr.checked); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.checked.isValid(), { hdr.checked.x, hdr.checked.y }, hdr.checked.sum,
                        HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    counter(8, CounterType.packets_and_bytes) all;
    direct_counter(CounterType.packets) hits;
    meter(8, MeterType.bytes) rates;
    direct_meter<bit<2>>(MeterType.packets) colors;
    register<bit<16>>(8) kept;
    action_profile(8) members;
    action_selector(HashAlgorithm.crc16, 8, 16) ways;

    action set(bit<16> value) { hdr.report.from_table = hdr.report.from_table + value; }
    action set_signed(int<16> value) { hdr.report.from_table = (bit<16>)(value - 5); }
    action turns() {
        for (bit<8> i = 0; i < hdr.command.loops; i = i + 1) {
            if (i == 7) { break; }
            if (i == 2) { continue; }
            hdr.report.turns = hdr.report.turns + i;
        }
    }
    table exact_ { key = { hdr.command.kind: exact; } actions = { set; set_signed; NoAction; }
        const entries = { 1: set(1); 2: set_signed(3); 40: set(3); } default_action = NoAction(); }
    table lpm_ { key = { hdr.command.a: lpm; } actions = { set; NoAction; }
        default_action = set(0x10); }
    table ternary_ { key = { hdr.command.b: ternary; hdr.command.s: range; hdr.one.isValid(): exact; }
        actions = { set; NoAction; } const entries = {
            (0x0001 &&& 0x0001, 0..100, true): set(0x100);
            (_, 1..0x7fff, true): set(0x200);
            (_, 0..0x7fff, false): set(0x300);
        } default_action = NoAction(); counters = hits; }
    table optional_ { key = { hdr.command.index: optional; } actions = { set; NoAction; }
        const entries = { 3: set(0x1000); _: set(0x2000); } default_action = NoAction(); }
    action paint(bit<16> value) { colors.read(meta.color); hdr.report.from_table = value; }
    table colored { key = { hdr.command.index: exact; } actions = { paint; NoAction; }
        meters = colors; default_action = NoAction(); }
    table indirect { key = { hdr.command.index: exact; } actions = { set; NoAction; }
        implementation = members; support_timeout = true; }
    table chosen { key = { hdr.command.index: exact; hdr.command.a: selector; }
        actions = { set; NoAction; } implementation = ways; }
    apply {
        sm.egress_spec = 3;
        hdr.report.setValid();
        bit<16> a = hdr.command.a;
        bit<16> b = hdr.command.b;
        int<16> s = hdr.command.s;
        int<16> t = hdr.command.t;
        hdr.report.sum = a + b;
        hdr.report.difference = a - b;
        hdr.report.product = a * b;
        hdr.report.quotient = a >> 1;
        hdr.report.rest = (bit<16>)hdr.command.s[15:4];
        hdr.report.bits = (a & b) ^ (a | ~b);
        hdr.report.shifts = (a << 3) + (b >> 2);
        hdr.report.rest = hdr.report.rest + (bit<16>)(bit<1>)(a <= b);
        hdr.report.saturated = s |-| t;
        hdr.report.capped = a |+| b;
        if (a == b || a < b && !(a <= 7) || s > t) { hdr.report.flags = 1; }
        if (a != b && s >= t) { hdr.report.flags = hdr.report.flags | 2; }
        bool same = hdr.labels[0] == hdr.labels[1];
        if (same != (a == 5)) { hdr.report.flags = hdr.report.flags | 4; }
        if (hdr.labels[0] != hdr.one) { hdr.report.flags = hdr.report.flags | 8; }
        if (sm.parser_error == error.Wrong) { hdr.report.error_ = 1; }
        if (sm.parser_error == error.PacketTooShort) { hdr.report.error_ = 2; }
        if (sm.checksum_error == 1) { hdr.report.checked = 1; }
        hdr.report.lowest = same ? (bit<8>)1 : hdr.command.index;
        hdr.report.instance = (bit<16>)sm.instance_type;
        hdr.report.ahead = meta.ahead;
        hdr.report.round = meta.round;
        hash(hdr.report.crc, HashAlgorithm.crc32, (bit<32>)0, { a, b, 8w7 }, (bit<64>)1 << 32);
        hash(hdr.report.hash, HashAlgorithm.crc16, (bit<16>)1, { a, hdr.command.kind }, (bit<32>)1000);
        bit<16> more;
        hash(more, HashAlgorithm.xor16, (bit<16>)0, { a, b }, (bit<32>)0x8000);
        hdr.report.hash = hdr.report.hash ^ more;
        hash(more, HashAlgorithm.csum16, (bit<16>)0, { a, b }, (bit<32>)0x8000);
        hdr.report.hash = hdr.report.hash ^ more;
        hash(more, HashAlgorithm.identity, (bit<16>)0, { a }, (bit<32>)0x8000);
        hdr.report.hash = hdr.report.hash ^ more;
        hash(more, HashAlgorithm.crc16_custom, (bit<16>)0, { b }, (bit<32>)0x8000);
        hdr.report.hash = hdr.report.hash ^ more;
        hash(more, HashAlgorithm.crc32_custom, (bit<16>)0, { b, a }, (bit<32>)0x8000);
        hdr.report.hash = hdr.report.hash ^ more;
        bit<8> drawn;
        random(drawn, 8w5, 8w5);
        hdr.report.depth = drawn + meta.depth + meta.member;
        exact_.apply();
        if (!lpm_.apply().hit) { hdr.report.flags = hdr.report.flags | 16; }
        switch (ternary_.apply().action_run) {
            set: { hdr.report.flags = hdr.report.flags | 32; }
            default: { hdr.report.flags = hdr.report.flags | 64; }
        }
        optional_.apply();
        colored.apply();
        indirect.apply();
        chosen.apply();
        turns();
        bit<32> cell = (bit<32>)(hdr.command.index & 7);
        all.count(cell);
        rates.execute_meter(cell, meta.color);
        hdr.report.color = (bit<16>)meta.color;
        if (sm.instance_type == 0) { // what goes round again may be overtaken
            kept.read(hdr.report.kept, cell);
            kept.write(cell, hdr.report.kept + 1);
        }
        meta.point.x = a;
        meta.point.y = b;
        meta.copy = meta.point;
        hdr.report.copied = meta.copy.x - meta.copy.y;
        if (hdr.labels[2].isValid()) {
            hdr.others = hdr.labels;
            hdr.others.pop_front(1);
            hdr.labels.push_front(1);
            bit<2> place = hdr.command.index[0:0] ++ 1w1;
            if (place < 3) { hdr.others[place].value = 0x777; hdr.report.bits = (bit<16>)hdr.labels[place].value; }
        }
        if (hdr.either.short.isValid()) { hdr.other = hdr.either; hdr.either.short.setInvalid(); }
        if (hdr.one.isValid()) { hdr.one.rest = 5; if (hdr.command.kind == 4) { hdr.one.setInvalid(); } }
        log_msg("kind {} of {}", { hdr.command.kind, a });
        assert(hdr.report.isValid());
        assume(sm.egress_spec == 3);
        if (hdr.command.kind == 5) { mark_to_drop(sm); exit; }
        if (hdr.command.kind == 6) { digest<seen_t>(1, { hdr.command.kind, a }); }
        if (hdr.command.kind == 7) { clone_preserving_field_list(CloneType.I2E, 5, 1); }
        if (hdr.command.kind == 8 && meta.round == 0) { meta.round = 1; resubmit_preserving_field_list(1); }
        if (hdr.command.kind == 9) { truncate(50); }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.command.kind == 10 && meta.round < 2) {
            meta.round = meta.round + 1;
            hdr.command.kind = 11;
            recirculate_preserving_field_list(1);
        }
        if (hdr.command.kind == 12) { clone_preserving_field_list(CloneType.E2E, 5, 1); }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.checked.isValid(), { hdr.checked.x, hdr.command.a, 16w3 }, hdr.checked.sum,
                        HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.checked.isValid(), { hdr.checked.y }, hdr.checked.whole,
                                     HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
