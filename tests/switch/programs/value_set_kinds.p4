// SPDX-License-Identifier: Apache-2.0
// Parser value sets whose fields are not exact: ternary, LPM, range and optional; several, and wide ones.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<16> mask; bit<3> prefix; bit<6> same; bit<5> span; bit<2> spare; bit<80> wide; bit<8> found; }
struct headers_t { a_h a; }
struct metadata_t { bit<8> found; }
struct four_t {
    @match(ternary) bit<16> mask;
    @match(lpm) bit<3> prefix;
    bit<6> same;
    @match(range) bit<5> span;
}
struct ranges_t { @match(range) bit<80> wide; @match(range) bit<5> span; }
struct maybe_t { @match(optional) bit<16> mask; @match(ternary) bit<80> wide; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    value_set<four_t>(4) four;
    value_set<ranges_t>(4) ranges;
    value_set<maybe_t>(4) maybe;
    state start {
        packet.extract(hdr.a);
        transition select(hdr.a.mask, hdr.a.prefix, hdr.a.same, hdr.a.span) {
            four: in_four;
            (7, 1, 1, 1): constant;
            default: try_ranges;
        }
    }
    state in_four { meta.found = 1; transition accept; }
    state constant { meta.found = 4; transition accept; }
    state try_ranges {
        transition select(hdr.a.wide, hdr.a.span) { ranges: in_ranges; default: try_maybe; }
    }
    state in_ranges { meta.found = 2; transition accept; }
    state try_maybe {
        transition select(hdr.a.mask, hdr.a.wide) { maybe: in_maybe; default: accept; }
    }
    state in_maybe { meta.found = 3; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { sm.egress_spec = 255; hdr.a.found = meta.found; }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
