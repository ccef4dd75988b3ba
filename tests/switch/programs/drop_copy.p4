// SPDX-License-Identifier: Apache-2.0
// mark_to_drop on an action's own copy of standard metadata, in ingress and egress.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; }
struct headers_t { command_h command; }
struct metadata_t { }

action to_drop(inout standard_metadata_t given) { mark_to_drop(given); }
action to_port(inout standard_metadata_t given, bit<9> port) { given.egress_spec = port; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.command); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    table by_command {
        key = { hdr.command.what : exact; }
        actions = { to_drop(sm); to_port(sm); }
        const default_action = to_drop(sm);
        const entries = { 0 : to_port(sm, 1); 2 : to_port(sm, 2); 3 : to_port(sm, 3); }
    }
    apply { by_command.apply(); }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { if (hdr.command.what == 3) { to_drop(sm); } }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
