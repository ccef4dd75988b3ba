// SPDX-License-Identifier: Apache-2.0
// Meters: indirect ones of packets and of bytes, and direct ones.
#include <core.p4>
#include <v1model.p4>

header a_h { bit<8> x; bit<8> index; bit<8> packets; bit<8> bytes; bit<8> direct; bit<8> narrow; }
struct headers_t { a_h a; }
struct metadata_t { bit<2> color; bit<8> level; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.a); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    meter(4, MeterType.packets) by_packets;
    meter(4, MeterType.bytes) by_bytes;
    direct_meter<bit<8>>(MeterType.packets) rate;
    direct_meter<bit<2>>(MeterType.bytes) volume;
    action measure() { rate.read(meta.level); }
    action ignore() { }
    table measured {
        key = { hdr.a.x : exact; }
        actions = { measure; ignore; }
        meters = rate;
        size = 16;
    }
    action weigh() { volume.read(meta.color); }
    table weighed {
        key = { hdr.a.x : ternary; }
        actions = { weigh; }
        meters = volume;
        size = 4;
    }
    apply {
        sm.egress_spec = 255;
        by_packets.execute_meter((bit<32>)hdr.a.index, hdr.a.packets);
        by_bytes.execute_meter((bit<32>)hdr.a.index, hdr.a.bytes);
        meta.level = 0x77;
        measured.apply();
        hdr.a.direct = meta.level;
        weighed.apply();
        hdr.a.narrow = (bit<8>)meta.color;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
