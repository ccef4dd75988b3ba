// SPDX-License-Identifier: Apache-2.0
// How much this target holds, and of what size. worker/p4reduce/wire/format.py has the same sizes,
// and a test compares.
#ifndef P4REDUCE_SIZES
#define P4REDUCE_SIZES

// A frame's lanes of 32 bits: 256, or 64 as on Tofino 2. Of 64, the program adds words of 32 bits alone,
// as hardware does: narrower lanes come as signed sums, and OVERFLOW from the ranks.
#ifndef LANES
#define LANES 256
#endif

const bit<16> PAYLOAD_BYTES = 4 * LANES;

// BMv2 ends if a frame grows by more than 512 bytes, half of 256 lanes. So a frame of these without
// lanes has no room for a block's sums, and a result for all may have to leave as two halves.
#if LANES == 256
#define HALVES
#define NARROW_LANES
const bit<16> HALF_BYTES = 512;
#define EACH_WORD(F) F(0) F(1) F(2) F(3)
#else
#define EACH_WORD(F) F(0)
#endif

const bit<32> SLOTS = 1024;

// Given to the targets on their command line (--cpu-port).
#define CPU_PORT 255

#endif  // P4REDUCE_SIZES
