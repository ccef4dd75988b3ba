// SPDX-License-Identifier: Apache-2.0
// What Tofino 2 has and common/ uses: its counters, and the lanes of a frame.
#ifndef P4REDUCE_TARGET
#define P4REDUCE_TARGET

// The counter of each entry of a table.
#define DIRECT_COUNTER(NAME) DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) NAME

// What a register holds where two words belong together: one stateful ALU has room for both.
struct pair_t {
    bit<32> low;
    bit<32> high;
}

// Where the state of a frame's slot is: in the version for its round.
#define STATE meta.grant.slot[10:0] ++ hdr.agg.round[0:0]

#define LANES(N) bit<32> low##N; bit<32> high##N;
header words_h {
    EACH_PAIR(LANES)
}

#define LANE_HEADERS words_h words;

#include "../common/types.p4"

#endif  // P4REDUCE_TARGET
