// SPDX-License-Identifier: Apache-2.0
// What v1model has and common/ uses: its sizes, its counters, and the lanes of a frame.
#ifndef P4REDUCE_TARGET
#define P4REDUCE_TARGET

typedef bit<32> index_t;       // of a slot's state: (slot, version)

// The counter of each entry of a table.
#define DIRECT_COUNTER(NAME) direct_counter(CounterType.packets_and_bytes) NAME

// 64 lanes of 32 bits, 128 of 16 or 256 of 8.
typedef bit<2048> word_t;

// A word of lanes. A block of 256 has four of these, as 2,048 bits are the most that p4c gives a field.
header word_h {
    word_t lanes;
}

#define WORD(N) word_h word##N;
#define LANE_HEADERS EACH_WORD(WORD)

#include "../common/types.p4"

#ifdef HALVES
const bit<16> HALF_UDP_LENGTH = EMPTY_UDP_LENGTH + HALF_BYTES;
#endif

#endif  // P4REDUCE_TARGET
