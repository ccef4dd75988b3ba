// SPDX-License-Identifier: Apache-2.0
// Selects with masks and several fields, errors, verify, advance; a parser with few paths.
#include <core.p4>
#include <v1model.p4>

error { Forbidden, Odd }

header first_h { bit<4> kind; bit<3> sub; bit<9> flags; bit<16> skip; }
header second_h { bit<24> x; bit<40> y; bit<56> z; bit<8> pad; }
header third_h { int<12> s; bit<4> t; bit<72> u; }
header report_h { bit<32> error_; bit<8> valids; bit<32> length; bit<16> port; }
struct headers_t { report_h report; first_h first; second_h second; third_h third; }
struct metadata_t { bit<16> seen; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.first);
        meta.seen = hdr.first.skip + 1;
        transition select(hdr.first.kind, hdr.first.flags) {
            (1, 0 &&& 1): second;
            (1, _): third;
            (2, 5..8): second;
            (3, _): skipping;
            (4, _): checked;
            (5, 7): accept;
            (6, _): reject;
            (7, _): both;
        }
    }
    state second { packet.extract(hdr.second); transition accept; }
    state third { packet.extract(hdr.third); transition accept; }
    state both { packet.extract(hdr.second); packet.extract(hdr.third); transition accept; }
    state skipping { packet.advance((bit<32>)hdr.first.skip); transition third; }
    state checked {
        verify(hdr.first.sub != 7, error.Forbidden);
        packet.extract(hdr.second);
        verify(hdr.second.x[0:0] == 0, error.Odd);
        transition third;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 3;
        hdr.report.setValid();
        hdr.report.error_ = 99;
        if (sm.parser_error == error.NoError) { hdr.report.error_ = 0; }
        if (sm.parser_error == error.PacketTooShort) { hdr.report.error_ = 1; }
        if (sm.parser_error == error.NoMatch) { hdr.report.error_ = 2; }
        if (sm.parser_error == error.ParserInvalidArgument) { hdr.report.error_ = 3; }
        if (sm.parser_error == error.Forbidden) { hdr.report.error_ = 4; }
        if (sm.parser_error == error.Odd) { hdr.report.error_ = 5; }
        if (hdr.first.isValid()) { hdr.report.valids = hdr.report.valids | 1; }
        if (hdr.second.isValid()) { hdr.report.valids = hdr.report.valids | 2; }
        if (hdr.third.isValid()) { hdr.report.valids = hdr.report.valids | 4; hdr.third.s = hdr.third.s - 1; }
        hdr.report.length = sm.packet_length;
        hdr.report.port = (bit<16>)sm.ingress_port;
        hdr.first.skip = meta.seen;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
