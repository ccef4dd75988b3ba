// SPDX-License-Identifier: Apache-2.0
// A varbit field at the end of a header: extracted, kept or changed around it, removed, made valid.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> bits; bit<16> failure; bit<32> length; }
header options_h { bit<8> x; varbit<64> data; }
header after_h { bit<8> y; }
struct headers_t { command_h command; options_h options; after_h after; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what) { 9: accept; default: options; }
    }
    state options {
        packet.extract(hdr.options, (bit<32>)hdr.command.bits);
        packet.extract(hdr.after);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        if (sm.parser_error == error.PacketTooShort) {
            hdr.command.failure = 1;
        } else if (sm.parser_error == error.HeaderTooShort) {
            hdr.command.failure = 2;
        } else if (sm.parser_error == error.ParserInvalidArgument) {
            hdr.command.failure = 3;
        }
        if (hdr.command.what == 1) {
            hdr.options.x = 0xaa;
        } else if (hdr.command.what == 2) {
            hdr.options.setInvalid();
        } else if (hdr.command.what == 9) {
            hdr.options.setValid();
            hdr.options.x = 0xbb;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.command.length = sm.packet_length;
        if (hdr.command.what == 3) {
            hdr.options.x = 0xcc;
        } else if (hdr.command.what == 4) {
            hdr.options.setInvalid();
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
