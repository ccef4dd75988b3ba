// SPDX-License-Identifier: Apache-2.0
// lookahead: of a number, in a select, of a header, of more than there is.
#include <core.p4>
#include <v1model.p4>

header short_h { bit<4> kind; bit<4> x; }
header long_h { bit<4> kind; bit<12> x; bit<16> y; }
header report_h { bit<8> seen; bit<16> failure; bit<16> header_y; bit<16> part; }
struct headers_t { report_h report; short_h s; long_h l; }
struct metadata_t { bit<8> seen; bit<16> header_y; bit<16> part; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        transition select(packet.lookahead<bit<4>>()) { 1: shorter; 2: longer; 3: far; default: accept; }
    }
    state shorter { packet.extract(hdr.s); transition accept; }
    state longer {
        long_h ahead = packet.lookahead<long_h>();
        meta.header_y = ahead.y;
        meta.seen = packet.lookahead<bit<8>>();
        packet.extract(hdr.l);
        meta.part = (bit<16>)packet.lookahead<bit<12>>();
        transition accept;
    }
    state far { meta.header_y = packet.lookahead<bit<64>>()[15:0]; transition shorter; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.report.setValid();
        hdr.report.seen = meta.seen;
        hdr.report.header_y = meta.header_y;
        hdr.report.part = meta.part;
        if (sm.parser_error == error.PacketTooShort) { hdr.report.failure = 1; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
