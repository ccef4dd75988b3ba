// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_DELIVERY
#define P4REDUCE_DELIVERY

// Egress: makes each copy of a result the one that its rank expects.
control ResultDelivery(inout headers_t hdr,
                       inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {

    // Bytes and frames sent down to each rank, by multicast.
    @name(".delivered")
    DIRECT_COUNTER(delivered);

    action address(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
        hdr.agg.rank = rank;
        delivered.count();
    }

    @name(".whole")
    action whole(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
    }

#ifdef HALVES
    action half() {
        hdr.udp.length = HALF_UDP_LENGTH;
        hdr.ipv4.total_length = HALF_UDP_LENGTH + IPV4_BYTES;
    }

    @name(".first_half")
    action first_half(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
        half();
        hdr.agg.flags = hdr.agg.flags | FLAG_FIRST_HALF;
        hdr.word2.setInvalid();
        hdr.word3.setInvalid();
    }

    @name(".second_half")
    action second_half(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
        half();
        hdr.agg.flags = hdr.agg.flags | FLAG_SECOND_HALF;
        hdr.word0.setInvalid();
        hdr.word1.setInvalid();
    }

#endif
    // The rank left between ingress and here.
    @name(".gone")
    action gone() {
        delivered.count();
        mark_to_drop(standard_metadata);
    }

    @name(".delivery")
    table replicas {
        key = { standard_metadata.egress_rid : exact @name("replica"); }
#ifdef HALVES
        actions = { whole; first_half; second_half; @defaultonly gone; }
#else
        actions = { whole; @defaultonly gone; }
#endif
        const default_action = gone();
        counters = delivered;
        size = REPLICA_ENTRIES;
    }

    apply {
        replicas.apply();
    }
}  // control ResultDelivery

#endif  // P4REDUCE_DELIVERY
