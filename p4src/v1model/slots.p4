// SPDX-License-Identifier: Apache-2.0
// What the switch keeps of each slot beside its sums (lanes.p4), in two versions: for even and for
// odd rounds. A frame takes one step of each register; which one depends on whose round the slot is
// about. Merging is idempotent: a target that cannot tell may merge a repetition again, as it is the
// same frame. This one only looks. No job is 0, so a slot that was never used is nobody's.
//
// simple_switch runs ingress in one thread, and so does the embedded switch: what was read is still
// valid when it is written. All steps are one action, with `if`s inside of it: to BMv2 that is a
// jump, whereas an `if` between actions is two more tables to go through.
#ifndef P4REDUCE_SLOTS
#define P4REDUCE_SLOTS

// A register a field: to BMv2 the shifts and masks that unpack one wide register cost more than
// its reads.
register<job_t,   bit<32>>(SLOT_STATES) jobs;
register<round_t, bit<32>>(SLOT_STATES) rounds;
register<ranks_t, bit<32>>(SLOT_STATES) missing_ranks;
register<bit<32>, bit<32>>(SLOT_STATES) tags;
register<block_t, bit<32>>(SLOT_STATES) blocks;
register<bit<8>,  bit<32>>(SLOT_STATES) formats;
register<block_t, bit<32>>(SLOT_STATES) next_blocks;
register<bit<8>,  bit<32>>(SLOT_STATES) next_exponents;
register<bit<8>,  bit<32>>(SLOT_STATES) payloads;
register<bit<8>,  bit<32>>(SLOT_STATES) all_flags;
// In a tree: the ranks that have asked again since the parent was last asked, and its answer.
register<ranks_t, bit<32>>(SLOT_STATES) askers;
register<bit<8>,  bit<32>>(SLOT_STATES) finals;

