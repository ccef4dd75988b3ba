// SPDX-License-Identifier: Apache-2.0
// Headers that nobody changes, or only in part, and headers that vanish because they are not emitted.
#include <core.p4>
#include <v1model.p4>

header ethernet_h { bit<48> dst; bit<48> src; bit<16> ethertype; }
header tag_h { bit<3> priority; bit<1> drop; bit<12> id; bit<16> ethertype; }
header body_h { bit<80> a; bit<24> b; bit<128> c; }
struct headers_t { ethernet_h ethernet; tag_h tag; body_h body; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) { 0x8100: tag; 0x9999: body; default: accept; }
    }
    state tag { packet.extract(hdr.tag); transition body; }
    state body { packet.extract(hdr.body); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = sm.ingress_port ^ 1;
        if (hdr.body.isValid()) { hdr.body.b = hdr.body.b + 1; }
        if (hdr.tag.isValid()) { hdr.ethernet.ethertype = hdr.tag.ethertype; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.body); packet.emit(hdr.ethernet); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
