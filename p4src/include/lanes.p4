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

// One quarter of every slot. BMv2 interprets a primitive at a time, whatever its
// width: 64 lanes in one word cost what a single lane would. So that no carry
// leaks from lane to lane, the top bit of each is left out of the addition and
// put back by exclusive or.
control WordStore(inout word_h word, in bit<32> index, in LaneOp op, in word_t top,
                  in word_t low, inout word_t overflowed) {
    register<word_t, bit<32>>(SLOT_STATES) sums;

    apply {
        if (op == LaneOp.ADD) {
            word_t old;
            sums.read(old, index);
            word_t differ = old ^ word.lanes;
            word_t sum = ((old & low) + (word.lanes & low)) ^ (differ & top);
            // Two's complement overflows where both operands have one sign and
            // the sum the other; only the top bits of this matter, and the
            // reader of `overflowed` masks them.
            overflowed = overflowed | (~differ & (old ^ sum));
            sums.write(index, sum);
            word.lanes = sum;
        } else if (op == LaneOp.STORE) {
            sums.write(index, word.lanes);
        } else if (op == LaneOp.LOAD) {
            word.setValid();
            sums.read(word.lanes, index);
        }
    }
}  // control WordStore

// The lane sums of a block: four words.
control Lanes(inout headers_t hdr, in bit<32> index, in LaneOp op, out bool overflow) {
    WordStore() store0;
    WordStore() store1;
    WordStore() store2;
    WordStore() store3;

    apply {
        // The top bit of each lane, and all the others; nothing else depends on how wide
        // lanes are. (An inverted `top` would cost an operation in each word.)
        word_t top = TOP_BITS_INT32;
        word_t low = LOW_BITS_INT32;
        if (hdr.agg.format == FORMAT_INT16) {
            top = TOP_BITS_INT16;
            low = LOW_BITS_INT16;
        } else if (hdr.agg.format == FORMAT_INT8) {
            top = TOP_BITS_INT8;
            low = LOW_BITS_INT8;
        }
        word_t overflowed = 0;
        store0.apply(hdr.word0, index, op, top, low, overflowed);
        store1.apply(hdr.word1, index, op, top, low, overflowed);
        store2.apply(hdr.word2, index, op, top, low, overflowed);
        store3.apply(hdr.word3, index, op, top, low, overflowed);
        overflow = (overflowed & top) != 0;
    }
}  // control Lanes

#endif  // P4REDUCE_LANES
