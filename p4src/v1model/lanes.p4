// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_LANES
#define P4REDUCE_LANES

// Adds a word of a block to its sums. TOP has the top bit of each lane, LOW those below it, and CHECKED
// the top bits again, or nothing if lanes may wrap; nothing else depends on the format. No carry may
// leak from lane to lane, so the top bits are left out of the addition and put back by exclusive or.
// Where the operands' signs are the same and the carry into the top bit is not, two's complement
// overflows.
// (A macro, and no variable but `old`: to BMv2 an assignment to a word costs as much as six
// operations, and p4c turns parameters into assignments. Where CHECKED is 0, p4c drops the check.)
#define ADD_WORD(N, TOP, LOW, CHECKED) \
    sums##N.read(old, meta.index); \
    if ((old ^ hdr.word##N.lanes ^ TOP) \
            & (old ^ ((old & LOW) + (hdr.word##N.lanes & LOW))) & CHECKED != 0) { \
        meta.round_flags = meta.round_flags | FLAG_OVERFLOW; \
    } \
    hdr.word##N.lanes = ((old & LOW) + (hdr.word##N.lanes & LOW)) ^ ((old ^ hdr.word##N.lanes) & TOP); \
    sums##N.write(meta.index, hdr.word##N.lanes);

#define ADD_INT32(N)  ADD_WORD(N, TOP_BITS_INT32, LOW_BITS_INT32, TOP_BITS_INT32)
#define ADD_INT16(N)  ADD_WORD(N, TOP_BITS_INT16, LOW_BITS_INT16, TOP_BITS_INT16)
#define ADD_INT8(N)   ADD_WORD(N, TOP_BITS_INT8, LOW_BITS_INT8, TOP_BITS_INT8)
#define ADD_INT4(N)   ADD_WORD(N, TOP_BITS_INT4, LOW_BITS_INT4, TOP_BITS_INT4)
#define ADD_WRAP32(N) ADD_WORD(N, TOP_BITS_INT32, LOW_BITS_INT32, 0)
#define STORE_WORD(N) sums##N.write(meta.index, hdr.word##N.lanes);
#define LOAD_WORD(N)  hdr.word##N.setValid(); sums##N.read(hdr.word##N.lanes, meta.index);

// The sums of all slots, a word of each block in each register. BMv2 interprets a primitive at a
// time, whatever its width: 64 lanes in one word cost what one would.
#define SUMS(N) register<word_t, bit<32>>(SLOT_STATES) sums##N;
EACH_WORD(SUMS)

control Sums(inout headers_t hdr, inout metadata_t meta) {
    action add() {
        word_t old;
#ifdef NARROW_LANES
        if (hdr.agg.format == FORMAT_INT32) {
            EACH_WORD(ADD_INT32)
        } else if (hdr.agg.format == FORMAT_INT16) {
            EACH_WORD(ADD_INT16)
        } else if (hdr.agg.format == FORMAT_INT8) {
            EACH_WORD(ADD_INT8)
        } else if (hdr.agg.format == FORMAT_INT4) {
            EACH_WORD(ADD_INT4)
        } else {
            EACH_WORD(ADD_WRAP32)
        }
#else
        EACH_WORD(ADD_WRAP32)
#endif
        if (meta.round_flags & FLAG_OVERFLOW != 0) {
            all_flags.write(meta.index, meta.round_flags);
        }
    }

    action store() {
        EACH_WORD(STORE_WORD)
    }

    action load() {
        EACH_WORD(LOAD_WORD)
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
