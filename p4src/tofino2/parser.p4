// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_PARSER
#define P4REDUCE_PARSER

parser PacketParser(packet_in packet,
                    out headers_t hdr,
                    out metadata_t meta,
                    out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.ingress_port = intrinsic.ingress_port;
        meta.port = NOWHERE;
        transition select(intrinsic.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }

// A header with options fails here, as they are not in the sum. Nothing looks into such a frame.
#define VERIFY_IPV4_CHECKSUM() \
    ipv4_checksum.add(hdr.ipv4); \
    meta.bad_checksum = ipv4_checksum.verify();
#include "../common/parser.p4"

    state parse_lanes {
        packet.extract(hdr.words);
        transition accept;
    }
}  // parser PacketParser

#endif  // P4REDUCE_PARSER
