// SPDX-License-Identifier: Apache-2.0
// Every number of the program but those of the aggregation header, which are in header.p4, and those
// of a target, which are in its sizes.p4. worker/p4reduce/wire/format.py holds the same sizes, and a
// test compares.
#ifndef P4REDUCE_CONSTANTS
#define P4REDUCE_CONSTANTS

#include "header.p4"

// -- Ethernet, IPv4, UDP ------------------------------------------------------

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_ICMP  = 1;
const bit<8>  PROTOCOL_UDP   = 17;
const bit<16> ARP_ETHERNET   = 1;
const bit<8>  MAC_BYTES      = 6;
const bit<8>  IPV4_ADDRESS_BYTES = 4;
const bit<16> ARP_REQUEST    = 1;
const bit<16> ARP_REPLY      = 2;
const bit<8>  ICMP_ECHO_REQUEST = 8;
const bit<8>  ICMP_ECHO_REPLY   = 0;
const bit<8>  REPLY_TTL      = 64;

// -- Aggregation header -------------------------------------------------------

// Flags of a contribution that the round's result repeats.
const bit<8> FLAGS_STICKY = FLAG_OVERFLOW | FLAG_NONFINITE | FLAG_MISMATCH;

// -- Sizes, in bytes -----------------------------------------------------------

const bit<32> ETHERNET_BYTES = 14;
const bit<16> IPV4_BYTES     = 20;
const bit<16> UDP_BYTES      = 8;

const bit<16> EMPTY_UDP_LENGTH   = UDP_BYTES + AGG_BYTES;
const bit<16> PAYLOAD_UDP_LENGTH = EMPTY_UDP_LENGTH + PAYLOAD_BYTES;

// -- The switch ------------------------------------------------------------------

#define NOWHERE  511                     // no port: a frame that nothing sends on is dropped
// Made by the controller; its replicas are all the ports.
const bit<16> FLOOD_GROUP = 1;

const bit<32> SLOT_STATES = 2 * SLOTS;   // two versions per slot
#define ADMISSION_ENTRIES 2048
#define REPLICA_ENTRIES   6144           // three per admitted rank
#define UPLINK_ENTRIES    2048           // one per job
#define MAC_ENTRIES       4096
#define OWN_ADDRESSES     16
#define PORTS             512            // all that a port_t can name

// What became of a frame: the index of its counter. Each frame that enters
// ingress is counted under exactly one of these. The controller has the same names,
// and a test compares them.
enum bit<8> Outcome {
    UNSET                 = 0,
    // aggregation
    ROUND_OPENED          = 1,    // first contribution of a round
    ROUND_JOINED          = 2,    // a further one, the round still lacks some
    ROUND_COMPLETED       = 3,    // the last one: RESULT multicast
    ROUND_COMPLETED_HALVES = 4,   // the same, as two halves per rank
    RESULT_REPEATED       = 5,    // heard before, complete: RESULT by unicast
    STATUS_SENT           = 6,    // heard before, incomplete: STATUS to the sender, or to all
    STALE                 = 7,
    MALFORMED             = 8,
    BAD_IPV4_CHECKSUM     = 9,
    BAD_VERSION           = 10,
    UNKNOWN_KIND          = 11,
    UNKNOWN_FORMAT        = 12,
    NOT_ADMITTED          = 13,
    SLOT_OUT_OF_RANGE     = 14,
    HELLO_PUNTED          = 15,
    // the switch as a host
    ARP_REPLIED           = 16,
    ECHO_REPLIED          = 17,
    HOST_UNHANDLED        = 18,
    // the switch as a switch
    L2_FORWARDED          = 19,
    L2_FLOODED            = 20,
    L2_HAIRPIN            = 21,
    PACKET_OUT_SENT       = 22,
    // the controller's protection
    HELLO_LIMITED         = 23,   // a HELLO above its port's rate: dropped
    // the workers' protection
    FORGED_SOURCE         = 24,   // claims to be from the switch itself: dropped
    // a switch below another one
    SUMS_SENT_UP          = 25,   // the round's last contribution here: CONTRIBUTE to the parent
    SUMS_SENT_UP_AGAIN    = 26,   // heard before, the parent has not answered: the same again
    ROOM_ASKED            = 27,   // no room for the sums: STATUS with PADDED by unicast
    RESULT_PASSED_DOWN    = 28,   // the parent's RESULT: kept, and multicast
    HALF_PASSED_DOWN      = 29,   // half of one: multicast
    STATUS_PASSED_DOWN    = 30,   // the parent's STATUS: multicast
    ANSWER_STALE          = 31,   // from the parent, about no round that waits for it: dropped
    ANSWER_DUPLICATE      = 32,   // from the parent, about a round that has its result: dropped
    NOT_FROM_PARENT       = 33,   // a RESULT or STATUS from anybody else: dropped
    STATUS_KEPT_BACK      = 34    // the parent's STATUS for one rank, of no use to all: dropped
}
#define OUTCOMES 64

#endif  // P4REDUCE_CONSTANTS
