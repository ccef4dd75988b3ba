// SPDX-License-Identifier: Apache-2.0
// 10 optional headers: too many paths to write out, so states are shared. The deparser turns them round.
#include <core.p4>
#include <v1model.p4>

header bits_h { bit<16> present; bit<16> sum; }
header h0_h { bit<16> value; }
header h1_h { bit<16> value; }
header h2_h { bit<16> value; }
header h3_h { bit<16> value; }
header h4_h { bit<16> value; }
header h5_h { bit<16> value; }
header h6_h { bit<16> value; }
header h7_h { bit<16> value; }
header h8_h { bit<16> value; }
header h9_h { bit<16> value; }
struct headers_t { bits_h bits; h0_h h0; h1_h h1; h2_h h2; h3_h h3; h4_h h4; h5_h h5; h6_h h6; h7_h h7; h8_h h8; h9_h h9; }
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.bits); transition maybe0; }
    state maybe0 {
        transition select(hdr.bits.present[0:0]) {
            1: take0;
            default: maybe1;
        }
    }
    state take0 { packet.extract(hdr.h0); transition maybe1; }
    state maybe1 {
        transition select(hdr.bits.present[1:1]) {
            1: take1;
            default: maybe2;
        }
    }
    state take1 { packet.extract(hdr.h1); transition maybe2; }
    state maybe2 {
        transition select(hdr.bits.present[2:2]) {
            1: take2;
            default: maybe3;
        }
    }
    state take2 { packet.extract(hdr.h2); transition maybe3; }
    state maybe3 {
        transition select(hdr.bits.present[3:3]) {
            1: take3;
            default: maybe4;
        }
    }
    state take3 { packet.extract(hdr.h3); transition maybe4; }
    state maybe4 {
        transition select(hdr.bits.present[4:4]) {
            1: take4;
            default: maybe5;
        }
    }
    state take4 { packet.extract(hdr.h4); transition maybe5; }
    state maybe5 {
        transition select(hdr.bits.present[5:5]) {
            1: take5;
            default: maybe6;
        }
    }
    state take5 { packet.extract(hdr.h5); transition maybe6; }
    state maybe6 {
        transition select(hdr.bits.present[6:6]) {
            1: take6;
            default: maybe7;
        }
    }
    state take6 { packet.extract(hdr.h6); transition maybe7; }
    state maybe7 {
        transition select(hdr.bits.present[7:7]) {
            1: take7;
            default: maybe8;
        }
    }
    state take7 { packet.extract(hdr.h7); transition maybe8; }
    state maybe8 {
        transition select(hdr.bits.present[8:8]) {
            1: take8;
            default: maybe9;
        }
    }
    state take8 { packet.extract(hdr.h8); transition maybe9; }
    state maybe9 {
        transition select(hdr.bits.present[9:9]) {
            1: take9;
            default: accept;
        }
    }
    state take9 { packet.extract(hdr.h9); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.bits.sum = 0;
        if (hdr.h0.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h0.value; }
        if (hdr.h1.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h1.value; }
        if (hdr.h2.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h2.value; }
        if (hdr.h3.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h3.value; }
        if (hdr.h4.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h4.value; }
        if (hdr.h5.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h5.value; }
        if (hdr.h6.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h6.value; }
        if (hdr.h7.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h7.value; }
        if (hdr.h8.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h8.value; }
        if (hdr.h9.isValid()) { hdr.bits.sum = hdr.bits.sum + hdr.h9.value; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.bits); packet.emit(hdr.h9); packet.emit(hdr.h8); packet.emit(hdr.h7); packet.emit(hdr.h6); packet.emit(hdr.h5); packet.emit(hdr.h4); packet.emit(hdr.h3); packet.emit(hdr.h2); packet.emit(hdr.h1); packet.emit(hdr.h0); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
