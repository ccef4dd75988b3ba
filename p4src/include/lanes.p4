// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_LANES
#define P4REDUCE_LANES

// What a contribution does to the sums of its slot.
enum bit<2> LaneOp {
    NOTHING = 0,
    STORE   = 1,    // the round's first payload replaces what was there
    ADD     = 2,    // the packet's lanes become the new sums
    LOAD    = 3     // the sums become the packet's lanes
}

// Adds one quarter of a block to its sums. No carry may leak from lane to lane, so
// the top bit of each is left out of the addition and put back by exclusive or.
// Two's complement has overflowed where the sum's sign is neither operand's; only the
// top bits of that matter, and whoever reads `overflowed` masks them. (A macro, because
// p4c turns parameters into copies, and each costs BMv2 as much as an addition.)
#define ADD_WORD(SUMS, WORD) \
    SUMS.read(old, index); \
    sum = ((old & low) + (WORD.lanes & low)) ^ ((old ^ WORD.lanes) & top); \
    overflowed = overflowed | ((old ^ sum) & (WORD.lanes ^ sum)); \
    SUMS.write(index, sum); \
    WORD.lanes = sum

// The packet's lanes become the sums.
#define STORE_WORDS \
    sums0.write(index, hdr.word0.lanes); \
    sums1.write(index, hdr.word1.lanes); \
    sums2.write(index, hdr.word2.lanes); \
    sums3.write(index, hdr.word3.lanes)

// The sums of all slots, a quarter of each block in each register. BMv2 interprets a
// primitive at a time, whatever its width: 64 lanes in one word cost what one would.
register<word_t, bit<32>>(SLOT_STATES) sums0;
register<word_t, bit<32>>(SLOT_STATES) sums1;
register<word_t, bit<32>>(SLOT_STATES) sums2;
register<word_t, bit<32>>(SLOT_STATES) sums3;

control Lanes(inout headers_t hdr, in bit<32> index, in LaneOp op, inout bit<8> flags) {
    action add() {
        word_t old;
        word_t sum;
        word_t overflowed = 0;
        // The top bit of each lane, and the bits below it; nothing else depends on how
        // wide lanes are.
        word_t top = TOP_BITS_INT32;
        word_t low = LOW_BITS_INT32;
        if (hdr.agg.format != FORMAT_INT32) {
            if (hdr.agg.format == FORMAT_INT16) {
                top = TOP_BITS_INT16;
                low = LOW_BITS_INT16;
            } else {
                top = TOP_BITS_INT8;
                low = LOW_BITS_INT8;
            }
        }
        ADD_WORD(sums0, hdr.word0);
        ADD_WORD(sums1, hdr.word1);
        ADD_WORD(sums2, hdr.word2);
        ADD_WORD(sums3, hdr.word3);
        if (overflowed & top != 0) {
            flags = flags | FLAG_OVERFLOW;
        }
    }

    action store() {
        STORE_WORDS;
    }

    action load() {
        hdr.word0.setValid();
        hdr.word1.setValid();
        hdr.word2.setValid();
        hdr.word3.setValid();
        sums0.read(hdr.word0.lanes, index);
        sums1.read(hdr.word1.lanes, index);
        sums2.read(hdr.word2.lanes, index);
        sums3.read(hdr.word3.lanes, index);
    }

    apply {
        if (op == LaneOp.ADD) {
            add();
        } else if (op == LaneOp.STORE) {
            store();
        } else if (op == LaneOp.LOAD) {
            load();
        }
    }
}  // control Lanes

#endif  // P4REDUCE_LANES
