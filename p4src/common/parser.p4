// SPDX-License-Identifier: Apache-2.0
// The states that are the same in each target's parser, which includes this. It has a state for the
// lanes of its own: parse_lanes. VERIFY_IPV4_CHECKSUM is empty where the architecture does that.

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
        transition select(hdr.arp.hardware_type, hdr.arp.protocol_type) {
            (ARP_ETHERNET, ETHERTYPE_IPV4): parse_arp_lengths;
            default:                        accept;
        }
    }

    state parse_arp_lengths {
        transition select(hdr.arp.hardware_length, hdr.arp.protocol_length) {
            (MAC_BYTES, IPV4_ADDRESS_BYTES): parse_arp_addresses;
            default:                         accept;
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
        VERIFY_IPV4_CHECKSUM()
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
        // A status may ask for padding without having any.
        transition select(hdr.agg.kind, hdr.agg.flags) {
            (KIND_CONTRIBUTE, FLAG_PAYLOAD &&& FLAG_PAYLOAD): parse_lanes;    // most frames
            (KIND_STATUS, _):                                 accept;
            (_, FLAG_PAYLOAD &&& FLAG_PAYLOAD):               parse_lanes;
            (_, FLAG_PADDED &&& FLAG_PADDED):                 parse_lanes;
            default:                                          accept;
        }
    }
