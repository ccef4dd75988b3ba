// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_PARSER
#define P4REDUCE_PARSER

parser PacketParser(packet_in packet,
                    out headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {

    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default:  parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP:  parse_arp;
            default:        accept;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        // Elsewhere the addresses are not where the header has them (RFC 826).
        transition select(hdr.arp.hardware_type, hdr.arp.protocol_type,
                          hdr.arp.hardware_length, hdr.arp.protocol_length) {
            (ARP_ETHERNET, ETHERTYPE_IPV4, MAC_BYTES, IPV4_ADDRESS_BYTES): parse_arp_addresses;
            default:                                                      accept;
        }
    }

    state parse_arp_addresses {
        meta.target_ip = hdr.arp.target_ip;
        meta.sender_ip = hdr.arp.sender_ip;
        meta.sender_mac = hdr.arp.sender_mac;
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        meta.target_ip = hdr.ipv4.dst;
        meta.sender_ip = hdr.ipv4.src;
        // Only whole datagrams without options are looked into: bit 0 of the
        // flags says that more fragments follow.
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags,
                          hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTOCOL_UDP):  parse_udp;
            (4, 5, 0 &&& 1, 0, PROTOCOL_ICMP): parse_icmp;
            default:                           accept;
        }
    }

    state parse_icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            AGGREGATION_PORT: parse_aggregation;
            default:          accept;
        }
    }

    state parse_aggregation {
        packet.extract(hdr.agg);
        // Most frames first. A parent's answers may be half a block, or ask for padding without
        // having any.
        transition select(hdr.agg.kind, hdr.agg.flags) {
            (KIND_CONTRIBUTE, FLAG_PAYLOAD &&& FLAG_PAYLOAD):     parse_words;
            (KIND_RESULT, FLAG_FIRST_HALF &&& FLAG_FIRST_HALF):   parse_first_half;
            (KIND_RESULT, FLAG_SECOND_HALF &&& FLAG_SECOND_HALF): parse_second_half;
            (KIND_STATUS, _):                                     accept;
            (_, FLAG_PAYLOAD &&& FLAG_PAYLOAD):                   parse_words;
            (_, FLAG_PADDED &&& FLAG_PADDED):                     parse_words;
            default:                                              accept;
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

    state parse_words {
        packet.extract(hdr.word0);
        packet.extract(hdr.word1);
        packet.extract(hdr.word2);
        packet.extract(hdr.word3);
        transition accept;
    }
}  // parser PacketParser

#endif  // P4REDUCE_PARSER
