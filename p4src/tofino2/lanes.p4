// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_LANES
#define P4REDUCE_LANES

// The sums of a pair of lanes for all slots. A stateful ALU adds words and cannot tell whether they
// have overflowed; the worker sees to that (docs/tofino.md). With MISMATCH they are of no use, and
// nobody gets them.
#define SUMS(N) \
    Register<pair_t, index_t>(SLOT_STATES) sums##N; \
    RegisterAction2<pair_t, index_t, bit<32>, bit<32>>(sums##N) store_of##N = { \
        void apply(inout pair_t sums, out bit<32> low, out bit<32> high) { \
            sums.low = hdr.words.low##N; \
            sums.high = hdr.words.high##N; \
            low = sums.low; \
            high = sums.high; \
        } \
    }; \
    RegisterAction2<pair_t, index_t, bit<32>, bit<32>>(sums##N) add_of##N = { \
        void apply(inout pair_t sums, out bit<32> low, out bit<32> high) { \
            sums.low = sums.low + hdr.words.low##N; \
            sums.high = sums.high + hdr.words.high##N; \
            low = sums.low; \
            high = sums.high; \
        } \
    }; \
    RegisterAction2<pair_t, index_t, bit<32>, bit<32>>(sums##N) load_of##N = { \
        void apply(inout pair_t sums, out bit<32> low, out bit<32> high) { \
            low = sums.low; \
            high = sums.high; \
        } \
    }; \
    action store##N() { hdr.words.low##N = store_of##N.execute(STATE, hdr.words.high##N); } \
    action add##N()   { hdr.words.low##N = add_of##N.execute(STATE, hdr.words.high##N); } \
    action load##N()  { hdr.words.low##N = load_of##N.execute(STATE, hdr.words.high##N); } \
    @hidden table pair##N { \
        key = { meta.op : exact; } \
        actions = { store##N; add##N; load##N; } \
        const entries = { \
            LaneOp.STORE: store##N(); \
            LaneOp.ADD:   add##N(); \
            LaneOp.LOAD:  load##N(); \
        } \
        size = 4; \
    }

#define APPLY_PAIR(N) pair##N.apply();

control Lanes(inout headers_t hdr, inout metadata_t meta) {
    EACH_PAIR(SUMS)

    apply {
        if (meta.op == LaneOp.LOAD) {
            hdr.words.setValid();
        }
        EACH_PAIR(APPLY_PAIR)
    }
}  // control Lanes

// What leaves here has lanes, or not, and lengths that say so.
control Shape(inout headers_t hdr, inout metadata_t meta) {
    action with_lanes() {
        hdr.udp.length = PAYLOAD_UDP_LENGTH;
        hdr.ipv4.total_length = PAYLOAD_UDP_LENGTH + IPV4_BYTES;
    }

    action without_lanes() {
        hdr.words.setInvalid();
        hdr.udp.length = EMPTY_UDP_LENGTH;
        hdr.ipv4.total_length = EMPTY_UDP_LENGTH + IPV4_BYTES;
    }

    apply {
        hdr.udp.checksum = 0;     // none (RFC 768)
        hdr.ipv4.ttl = REPLY_TTL;
        meta.ipv4_rewritten = true;
        if (hdr.agg.flags & FLAG_PAYLOAD == 0) {
            without_lanes();
        } else {
            with_lanes();
        }
    }
}  // control Shape

#endif  // P4REDUCE_LANES
