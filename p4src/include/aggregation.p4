// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_AGGREGATION
#define P4REDUCE_AGGREGATION

// A slot's bookkeeping is one wide word, so that a packet costs one read and one
// write of it. These are its fields.
#define STATE_JOB           255:224
#define STATE_ROUND         223:192
#define STATE_CONTRIBUTORS  191:128
#define STATE_BLOCK         127:96
#define STATE_NEXT_BLOCK    95:64
#define STATE_TAG           63:32
#define STATE_NEXT_EXPONENT 31:24
#define STATE_FLAGS         23:16
#define STATE_FORMAT        15:8

// The rounds of all slots. simple_switch runs ingress in one thread, and so does
// the embedded switch: what is read here is still so when it is written.
//
//  job    round   rank heard  complete | case
//  ------------------------------------+----------------------------------------------
//  same   older       -          -     | stale: a late duplicate. Drop.
//  other    -         -          -     | open: the slot has a new owner. Overwrite.
//  same   newer       -          -     | open: every rank has the result of the round
//                                      |   that this overwrites (docs/protocol.md, "Why
//                                      |   two versions are enough").
//  same   same        no         -     | join: add.
//  same   same        yes        yes   | a retransmission after a lost result: only
//                                      |   read, and answer with the result.
//  same   same        yes        no    | a retransmission while others are awaited:
//                                      |   answer with who has been heard.
control Aggregation(inout headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    register<state_t, bit<32>>(SLOT_STATES) states;
    state_t state;
    Lanes() lanes;

    // The answer's header, but for what differs from rank to rank.
    action set_header(bit<4> kind, bit<8> flags) {
        hdr.agg.kind = kind;
        hdr.agg.flags = flags;
        hdr.agg.block = state[STATE_BLOCK];
        hdr.agg.next_block = state[STATE_NEXT_BLOCK];
        hdr.agg.tag = state[STATE_TAG];
        hdr.agg.next_exponent = state[STATE_NEXT_EXPONENT];
        hdr.agg.format = state[STATE_FORMAT];
        hdr.agg.contributors = state[STATE_CONTRIBUTORS];
        meta.ipv4_rewritten = true;
    }

    action without_words() {
        hdr.word0.setInvalid();
        hdr.word1.setInvalid();
        hdr.word2.setInvalid();
        hdr.word3.setInvalid();
    }

    action to_ranks(group_t group) {
        standard_metadata.mcast_grp = group;
        meta.delivery = Delivery.RESULT_TO_RANKS;
    }

    action to_sender() {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.own_mac;
        ipv4_t own_ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own_ip;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = AGGREGATION_PORT;
    }

    apply {
        bit<32> index = (meta.grant.slot_base + (bit<32>)hdr.agg.slot) << 1 | (hdr.agg.round & 1);
        states.read(state, index);

        round_t ahead = hdr.agg.round - state[STATE_ROUND];    // RFC 1982
        bool same_job = state[STATE_JOB] == hdr.agg.job;
        bool current = same_job && ahead == 0;
        bool heard = current && state[STATE_CONTRIBUTORS] & meta.grant.worker_bit != 0;

        if (same_job && ahead >= 0x80000000) {
            meta.outcome = Outcome.STALE;
            mark_to_drop(standard_metadata);
        } else {
            bool has_words = hdr.word0.isValid();
            LaneOp op = LaneOp.NOTHING;

            if (!heard) {
                // -- A contribution that counts: the round's bookkeeping with it -------
                bit<8> flags = hdr.agg.flags & FLAGS_STICKY;
                ranks_t contributors = meta.grant.worker_bit;
                block_t next_block = hdr.agg.next_block;
                bit<8> next_exponent = hdr.agg.next_exponent;
                LaneOp with_payload = LaneOp.STORE;

                if (current) {
                    if (state[STATE_FLAGS] & FLAG_PAYLOAD != 0) {
                        with_payload = LaneOp.ADD;
                    }
                    flags = flags | state[STATE_FLAGS];
                    if (hdr.agg.tag != state[STATE_TAG] || hdr.agg.block != state[STATE_BLOCK]
                            || hdr.agg.format != state[STATE_FORMAT]) {
                        flags = flags | FLAG_MISMATCH;
                        // The round stays about what its first rank asked for.
                        hdr.agg.tag = state[STATE_TAG];
                        hdr.agg.block = state[STATE_BLOCK];
                        hdr.agg.format = state[STATE_FORMAT];
                    }
                    contributors = contributors | state[STATE_CONTRIBUTORS];
                    // The smaller next block; the larger exponent where both name one.
                    if (state[STATE_NEXT_BLOCK] < next_block
                            || state[STATE_NEXT_BLOCK] == next_block
                                && state[STATE_NEXT_EXPONENT] > next_exponent) {
                        next_block = state[STATE_NEXT_BLOCK];
                        next_exponent = state[STATE_NEXT_EXPONENT];
                    }
                }
                if (flags & FLAG_MISMATCH != 0) {
                    flags = flags & ~FLAG_PAYLOAD;   // no sum for ranks that disagree on what
                }
                if (hdr.agg.flags & flags & FLAG_PAYLOAD != 0) {
                    op = with_payload;
                }
                state = hdr.agg.job ++ hdr.agg.round ++ contributors ++ hdr.agg.block
                        ++ next_block ++ hdr.agg.tag ++ next_exponent ++ flags
                        ++ hdr.agg.format ++ 8w0;
            }

            // -- The sums -------------------------------------------------------------
            bool complete = state[STATE_CONTRIBUTORS] == meta.grant.all_workers;
            bool owes_words = complete && state[STATE_FLAGS] & FLAG_PAYLOAD != 0;
            // Retransmissions are padded, so that their answer has room for words. A mere
            // duplicate of a frame without any gets a status: its sender was answered before.
            bool no_room = heard && owes_words && !has_words;
            if (owes_words && op == LaneOp.NOTHING && !no_room) {
                op = LaneOp.LOAD;
            }
            if (op != LaneOp.NOTHING) {
                bool overflow;
                lanes.apply(hdr, index, op, overflow);
                if (overflow) {
                    state[STATE_FLAGS] = state[STATE_FLAGS] | FLAG_OVERFLOW;
                }
            }

            // -- The answer -----------------------------------------------------------
            if (!heard) {
                states.write(index, state);
            }
            if (complete && !no_room) {
                if (!owes_words) {
                    without_words();
                }
                set_header(KIND_RESULT, state[STATE_FLAGS]);
                if (heard) {
                    to_sender();
                    meta.outcome = Outcome.RESULT_REPEATED;
                } else if (owes_words && !has_words) {
                    // A frame must not grow by more than 512 bytes.
                    to_ranks(meta.grant.group_halves);
                    meta.outcome = Outcome.ROUND_COMPLETED_HALVES;
                } else {
                    to_ranks(meta.grant.group_full);
                    meta.outcome = Outcome.ROUND_COMPLETED;
                }
            } else if (heard) {
                without_words();
                set_header(KIND_STATUS, state[STATE_FLAGS] & ~FLAG_PAYLOAD);
                to_sender();
                meta.outcome = Outcome.STATUS_SENT;
            } else {
                mark_to_drop(standard_metadata);
                if (current) {
                    meta.outcome = Outcome.ROUND_JOINED;
                } else {
                    meta.outcome = Outcome.ROUND_OPENED;
                }
            }
        }
    }
}  // control Aggregation

#endif  // P4REDUCE_AGGREGATION
