// SPDX-License-Identifier: Apache-2.0
// Headers and metadata.
#ifndef P4REDUCE_TYPES
#define P4REDUCE_TYPES

typedef bit<9>    port_t;
typedef bit<48>   mac_t;
typedef bit<32>   ipv4_t;
typedef bit<16>   group_t;

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

// What the checksum covers, in a header without options.
#define IPV4_CHECKSUMMED { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_length, \
    hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, \
    hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

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

// A port ends where a word ends, as in Tofino's own metadata.
@controller_header("packet_in")
header packet_in_h {
    @id(2) bit<7> _pad;
    @id(1) port_t ingress_port;
}

@controller_header("packet_out")
header packet_out_h {
    @id(2) bit<7> _pad;
    @id(1) port_t egress_port;
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
    LANE_HEADERS               // the target's
}

// -- Metadata --------------------------------------------------------------------

// Granted by admission, or by the uplink.
struct grant_t {
    ranks_t worker_bit;
    ranks_t all_workers;
    slot_t  slot;            // the frame's, counted from the switch's first one
    slot_t  slots_left;      // of the job, from this one on; 0: it is not the job's
    group_t group_full;
    group_t group_halves;
}

// What a frame does to the sums of its slot.
enum bit<8> LaneOp {
    NOTHING = 0,
    STORE   = 1,    // the frame's lanes become the sums
    ADD     = 2,    // the frame's lanes and the sums become the new sums, in both
    LOAD    = 3     // the sums become the frame's lanes
}

// What a frame says that leaves here.
enum bit<8> Reply {
    NONE             = 0,
    RESULT_LANES     = 1,
    RESULT_EMPTY     = 2,
    STATUS           = 3,
    ROOM             = 4,    // a status that asks for room for the lanes
    UP_LANES         = 5,    // to the parent
    UP_EMPTY         = 6,
    UP_LANES_FOR_ONE = 7,
    UP_EMPTY_FOR_ONE = 8,
    HALF_DOWN        = 9,    // from the parent
    STATUS_DOWN      = 10
}

struct metadata_t {
    Outcome  outcome;
    port_t   ingress_port;
    port_t   port;            // where the frame goes,
    group_t  group;           // or, if not 0, to whom
    // addresses
    ipv4_t   target_ip;       // whom an IPv4 or ARP frame is for
    bool     own;             // target_ip is the switch's own
    mac_t    own_mac;         // its MAC then
    ipv4_t   sender_ip;       // whom an IPv4 or ARP frame says that it is from
    mac_t    sender_mac;      // the same in ARP
    bool     forged;          // it says that it is from the switch
    bool     bad_checksum;    // IPv4's
    bool     malformed;       // its lengths are not those that it states
    bool     ipv4_rewritten;
    // what the sender may do
    grant_t  grant;
    group_t  group_up;        // to the parent
    bit<1>   partial;         // 1: sums here are part of a parent's
    bit<8>   sticky;          // the frame's flags that the result must repeat
    bit<8>   echo;            // and those that only the answer to this frame repeats
    // the slot, after this frame (slots.p4)
    index_t  index;
    bit<8>   claim;
    ranks_t  unheard;         // this rank's bit, unless it was heard before
    ranks_t  missing;         // the ranks not heard yet
    bit<8>   paid;            // 1: it had lanes before this frame
    bit<8>   round_flags;
    bit<8>   goes_up;         // a repetition asks the parent
    bit<8>   final;           // what is kept is the result of the whole tree
    // what follows from that
    LaneOp   op;
    Reply    reply;
}

// meta.claim: whose round the slot is about. A target may set other bits as well.
const bit<8> CLAIM_STALE   = 0x02;    // this job's, and a newer one than the frame's
const bit<8> CLAIM_CURRENT = 0x08;    // the frame's
const bit<8> CLAIM_OPENED  = 0x00;    // another job's, or an older one
const bit<8> CLAIM_BITS    = 0x0a;

// Keys of an entry: a bit that is set, and whose round the slot is about.
#define SET(BIT)   BIT &&& BIT
#define IS_STALE   CLAIM_STALE &&& CLAIM_BITS
#define IS_CURRENT CLAIM_CURRENT &&& CLAIM_BITS
#define IS_OPENED  CLAIM_OPENED &&& CLAIM_BITS

// meta.goes_up
const bit<8> UP_NOT     = 0;
const bit<8> UP_TURN    = 1;    // for all ranks here
const bit<8> UP_FOR_ONE = 2;    // for the rank that asks for all

// meta.final
const bit<8> FINAL_NOT   = 0;
const bit<8> FINAL_EMPTY = 1;
const bit<8> FINAL_LANES = 3;
const bit<8> FINAL       = 1;   // set in both

#endif  // P4REDUCE_TYPES
