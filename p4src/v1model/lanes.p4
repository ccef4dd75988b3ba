// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_LANES
#define P4REDUCE_LANES

// Adds one quarter of a block to its sums. TOP has the top bit of each lane, LOW those below
// it, and CHECKED the top bits again, or nothing if lanes may wrap; nothing else depends on the
// format. No carry may leak from lane to lane, so the top bits are left out of the addition and put
// back by exclusive or. Where the operands' signs are the same and the carry into the top bit is
// not, two's complement overflows.
// (A macro, and no variable but `old`: to BMv2 an assignment to a word costs as much as six
// operations, and p4c turns parameters into assignments. Where CHECKED is 0, p4c drops the check.)
#define ADD_WORD(SUMS, WORD, TOP, LOW, CHECKED) \
    SUMS.read(old, meta.index); \
    if ((old ^ WORD.lanes ^ TOP) & (old ^ ((old & LOW) + (WORD.lanes & LOW))) & CHECKED != 0) { \
        meta.round_flags = meta.round_flags | FLAG_OVERFLOW; \
    } \
    WORD.lanes = ((old & LOW) + (WORD.lanes & LOW)) ^ ((old ^ WORD.lanes) & TOP); \
    SUMS.write(meta.index, WORD.lanes)

#define ADD_WORDS(TOP, LOW, CHECKED) \
    ADD_WORD(sums0, hdr.word0, TOP, LOW, CHECKED); \
    ADD_WORD(sums1, hdr.word1, TOP, LOW, CHECKED); \
    ADD_WORD(sums2, hdr.word2, TOP, LOW, CHECKED); \
    ADD_WORD(sums3, hdr.word3, TOP, LOW, CHECKED)

// The sums of all slots, a quarter of each block in each register. BMv2 interprets a
// primitive at a time, whatever its width: 64 lanes in one word cost what one would.
register<word_t, bit<32>>(SLOT_STATES) sums0;
register<word_t, bit<32>>(SLOT_STATES) sums1;
register<word_t, bit<32>>(SLOT_STATES) sums2;
register<word_t, bit<32>>(SLOT_STATES) sums3;

control Sums(inout headers_t hdr, inout metadata_t meta) {
    action add() {
        word_t old;
        if (hdr.agg.format == FORMAT_INT32) {
            ADD_WORDS(TOP_BITS_INT32, LOW_BITS_INT32, TOP_BITS_INT32);
        } else if (hdr.agg.format == FORMAT_INT16) {
            ADD_WORDS(TOP_BITS_INT16, LOW_BITS_INT16, TOP_BITS_INT16);
        } else if (hdr.agg.format == FORMAT_INT8) {
            ADD_WORDS(TOP_BITS_INT8, LOW_BITS_INT8, TOP_BITS_INT8);
        } else if (hdr.agg.format == FORMAT_INT4) {
            ADD_WORDS(TOP_BITS_INT4, LOW_BITS_INT4, TOP_BITS_INT4);
        } else {
            ADD_WORDS(TOP_BITS_INT32, LOW_BITS_INT32, 0);
        }
        if (meta.round_flags & FLAG_OVERFLOW != 0) {
            all_flags.write(meta.index, meta.round_flags);
        }
    }

    action store() {
        sums0.write(meta.index, hdr.word0.lanes);
        sums1.write(meta.index, hdr.word1.lanes);
        sums2.write(meta.index, hdr.word2.lanes);
        sums3.write(meta.index, hdr.word3.lanes);
    }

    action load() {
        hdr.word0.setValid();
        hdr.word1.setValid();
        hdr.word2.setValid();
        hdr.word3.setValid();
        sums0.read(hdr.word0.lanes, meta.index);
        sums1.read(hdr.word1.lanes, meta.index);
        sums2.read(hdr.word2.lanes, meta.index);
        sums3.read(hdr.word3.lanes, meta.index);
    }

    action run() {
        if (meta.op == LaneOp.ADD && meta.round_flags & FLAG_MISMATCH == 0) {
            add();
        } else if (meta.op == LaneOp.STORE) {
            store();
        } else if (meta.op == LaneOp.LOAD) {
            load();
        }
    }

    apply {
        run();
    }
}  // control Sums

#endif  // P4REDUCE_LANES
