// SPDX-License-Identifier: Apache-2.0
// Exercises the P4Runtime server: one table of each match kind, direct and indirect counters, a
// register, a multicast group and a punt to the CPU port. Not a switch anybody would use.

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9>  ingress_port;
    bit<12> reason;
    bit<3>  _pad;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> _pad;
}

struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
}

struct metadata_t {
    bit<12> reason;
}

parser parse(packet_in pkt, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: from_controller;
            default:  ethernet;
        }
    }
    state from_controller {
        pkt.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        pkt.extract(hdr.ethernet);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(8, CounterType.packets_and_bytes) by_port;
    direct_counter(CounterType.packets_and_bytes) exact_hits;
    direct_counter(CounterType.packets) ternary_hits;
    register<bit<32>>(16) seen;

    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action flood(bit<16> group) {
        std.mcast_grp = group;
    }
    action punt(bit<12> reason, bit<9> copy_of) {
        meta.reason = reason + (bit<12>)copy_of;
        std.egress_spec = CPU_PORT;
    }
    action note(bit<12> reason) {
        meta.reason = reason;
    }

    table exact_table {
        key = { hdr.ethernet.dst: exact @name("dst"); std.ingress_port: exact @name("port"); }
        actions = { forward; flood; punt; @tableonly drop; @defaultonly NoAction; }
        default_action = NoAction();
        counters = exact_hits;
        size = 4;
    }
    table lpm_table {
        key = { hdr.ethernet.src: lpm @name("src"); }
        actions = { forward; drop; note; }
        const default_action = drop();
        size = 64;
    }
    table ternary_table {
        key = { hdr.ethernet.dst: ternary @name("dst"); hdr.ethernet.type: exact @name("type"); }
        actions = { forward; flood; punt; note; NoAction; }
        default_action = note(1);
        counters = ternary_hits;
        size = 64;
    }
    table const_table {
        key = { hdr.ethernet.type: ternary @name("type"); }
        actions = { note; drop; }
        const entries = {
            0x88B5: note(5);
            0x8800 &&& 0xFF00: note(6);
        }
        default_action = note(7);
    }
    table keyless_table {
        actions = { note; NoAction; }
        default_action = NoAction();
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            by_port.count((bit<32>)std.ingress_port);
            bit<32> count;
            seen.read(count, (bit<32>)std.ingress_port);
            seen.write((bit<32>)std.ingress_port, count + 1);
            const_table.apply();
            keyless_table.apply();
            if (!exact_table.apply().hit) {
                if (!ternary_table.apply().hit) {
                    lpm_table.apply();
                }
            }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = meta.reason;
        }
        // A copy of a multicast packet does not go back where it came from.
        if (std.egress_rid != 0 && std.egress_port == std.ingress_port) {
            mark_to_drop(std);
        }
    }
}

control compute_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.ethernet);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparse()) main;
