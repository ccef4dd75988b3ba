// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_EGRESS
#define P4REDUCE_EGRESS

// What egress writes of a copy: a rank's addresses, and its number. The lanes pass by.
struct copy_headers_t {
    ethernet_h    ethernet;
    ipv4_h        ipv4;
    udp_h         udp;
    aggregation_h agg;
}

struct copy_metadata_t {
    bool readdressed;
}

parser CopyParser(packet_in packet,
                  out copy_headers_t hdr,
                  out copy_metadata_t meta,
                  out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        meta.readdressed = false;
        transition parse_ethernet;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            default:        accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.protocol) {
            (4, 5, PROTOCOL_UDP): parse_udp;
            default:              accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.src_port) {
            AGGREGATION_PORT: parse_aggregation;
            default:          accept;
        }
    }

    state parse_aggregation {
        packet.extract(hdr.agg);
        transition accept;
    }
}  // parser CopyParser

// Makes each copy of a result the one that its rank expects.
control SwitchEgress(inout copy_headers_t hdr,
                     inout copy_metadata_t meta,
                     in egress_intrinsic_metadata_t intrinsic,
                     in egress_intrinsic_metadata_from_parser_t from_parser,
                     inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                     inout egress_intrinsic_metadata_for_output_port_t for_port) {

    // Bytes and frames sent down to each rank, by multicast.
    @name(".delivered")
    DIRECT_COUNTER(delivered);

    @name(".whole")
    action whole(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
        hdr.agg.rank = rank;
        meta.readdressed = true;
        delivered.count();
    }

    // The rank left between ingress and here.
    @name(".gone")
    action gone() {
        delivered.count();
        for_deparser.drop_ctl = 1;
    }

    @name(".delivery")
    table replicas {
        key = { intrinsic.egress_rid : exact @name("replica"); }
        actions = { whole; @defaultonly gone; }
        const default_action = gone();
        counters = delivered;
        size = REPLICA_ENTRIES;
    }

    apply {
        // 0: not a copy. A flooded frame's are numbered so that its own port gets none.
        if (intrinsic.egress_rid != 0 && intrinsic.egress_rid != 0xffff && hdr.agg.isValid()) {
            replicas.apply();
        }
    }
}  // control SwitchEgress

#endif  // P4REDUCE_EGRESS
