// SPDX-License-Identifier: Apache-2.0
// What the labs' programs have in common: one header with four lanes behind Ethernet.
#ifndef LAB_P4
#define LAB_P4

#include <core.p4>
#include <v1model.p4>

const bit<16> LAB_TYPE = 0x88b5;  // for experiments: IEEE 802
const bit<32> SLOTS = 8;
const bit<32> NONE = 0xffffffff;  // no block
const bit<8> PAYLOAD = 1;         // flags: the lanes hold numbers
const bit<8> OVERFLOW = 2;        // flags: a sum did not fit into its lane

// The multicast group of ranks 0 and 1, at ports 1 and 2. (Not a const: p4c would say that what it is
// assigned to is set in this file.)
#define RANKS 16w1

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

header lab_t {
    bit<8>  rank;   // 0 or 1; the rank's port is one more
    bit<8>  flags;
    bit<16> slot;   // 0 to SLOTS - 1
    bit<32> round;  // of the slot; labs 3 and 4
    bit<32> count;  // lab 1
    bit<32> block;  // which block the lanes are; lab 4
    bit<32> next;   // the sender's next block that is not zero, or NONE; lab 4
}

header lanes_t {
    bit<32> a;
    bit<32> b;
    bit<32> c;
    bit<32> d;
}

struct headers_t {
    ethernet_t ethernet;
    lab_t lab;
    lanes_t lanes;
}

struct metadata_t { }

parser LabParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                 inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            LAB_TYPE: lab;
            default: accept;
        }
    }
    state lab {
        packet.extract(hdr.lab);
        packet.extract(hdr.lanes);
        transition accept;
    }
}

control LabVerify(inout headers_t hdr, inout metadata_t meta) { apply { } }

control LabEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { }
}

control LabCompute(inout headers_t hdr, inout metadata_t meta) { apply { } }

control LabDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.lab);
        packet.emit(hdr.lanes);
    }
}

#endif