control Slots(inout headers_t hdr, inout metadata_t meta) {

    // Whose round it is. An answer opens none.
    action claim() {
        job_t job;
        round_t round;
        jobs.read(job, meta.index);
        rounds.read(round, meta.index);
        round_t ahead = hdr.agg.round - round;    // RFC 1982
        meta.claim = CLAIM_OPENED;
        if (job == hdr.agg.job && ahead == 0) {
            meta.claim = CLAIM_CURRENT;
        } else if (job == hdr.agg.job && ahead >= 0x80000000) {
            meta.claim = CLAIM_STALE;
        } else if (hdr.agg.kind == KIND_CONTRIBUTE) {
            jobs.write(meta.index, hdr.agg.job);
            rounds.write(meta.index, hdr.agg.round);
        }
    }

    // Who has not contributed yet.
    action hear_first() {
        meta.unheard = meta.grant.worker_bit;
        meta.missing = meta.grant.all_workers & ~meta.grant.worker_bit;
        missing_ranks.write(meta.index, meta.missing);
    }

    action hear_more() {
        missing_ranks.read(meta.missing, meta.index);
        meta.unheard = meta.missing & meta.grant.worker_bit;
        meta.missing = meta.missing & ~meta.grant.worker_bit;
        missing_ranks.write(meta.index, meta.missing);
    }

    action hear_nothing() {
        missing_ranks.read(meta.missing, meta.index);
    }

    // What it is about: all must say the same.
    action agree_first() {
        tags.write(meta.index, hdr.agg.tag);
        blocks.write(meta.index, hdr.agg.block);
        formats.write(meta.index, hdr.agg.format);
    }

    action agree_more() {
        bit<32> tag;
        block_t block;
        bit<8> format;
        tags.read(tag, meta.index);
        blocks.read(block, meta.index);
        formats.read(format, meta.index);
        if (tag != hdr.agg.tag || block != hdr.agg.block || format != hdr.agg.format) {
            meta.sticky = meta.sticky | FLAG_MISMATCH;
            // The round stays about what its first rank asked for.
            hdr.agg.tag = tag;
            hdr.agg.block = block;
            hdr.agg.format = format;
        }
    }

    // What comes next: the smallest block, and its largest exponent.
    action offer_first() {
        next_blocks.write(meta.index, hdr.agg.next_block);
        next_exponents.write(meta.index, hdr.agg.next_exponent);
    }

    action offer_more() {
        block_t next_block;
        bit<8> next_exponent;
        next_blocks.read(next_block, meta.index);
        next_exponents.read(next_exponent, meta.index);
        if (hdr.agg.next_block < next_block
                || hdr.agg.next_block == next_block && hdr.agg.next_exponent > next_exponent) {
            next_blocks.write(meta.index, hdr.agg.next_block);
            next_exponents.write(meta.index, hdr.agg.next_exponent);
        } else {
            hdr.agg.next_block = next_block;
            hdr.agg.next_exponent = next_exponent;
        }
    }

    // Whether there are lanes.
    action pay_first() {
        payloads.write(meta.index, hdr.agg.flags & FLAG_PAYLOAD);
    }

    action pay_more() {
        payloads.read(meta.paid, meta.index);
        payloads.write(meta.index, meta.paid | (hdr.agg.flags & FLAG_PAYLOAD));
    }

    // What the result must repeat.
    action flag_first() {
        meta.round_flags = meta.sticky;
        all_flags.write(meta.index, meta.round_flags);
    }

    action flag_more() {
        all_flags.read(meta.round_flags, meta.index);
        meta.round_flags = meta.round_flags | meta.sticky;
        all_flags.write(meta.index, meta.round_flags);
    }

    // What has come of these, for a repetition.
    action look() {
        tags.read(hdr.agg.tag, meta.index);
        blocks.read(hdr.agg.block, meta.index);
        formats.read(hdr.agg.format, meta.index);
        next_blocks.read(hdr.agg.next_block, meta.index);
        next_exponents.read(hdr.agg.next_exponent, meta.index);
        payloads.read(meta.paid, meta.index);
        all_flags.read(meta.round_flags, meta.index);
    }

    // All ranks that wait for the parent ask again when their timers run out. The first question
    // goes to the parent, and the next one of a rank that has asked since: one for all of them. A
    // rank that asks for all asks more often. It takes no turn, and the parent's status to it goes
    // to no other rank. Nor does a frame take one that has no room for what has to go up.
    action ask_parent() {
        ranks_t asked;
        if (hdr.agg.flags & (FLAG_TELL_ALL | FLAG_FOR_ONE) != 0) {
            meta.goes_up = UP_FOR_ONE;
#ifdef HALVES
        } else if (meta.paid == 1 && meta.round_flags & FLAG_MISMATCH == 0 && !hdr.word0.isValid()) {
            meta.goes_up = UP_TURN;
#endif
        } else {
            askers.read(asked, meta.index);
            if (asked == 0 || asked & meta.grant.worker_bit != 0) {
                meta.goes_up = UP_TURN;
                asked = 0;
            }
            askers.write(meta.index, asked | meta.grant.worker_bit);
        }
    }

    action turn_first() {
        finals.write(meta.index, FINAL_NOT);
        askers.write(meta.index, 0);
    }

    action turn_more() {
        finals.read(meta.final, meta.index);
        if (meta.missing == 0 && meta.final == FINAL_NOT) {
            if (meta.unheard != 0) {
                askers.write(meta.index, 0);
            } else {
                ask_parent();
            }
        }
    }

    // What the parent answers takes the place of what the ranks here have said. Who kept half of a result could not repeat it: it has room for one
    // set of sums, and what is in there already is what the parent needs if it has to be asked once
    // more. So whoever lacks the other half asks, or has the room that the parent asks for.
    action turn_answered() {
        finals.read(meta.final, meta.index);
        if (meta.missing == 0 && meta.final == FINAL_NOT) {
            if (hdr.agg.kind == KIND_STATUS) {
                if (hdr.agg.flags & (FLAG_PADDED | FLAG_FOR_ONE) == FLAG_PADDED) {
                    askers.write(meta.index, 0);
                }
            } else if (hdr.agg.flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF) != 0) {
                askers.write(meta.index, 0);
            } else {
                offer_first();
                flag_first();
                if (hdr.agg.flags & FLAG_PAYLOAD != 0) {
                    finals.write(meta.index, FINAL_LANES);
                } else {
                    finals.write(meta.index, FINAL_EMPTY);
                }
            }
        }
    }

    // What most frames are: a contribution that comes for the first time. It is in the table `decide`
    // as well, but with logging in its macros BMv2 takes as long for a key of nine fields as for half
    // of the lanes. So those frames never get there.
    action decide_at_once() {
        if (hdr.agg.flags & FLAG_PAYLOAD == 0) {
            meta.op = LaneOp.NOTHING;
        } else if (meta.paid == 0) {
            meta.op = LaneOp.STORE;
        } else {
            meta.op = LaneOp.ADD;
        }
        if (meta.missing == 0) {
            meta.outcome = Outcome.ROUND_COMPLETED;
            meta.group = meta.grant.group_full;
            meta.reply = Reply.RESULT_LANES;
            if (meta.op == LaneOp.NOTHING) {
                if (meta.paid == 1) {
                    meta.op = LaneOp.LOAD;
                } else {
                    meta.reply = Reply.RESULT_EMPTY;
                }
            }
        } else if (meta.claim == CLAIM_CURRENT) {
            meta.outcome = Outcome.ROUND_JOINED;
        } else {
            meta.outcome = Outcome.ROUND_OPENED;
        }
    }

    action merge() {
        meta.index = (bit<32>)meta.grant.slot << 1 | (hdr.agg.round & 1);
        claim();
        if (meta.claim == CLAIM_CURRENT) {
            if (hdr.agg.kind == KIND_CONTRIBUTE) {
                hear_more();
                if (meta.unheard != 0) {
                    agree_more();
                    offer_more();
                    pay_more();
                    flag_more();
                } else {
                    look();
                }
                if (meta.partial == 1) {
                    turn_more();
                }
            } else {
                hear_nothing();
                turn_answered();
            }
        } else if (meta.claim == CLAIM_OPENED && hdr.agg.kind == KIND_CONTRIBUTE) {
            hear_first();
            agree_first();
            offer_first();
            pay_first();
            flag_first();
            if (meta.partial == 1) {
                turn_first();
            }
        }
        if (meta.unheard != 0 && meta.partial == 0) {
            decide_at_once();
        }
    }

    apply {
        merge();
    }
}  // control Slots

#endif  // P4REDUCE_SLOTS
