// SPDX-License-Identifier: Apache-2.0
// Every kind of key, const entries, default actions, hit and miss, action_run, direct counters.
#include <core.p4>
#include <v1model.p4>

header key_h { bit<8> which; bit<16> a; bit<32> b; bit<48> c; bit<16> verdict; bit<2048> big; }
struct headers_t { key_h key; }
struct metadata_t { int<16> number; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.key); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) hits;

    action set(bit<16> verdict) { hdr.key.verdict = verdict; }
    action set_big(bit<2048> big, bit<1> low) { hdr.key.big = big | (bit<2048>)low; }
    action miss() { hdr.key.verdict = 0xffff; }
    action drop() { mark_to_drop(sm); }

    table exact_one { key = { hdr.key.a : exact; } actions = { set; set_big; miss; } default_action = miss(); size = 3; counters = hits; }
    table exact_two { key = { hdr.key.a : exact; hdr.key.c : exact @name("mac"); } actions = { set; miss; } const default_action = miss(); }
    table prefix { key = { hdr.key.b : lpm; } actions = { set; drop; } default_action = drop(); }
    table masked { key = { hdr.key.a : ternary; hdr.key.b : ternary; } actions = { set; miss; } const default_action = miss(); }
    table ranges { key = { hdr.key.a : range; hdr.key.b : exact; } actions = { set; miss; } const default_action = miss(); }
    table maybe { key = { hdr.key.a : optional; hdr.key.c : optional; } actions = { set; miss; } const default_action = miss(); }
    table mixed { key = { hdr.key.a : exact; hdr.key.b : lpm; } actions = { set; miss; } const default_action = miss(); }
    table constants {
        key = { hdr.key.a : ternary; hdr.key.isValid() : exact; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = {
            (0x1000 &&& 0xf000, true) : set(1);
            (0x1200 &&& 0xff00, true) : set(2);
            (0x3400 &&& 0xff00, true) : set(3);
            (0x3000 &&& 0xf000, true) : set(4);
        }
    }
    table routes {
        key = { hdr.key.b : lpm; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = { 32w0x0a000000 &&& 32w0xff000000 : set(8); 32w0x0a0b0000 &&& 32w0xffff0000 : set(16); }
    }
    table no_key { actions = { set; miss; } default_action = set(77); }
    table chosen { key = { hdr.key.a : exact; } actions = { set; drop; miss; } default_action = miss(); }
    table numbers {
        key = { meta.number : ternary; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = { 5 &&& 0x7fff : set(5); 0 &&& 0x7ffe : set(6); }
    }

    apply {
        sm.egress_spec = 1;
        if (hdr.key.which == 0) {
            exact_one.apply();
        } else if (hdr.key.which == 1) {
            if (exact_two.apply().miss) { hdr.key.big = 1; }
        } else if (hdr.key.which == 2) {
            if (prefix.apply().hit) { hdr.key.big = 2; }
        } else if (hdr.key.which == 3) {
            masked.apply();
        } else if (hdr.key.which == 4) {
            ranges.apply();
        } else if (hdr.key.which == 5) {
            maybe.apply();
        } else if (hdr.key.which == 6) {
            mixed.apply();
        } else if (hdr.key.which == 7) {
            constants.apply();
        } else if (hdr.key.which == 8) {
            routes.apply();
        } else if (hdr.key.which == 9) {
            no_key.apply();
        } else if (hdr.key.which == 10) {
            switch (chosen.apply().action_run) {
                set: { hdr.key.big = 10; }
                drop: { hdr.key.big = 11; }
                default: { hdr.key.big = 12; }
            }
            hdr.key.big = hdr.key.big + 100;
        } else if (hdr.key.which == 11) {
            meta.number = (int<16>)hdr.key.a;
            numbers.apply();
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
