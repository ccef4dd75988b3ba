// SPDX-License-Identifier: Apache-2.0
// Multicast and unicast, what egress sees, drops, headers added and removed for each copy.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<9> port; bit<7> flags; bit<16> group; bit<32> value; }
header report_h { bit<16> rid; bit<7> pad; bit<9> port; bit<32> type; bit<32> length; bit<32> spec; }
header big_h { bit<2048> x; }
struct headers_t { report_h report; command_h command; big_h big0; big_h big1; big_h big2; }
struct metadata_t { bit<32> carried; bit<32> only_egress; }

#define DROP_IN_INGRESS 0
#define DROP_ODD_COPIES 1
#define GROW_768 2
#define GROW_512 3
#define REMOVE_COMMAND 4
#define GROW_256 5

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.command); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = hdr.command.port;
        sm.mcast_grp = hdr.command.group;
        meta.carried = hdr.command.value + 1;
        if (hdr.command.flags[DROP_IN_INGRESS:DROP_IN_INGRESS] == 1) {
            mark_to_drop(sm);
        }
        if (hdr.command.flags[GROW_768:GROW_768] == 1) {
            hdr.big0.setValid();
            hdr.big1.setValid();
            hdr.big2.setValid();
        }
        if (hdr.command.flags[GROW_512:GROW_512] == 1) {
            hdr.big0.setValid();
            hdr.big1.setValid();
            hdr.big1.x = 1;
        }
        if (hdr.command.flags[GROW_256:GROW_256] == 1) {
            hdr.big0.setValid();
            hdr.big1.setValid();
            hdr.big1.setInvalid();
            hdr.big1.setInvalid();
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (hdr.command.flags[GROW_512:GROW_512] == 0) {
            hdr.report.setValid();
            hdr.report.rid = sm.egress_rid;
            hdr.report.port = sm.egress_port;
            hdr.report.type = sm.instance_type;
            hdr.report.length = sm.packet_length;
            hdr.report.spec = (bit<32>)sm.egress_spec;
        }
        meta.only_egress = meta.only_egress + 1;
        hdr.command.value = meta.carried + meta.only_egress;
        meta.carried = 0;
        if (hdr.command.flags[DROP_ODD_COPIES:DROP_ODD_COPIES] == 1 && sm.egress_rid[0:0] == 1) {
            mark_to_drop(sm);
        }
        if (hdr.command.flags[REMOVE_COMMAND:REMOVE_COMMAND] == 1) {
            hdr.command.setInvalid();
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
