// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_PARSER
#define P4REDUCE_PARSER

parser PacketParser(packet_in packet,
                    out headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {

    state start {
        meta.ingress_port = standard_metadata.ingress_port;
        meta.port = NOWHERE;
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }

#define VERIFY_IPV4_CHECKSUM()    // empty: checksums.p4 does it
#include "../common/parser.p4"

    state parse_lanes {
#ifdef HALVES
        // A parent's result may be half a block.
        transition select(hdr.agg.kind, hdr.agg.flags) {
            (KIND_RESULT, FLAG_FIRST_HALF &&& FLAG_FIRST_HALF):   parse_first_half;
            (KIND_RESULT, FLAG_SECOND_HALF &&& FLAG_SECOND_HALF): parse_second_half;
            default:                                              parse_words;
        }
    }

    state parse_first_half {
        packet.extract(hdr.word0);
        packet.extract(hdr.word1);
        transition accept;
    }

    state parse_second_half {
        packet.extract(hdr.word2);
        packet.extract(hdr.word3);
        transition accept;
    }
#else
        transition parse_words;
    }
#endif

    state parse_words {
#define EXTRACT(N) packet.extract(hdr.word##N);
        EACH_WORD(EXTRACT)
        transition accept;
    }
}  // parser PacketParser

#endif  // P4REDUCE_PARSER
