// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_DELIVERY
#define P4REDUCE_DELIVERY

// Egress: makes each copy of a result the one that its rank expects.
control ResultDelivery(inout headers_t hdr,
                       inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {

    // Bytes and frames sent down to each rank, by multicast.
    @name(".delivered")
    direct_counter(CounterType.packets_and_bytes) delivered;

    action address(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        hdr.ethernet.src = meta.own_mac;
        hdr.ethernet.dst = mac;
        hdr.ipv4.src = hdr.ipv4.dst;      // the frame was for the switch's own address
        hdr.ipv4.dst = ip;
        hdr.udp.src_port = AGGREGATION_PORT;
        hdr.udp.dst_port = udp_port;
        hdr.agg.rank = rank;
        delivered.count();
    }

    @name(".whole")
    action whole(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
    }

    @name(".first_half")
    action first_half(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
        hdr.agg.flags = hdr.agg.flags | FLAG_FIRST_HALF;
        hdr.word2.setInvalid();
        hdr.word3.setInvalid();
    }

    @name(".second_half")
    action second_half(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        address(mac, ip, udp_port, rank);
        hdr.agg.flags = hdr.agg.flags | FLAG_SECOND_HALF;
        hdr.word0.setInvalid();
        hdr.word1.setInvalid();
    }

    // The rank left between ingress and here.
    @name(".gone")
    action gone() {
        delivered.count();
        mark_to_drop(standard_metadata);
    }

    @name(".delivery")
    table replicas {
        key = { standard_metadata.egress_rid : exact @name("replica"); }
        actions = { whole; first_half; second_half; @defaultonly gone; }
        const default_action = gone();
        counters = delivered;
        size = REPLICA_ENTRIES;
    }

    apply {
        replicas.apply();
    }
}  // control ResultDelivery

// Lengths that follow from which words an answer carries.
control AnswerLengths(inout headers_t hdr) {

    action set_lengths() {
        hdr.udp.length = PAYLOAD_UDP_LENGTH;
        if (hdr.word0.isValid() != hdr.word2.isValid()) {
            hdr.udp.length = HALF_UDP_LENGTH;
        } else if (!hdr.word0.isValid()) {
            hdr.udp.length = EMPTY_UDP_LENGTH;
        }
        hdr.udp.checksum = 0;     // none (RFC 768)
        hdr.ipv4.total_length = hdr.udp.length + IPV4_BYTES;
        hdr.ipv4.ttl = REPLY_TTL;
    }

    apply {
        set_lengths();
    }
}  // control AnswerLengths

#endif  // P4REDUCE_DELIVERY
