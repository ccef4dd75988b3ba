// SPDX-License-Identifier: Apache-2.0
// What p4c's P4Info says otherwise than its JSON: objects that no packet reaches and that p4c leaves
// out of the JSON, key fields of type `error`, translated types; entries that are not constant.
#include <core.p4>
#include <v1model.p4>

error { Odd }

@p4runtime_translation("p4reduce.test/port", 32)
type bit<9> port_t;
@p4runtime_translation("p4reduce.test/name", string)
type bit<16> name_t;

header a_h { bit<8> kind; bit<16> word; }
struct headers_t { a_h a; }
struct metadata_t { name_t name; port_t port; bit<16> sum; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.a);
        verify(hdr.a.kind != 77, error.Odd);
        meta.name = (name_t)hdr.a.word;
        meta.port = (port_t)sm.ingress_port;
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    counter(16, CounterType.packets) never_counted;
    direct_counter(CounterType.packets) hits;
    register<bit<8>>(4) never_read;
    action set(bit<16> value) { hdr.a.word = value; }
    action forward(port_t port) { sm.egress_spec = (bit<9>)port; }
    action count_never(bit<32> index) { never_counted.count(index); }
    table by_error {
        key = { sm.parser_error: exact; }
        actions = { set; NoAction; }
        default_action = NoAction;
    }
    table by_port {
        key = { meta.port: exact; }
        actions = { forward; NoAction; }
        default_action = NoAction;
    }
    table by_name {
        key = { meta.name: ternary; }
        actions = { set; NoAction; }
        default_action = NoAction;
    }
    table never_applied {
        key = { hdr.a.kind: exact; hdr.a.word: ternary; }
        actions = { set; count_never; NoAction; }
        default_action = NoAction;
        counters = hits;
    }
    table initial {
        key = { hdr.a.kind: exact; }
        actions = { set; NoAction; }
        default_action = NoAction;
        entries = { 9: set(0x999); 10: set(0xaaa); }
    }
    apply {
        sm.egress_spec = 255; // the CPU port
        by_error.apply();
        by_port.apply();
        by_name.apply();
        initial.apply();
        bit<1> never = 0;
        if (never == 1) { never_applied.apply(); }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
