// SPDX-License-Identifier: Apache-2.0
// Elements of a header stack at a run-time index, where BMv2 loads none or ends; signed keys.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> index; bit<8> other; bit<8> result; }
header item_h { bit<8> value; int<8> signed; }
struct headers_t { command_h command; item_h[3] items; item_h extra; }
struct metadata_t { int<8> key; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        packet.extract(hdr.items.next);
        packet.extract(hdr.items.next);
        transition select(hdr.command.what) { 1: write; 2: enable; 3: validity; 4: choose; default: accept; }
    }
    state choose {
        transition select(hdr.items[hdr.command.index].value) { 6: seven; default: accept; }
    }
    state seven { hdr.items[hdr.command.index].value = 7; transition accept; }
    state write { hdr.items[hdr.command.index].value = 0x77; transition accept; }
    state enable { hdr.items[hdr.command.index].setValid(); transition accept; }
    state validity {
        verify(hdr.items[hdr.command.index].isValid(), error.NoMatch);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<8>>(4) numbers;
    meter(4, MeterType.packets) rates;
    action found(bit<8> result) { hdr.command.result = result; }
    action disable(bit<8> index) { hdr.items[index].setInvalid(); }
    table by_value {
        key = { hdr.items[hdr.command.index].value : exact; }
        actions = { found; disable; NoAction; }
        const default_action = NoAction();
        const entries = { 0 : found(0x10); 5 : found(0x15); 6 : disable(1); }
    }
    table by_validity {
        key = { hdr.items[hdr.command.index].isValid() : exact; }
        actions = { found; }
        const default_action = found(9);
        const entries = { true : found(1); false : found(2); }
    }
    table by_sign {
        key = { meta.key : exact; hdr.extra.signed : ternary; }
        actions = { found; }
        const default_action = found(9);
        const entries = { (-3, _) : found(3); (3, _) : found(4); (5, -1) : found(5); }
    }
    table by_signed_element {
        key = { hdr.items[hdr.command.index].signed : exact; }
        actions = { found; }
        const default_action = found(9);
        const entries = { -128 : found(3); 0 : found(4); }
    }
    apply {
        sm.egress_spec = 1;
        if (sm.parser_error == error.NoMatch) {
            hdr.command.result = 0xee;
        } else if (hdr.command.what == 10) {
            if (hdr.items[hdr.command.index].isValid()) { hdr.items[hdr.command.index].setInvalid(); }
        } else if (hdr.command.what == 11) {
            if (hdr.items[hdr.command.index] == hdr.items[0]) { hdr.command.result = 1; }
        } else if (hdr.command.what == 12) {
            by_value.apply();
        } else if (hdr.command.what == 13) {
            by_validity.apply();
        } else if (hdr.command.what == 14) {
            hdr.items[hdr.command.index] = hdr.items[0];
        } else if (hdr.command.what == 15) {
            hdr.items[hdr.command.index] = hdr.items[hdr.command.other];
        } else if (hdr.command.what == 16) {
            numbers.write(1, 0x42);
            numbers.read(hdr.items[hdr.command.index].value, 1);
        } else if (hdr.command.what == 17) {
            random(hdr.items[hdr.command.index].value, 0x33, 0x33);
        } else if (hdr.command.what == 18) {
            meta.key = (int<8>)hdr.command.index;
            by_sign.apply();
        } else if (hdr.command.what == 19) {
            by_signed_element.apply();
        } else if (hdr.command.what == 20) {
            rates.execute_meter(0, hdr.items[hdr.command.index].value);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
