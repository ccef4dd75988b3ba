// SPDX-License-Identifier: Apache-2.0
// Headers and metadata.
#ifndef P4REDUCE_TYPES
#define P4REDUCE_TYPES

typedef bit<9>    port_t;
typedef bit<48>   mac_t;
typedef bit<32>   ipv4_t;
typedef bit<16>   group_t;
typedef bit<2048> word_t;      // 64 lanes of 32 bits, 128 of 16 or 256 of 8

// -- Headers ---------------------------------------------------------------------

header ethernet_h {
    mac_t   dst;
    mac_t   src;
    bit<16> ethertype;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8>  hardware_length;
    bit<8>  protocol_length;
    bit<16> operation;
    mac_t   sender_mac;
    ipv4_t  sender_ip;
    mac_t   target_mac;
    ipv4_t  target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  diffserv;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ipv4_t  src;
    ipv4_t  dst;
}

header icmp_h {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// A quarter of a block. Four of these, as 2,048 bits are the most that p4c
// gives a field.
header word_h {
    word_t lanes;
}

@controller_header("packet_in")
header packet_in_h {
    port_t ingress_port;
    bit<7> _pad;
}

@controller_header("packet_out")
header packet_out_h {
    port_t egress_port;
    bit<7> _pad;
}

struct headers_t {
    packet_out_h  packet_out;
    packet_in_h   packet_in;
    ethernet_h    ethernet;
    arp_h         arp;
    ipv4_h        ipv4;
    icmp_h        icmp;
    udp_h         udp;
    aggregation_h agg;
    word_h        word0;
    word_h        word1;
    word_h        word2;
    word_h        word3;
}

// -- Metadata --------------------------------------------------------------------

// What egress has to do to a frame.
enum bit<2> Delivery {
    AS_IS = 0,
    FLOOD = 1,           // spare the port that it came from
    TO_REPLICAS = 2      // make each copy one that its receiver expects
}

// Granted by admission, or by the uplink.
struct grant_t {
    ranks_t worker_bit;
    ranks_t all_workers;
    bit<32> slot_base;
    slot_t  slot_count;
    group_t group_full;
    group_t group_halves;
}

struct metadata_t {
    Outcome  outcome;
    Delivery delivery;
    ipv4_t   target_ip;    // whom an IPv4 or ARP frame is for
    bool     own;          // target_ip is the switch's own
    mac_t    own_mac;      // its MAC then
    ipv4_t   sender_ip;    // whom an IPv4 or ARP frame says that it is from
    mac_t    sender_mac;   // the same in ARP
    bool     forged;       // it says that it is from the switch
    bool     ipv4_rewritten;
    grant_t  grant;
    group_t  group_up;     // where sums go that are part of a parent's; 0: they are whole
    bool     goes_up;      // to the parent, which has not answered
    bool     lacks_room;   // to go there, would need it
}

// Drops a frame and says why. (A macro, as each call of an action with an argument is one more
// variable to p4c, and BMv2 clears and copies all variables for each frame.)
#define REFUSE(reason) \
    mark_to_drop(standard_metadata); \
    meta.outcome = reason

#endif  // P4REDUCE_TYPES
