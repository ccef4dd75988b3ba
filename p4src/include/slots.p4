// SPDX-License-Identifier: Apache-2.0
// What the switch keeps of each slot beside its sums (lanes.p4), in two versions: for even
// and for odd rounds. What ranks contribute (aggregation.p4) and what a parent answers
// (uplink.p4) meet here.
#ifndef P4REDUCE_SLOTS
#define P4REDUCE_SLOTS

// What is known of the latest round in each version of each slot, a register a field:
// to BMv2 the shifts and masks that unpack one wide register cost more than its reads.
register<job_t,   bit<32>>(SLOT_STATES) jobs;
register<round_t, bit<32>>(SLOT_STATES) rounds;
register<ranks_t, bit<32>>(SLOT_STATES) heard_ranks;
register<bit<32>, bit<32>>(SLOT_STATES) tags;
register<block_t, bit<32>>(SLOT_STATES) blocks;
register<bit<8>,  bit<32>>(SLOT_STATES) formats;
register<block_t, bit<32>>(SLOT_STATES) next_blocks;
register<bit<8>,  bit<32>>(SLOT_STATES) next_exponents;
register<bit<8>,  bit<32>>(SLOT_STATES) all_flags;
// In a tree: the ranks that have asked again since the parent was last asked.
register<ranks_t, bit<32>>(SLOT_STATES) askers;

#endif  // P4REDUCE_SLOTS
