// SPDX-License-Identifier: Apache-2.0
// Range and optional keys, for the P4Runtime server's rules about them.

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t { }

parser parse(packet_in pkt, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t std) {
    state start {
        pkt.extract(hdr.ethernet);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    table range_table {
        key = { hdr.ethernet.type: range @name("type"); }
        actions = { forward; NoAction; }
        default_action = NoAction();
    }
    table optional_table {
        key = { hdr.ethernet.type: optional @name("type"); }
        actions = { forward; NoAction; }
        default_action = NoAction();
    }
    apply {
        range_table.apply();
        optional_table.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply { }
}

control compute_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.ethernet);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparse()) main;
