// SPDX-License-Identifier: Apache-2.0
// Clone (both kinds), resubmit, recirculate, truncate, with field lists.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> count; bit<16> session; bit<32> value; }
header report_h {
    bit<32> type; bit<16> ingress; bit<16> egress; bit<16> rid; bit<16> length;
    bit<8> a; bit<8> b; bit<8> c; bit<8> carried_type;
}
struct headers_t { report_h report; command_h command; }
struct metadata_t {
    @field_list(1, 2) bit<8> a;
    @field_list(2) bit<8> b;
    bit<8> c;
    @field_list(1, 2, 3) bit<8> carried_type;
}

#define CLONE_INGRESS 1
#define CLONE_EGRESS 2
#define RESUBMIT 4
#define RECIRCULATE 8
#define TRUNCATE_IN_INGRESS 16
#define TRUNCATE_IN_EGRESS 32
#define OTHER_LIST 64
#define MULTICAST 128

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.command); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        meta.carried_type = (bit<8>)sm.instance_type;
        if (hdr.command.what & MULTICAST != 0) { sm.mcast_grp = 5; }
        if (hdr.command.what & TRUNCATE_IN_INGRESS != 0) { truncate(20); truncate(30); }
        if (hdr.command.what & CLONE_INGRESS != 0) {
            if (hdr.command.what & OTHER_LIST != 0) {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.command.session, 2);
            } else {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.command.session, 1);
            }
        }
        if (hdr.command.what & RESUBMIT != 0 && meta.a < hdr.command.count) {
            resubmit_preserving_field_list(1);
        }
        meta.a = meta.a + 1;
        meta.b = meta.b + 2;
        meta.c = meta.c + 3;
        hdr.command.value = hdr.command.value + 1;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.report.setValid();
        hdr.report.type = sm.instance_type;
        hdr.report.ingress = (bit<16>)sm.ingress_port;
        hdr.report.egress = (bit<16>)sm.egress_port;
        hdr.report.rid = sm.egress_rid;
        hdr.report.length = (bit<16>)sm.packet_length;
        hdr.report.a = meta.a;
        hdr.report.b = meta.b;
        hdr.report.c = meta.c;
        hdr.report.carried_type = meta.carried_type;
        hdr.command.value = hdr.command.value + 0x100;
        if (hdr.command.what & TRUNCATE_IN_EGRESS != 0) { truncate(25); }
        if (hdr.command.what & CLONE_EGRESS != 0 && (sm.instance_type != 2 || hdr.command.count == 255)) {
            meta.b = meta.b + 0x10;
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.command.session, 2);
        }
        if (hdr.command.what & RECIRCULATE != 0 && hdr.command.count != 0) {
            hdr.command.count = hdr.command.count - 1;
            hdr.report.setInvalid();
            recirculate_preserving_field_list(3);
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
