// SPDX-License-Identifier: Apache-2.0
// How much this target holds, and of what size.
#ifndef P4REDUCE_SIZES
#define P4REDUCE_SIZES

const bit<16> PAYLOAD_BYTES = 256;    // lanes of a frame

// A pair of lanes each.
#define EACH_PAIR(F) \
    F(0)  F(1)  F(2)  F(3)  F(4)  F(5)  F(6)  F(7)  F(8)  F(9)  F(10) F(11) F(12) F(13) F(14) F(15) \
    F(16) F(17) F(18) F(19) F(20) F(21) F(22) F(23) F(24) F(25) F(26) F(27) F(28) F(29) F(30) F(31)

const bit<32> SLOTS = 2048;
typedef bit<12> index_t;              // of a slot's state: (slot, version)

// Tofino 2's own port to the CPU, by PCIe.
#define CPU_PORT 0

#endif  // P4REDUCE_SIZES
