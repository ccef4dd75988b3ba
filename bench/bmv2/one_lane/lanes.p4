// SPDX-License-Identifier: Apache-2.0
// Takes the place of p4src/v1model/lanes.p4 in the program that the benchmark compares with
// (see compile.py): a register of 32 bits for each lane, as P4 programs for hardware have it,
// instead of four of 2,048 bits. Lanes are 32 bits wide, whatever the frame's format.
#ifndef P4REDUCE_LANES
#define P4REDUCE_LANES

// Lanes 00 to 77, in octal, of word W.
#define EACH_8(DO, W, P) \
    DO(W, P##0) DO(W, P##1) DO(W, P##2) DO(W, P##3) DO(W, P##4) DO(W, P##5) DO(W, P##6) DO(W, P##7)
#define EACH_64(DO, W) \
    EACH_8(DO, W, 0) EACH_8(DO, W, 1) EACH_8(DO, W, 2) EACH_8(DO, W, 3) \
    EACH_8(DO, W, 4) EACH_8(DO, W, 5) EACH_8(DO, W, 6) EACH_8(DO, W, 7)
#define EACH_256(DO) EACH_64(DO, 0) EACH_64(DO, 1) EACH_64(DO, 2) EACH_64(DO, 3)

#define REGISTER(W, L) register<bit<32>, bit<32>>(SLOT_STATES) sums##W##_##L;
#define LANE(W, L)     hdr.word##W.lane##L
#define STORE_LANE(W, L) sums##W##_##L.write(meta.index, LANE(W, L));
#define LOAD_LANE(W, L)  sums##W##_##L.read(LANE(W, L), meta.index);

#ifdef WITHOUT_OVERFLOW
// The least that adds: what a benchmark would be made of.
#define ADD_LANE(W, L) \
    sums##W##_##L.read(old, meta.index); \
    LANE(W, L) = LANE(W, L) + old; \
    sums##W##_##L.write(meta.index, LANE(W, L));
#else
// What the program with wide words does, lane by lane.
#define ADD_LANE(W, L) \
    sums##W##_##L.read(old, meta.index); \
    sum = old + LANE(W, L); \
    overflowed = overflowed | ((old ^ sum) & (LANE(W, L) ^ sum)); \
    sums##W##_##L.write(meta.index, sum); \
    LANE(W, L) = sum;
#endif

EACH_256(REGISTER)

control Sums(inout headers_t hdr, inout metadata_t meta) {
    action add() {
        bit<32> old;
#ifdef WITHOUT_OVERFLOW
        EACH_256(ADD_LANE)
#else
        bit<32> sum;
        bit<32> overflowed = 0;
        EACH_256(ADD_LANE)
        if (overflowed & 0x80000000 != 0) {
            meta.round_flags = meta.round_flags | FLAG_OVERFLOW;
            all_flags.write(meta.index, meta.round_flags);
        }
#endif
    }

    action store() {
        EACH_256(STORE_LANE)
    }

    action load() {
        hdr.word0.setValid();
        hdr.word1.setValid();
        hdr.word2.setValid();
        hdr.word3.setValid();
        EACH_256(LOAD_LANE)
    }

    apply {
        if (meta.op == LaneOp.ADD) {
            add();
        } else if (meta.op == LaneOp.STORE) {
            store();
        } else if (meta.op == LaneOp.LOAD) {
            load();
        }
    }
}  // control Sums

#endif  // P4REDUCE_LANES
