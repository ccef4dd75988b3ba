// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_AGGREGATION
#define P4REDUCE_AGGREGATION

// The rounds of all slots. simple_switch runs ingress in one thread, and so does
// the embedded switch: what was read is still valid when it is written.
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
//                                      |   answer with the ranks heard; to all ranks if
//                                      |   it says so.
//
// The work is done in actions, with `if`s inside of them: to BMv2 that is a jump, whereas
// an `if` between actions is two more tables to go through.
control Aggregation(inout headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    Lanes() lanes;

    bit<32> index;

    // Which case it is.
    bool current;       // the registers are about this round
    bool stale;
    bool heard;         // and it has this rank in it
    bool complete;      // with this contribution, all ranks are in it
    bool answerable;    // by a result; else by a status

    // The round with this contribution in it.
    ranks_t contributors;
    bit<32> tag;
    block_t block;
    bit<8>  format;
    block_t next_block;
    bit<8>  next_exponent;
    bit<8>  flags;
    bool    has_words;  // of the frame, whatever they mean
    LaneOp  op;

    action find_round() {
        job_t job;
        round_t round;
        index = (meta.grant.slot_base + (bit<32>)hdr.agg.slot) << 1 | (hdr.agg.round & 1);
        jobs.read(job, index);
        rounds.read(round, index);
        round_t ahead = hdr.agg.round - round;    // RFC 1982
        current = job == hdr.agg.job && ahead == 0;
        stale = job == hdr.agg.job && ahead >= 0x80000000;
    }

    action open_round() {
        heard = false;
        contributors = meta.grant.worker_bit;
        tag = hdr.agg.tag;
        block = hdr.agg.block;
        format = hdr.agg.format;
        next_block = hdr.agg.next_block;
        next_exponent = hdr.agg.next_exponent;
        flags = hdr.agg.flags & FLAGS_STICKY;
        op = LaneOp.STORE;
        jobs.write(index, hdr.agg.job);
        rounds.write(index, hdr.agg.round);
        tags.write(index, tag);
        blocks.write(index, block);
        formats.write(index, format);
        next_blocks.write(index, next_block);
        next_exponents.write(index, next_exponent);
    }

    action join_round() {
        ranks_t before;
        heard_ranks.read(before, index);
        contributors = before | meta.grant.worker_bit;
        heard = contributors == before;
        // The round stays about what its first rank asked for.
        tags.read(tag, index);
        blocks.read(block, index);
        formats.read(format, index);
        next_blocks.read(next_block, index);
        next_exponents.read(next_exponent, index);
        all_flags.read(flags, index);
        if (flags & FLAG_PAYLOAD == 0) {
            op = LaneOp.STORE;
        } else {
            op = LaneOp.ADD;
        }
        if (!heard) {
            flags = flags | (hdr.agg.flags & FLAGS_STICKY);
            if (tag != hdr.agg.tag || block != hdr.agg.block || format != hdr.agg.format) {
                flags = flags | FLAG_MISMATCH;
            }
            // The smaller next block; the larger exponent where both name the same one.
            if (hdr.agg.next_block < next_block
                    || hdr.agg.next_block == next_block
                        && hdr.agg.next_exponent > next_exponent) {
                next_block = hdr.agg.next_block;
                next_exponent = hdr.agg.next_exponent;
                next_blocks.write(index, next_block);
                next_exponents.write(index, next_exponent);
            }
        }
    }

    // All ranks that wait for the parent ask again when their timers run out. The first question
    // goes to the parent, and the next one of a rank that has asked since: one for all of them. A
    // rank that asks for all asks more often. It takes no turn, and the parent's status to it goes
    // to no other rank.
    action take_turns() {
        if (!heard) {
            meta.goes_up = !meta.lacks_room;
            askers.write(index, 0);
        } else if (!meta.lacks_room) {
            meta.goes_up = hdr.agg.flags & (FLAG_TELL_ALL | FLAG_FOR_ONE) != 0;
            if (!meta.goes_up) {
                ranks_t asked;
                askers.read(asked, index);
                meta.goes_up = asked == 0 || asked & meta.grant.worker_bit != 0;
                if (meta.goes_up) {
                    asked = 0;
                }
                askers.write(index, asked | meta.grant.worker_bit);
            }
        }
    }

    // A round that is complete here is only a part, until the parent has answered.
    action see_whether_final() {
        bool final = flags & FLAG_FINAL != 0;
        flags = flags & FLAGS_STICKY;
        if (complete && !final) {
            meta.lacks_room = !has_words && flags & FLAG_PAYLOAD != 0;
            take_turns();
            answerable = meta.goes_up;
        }
    }

    action choose() {
        has_words = hdr.word0.isValid();
        if (flags & FLAG_MISMATCH != 0) {
            flags = flags & ~FLAG_PAYLOAD;    // no sum if ranks disagree on the call
        }
        complete = contributors == meta.grant.all_workers;
        // Retransmissions are padded, so that their answer has room for words. A mere
        // duplicate of a frame without any gets a status: its sender was answered before.
        answerable = complete && (!heard || has_words || flags & FLAG_PAYLOAD == 0);
        if (meta.group_up != 0) {
            see_whether_final();
        }
        if (heard || hdr.agg.flags & flags & FLAG_PAYLOAD == 0) {
            op = LaneOp.NOTHING;
            if (answerable && flags & FLAG_PAYLOAD != 0) {
                op = LaneOp.LOAD;
            }
        }
    }

    action without_words() {
        hdr.word0.setInvalid();
        hdr.word1.setInvalid();
        hdr.word2.setInvalid();
        hdr.word3.setInvalid();
    }

    action await_others() {
        mark_to_drop(standard_metadata);
        if (current) {
            meta.outcome = Outcome.ROUND_JOINED;
        } else {
            meta.outcome = Outcome.ROUND_OPENED;
        }
    }

    // Fields of all frames that leave here.
    action tell() {
        hdr.agg.contributors = contributors;
        hdr.agg.tag = tag;
        hdr.agg.block = block;
        hdr.agg.format = format;
        hdr.agg.next_block = next_block;
        hdr.agg.next_exponent = next_exponent;
        // Whether a timer caused this frame. It is not part of the round, so not kept.
        hdr.agg.flags = flags | (hdr.agg.flags & FLAG_RETRANSMISSION);
        meta.ipv4_rewritten = true;
    }

    // Fields of all answers.
    action answer() {
        hdr.agg.kind = KIND_RESULT;
        if (!answerable) {
            flags = flags & ~FLAG_PAYLOAD;
            next_exponent = 0;    // in a status: how many switches above this one it is about
            if (meta.lacks_room) {
                flags = flags | FLAG_PADDED;
            } else {
                flags = flags | (hdr.agg.flags & FLAG_FOR_ONE);
            }
            hdr.agg.kind = KIND_STATUS;
        }
        tell();
        if (flags & FLAG_PAYLOAD == 0) {
            without_words();
        }
    }

    action to_ranks() {
        answer();
        meta.delivery = Delivery.TO_REPLICAS;
        standard_metadata.mcast_grp = meta.grant.group_full;
        meta.outcome = Outcome.ROUND_COMPLETED;
        // A frame must not grow by more than 512 bytes.
        if (!has_words && flags & FLAG_PAYLOAD != 0) {
            standard_metadata.mcast_grp = meta.grant.group_halves;
            meta.outcome = Outcome.ROUND_COMPLETED_HALVES;
        }
    }

    // One contribution for all ranks heard here. The answer has as much room.
    action to_parent() {
        if (has_words && flags & FLAG_PAYLOAD == 0) {
            flags = flags | FLAG_PADDED;
        }
        if (heard && hdr.agg.flags & (FLAG_TELL_ALL | FLAG_FOR_ONE) != 0) {
            flags = flags | FLAG_FOR_ONE;
        }
        tell();
        meta.delivery = Delivery.TO_REPLICAS;
        standard_metadata.mcast_grp = meta.group_up;
        meta.outcome = Outcome.SUMS_SENT_UP;
        if (heard) {
            meta.outcome = Outcome.SUMS_SENT_UP_AGAIN;
        }
    }

    // A status helps other ranks, too: a rank that is missing in it repeats at once, and one that
    // is not need not ask.
    action to_sender() {
        bool for_all = !answerable && !meta.lacks_room && hdr.agg.flags & FLAG_TELL_ALL != 0;
        answer();
        meta.outcome = Outcome.STATUS_SENT;
        if (for_all) {
            meta.delivery = Delivery.TO_REPLICAS;
            standard_metadata.mcast_grp = meta.grant.group_full;
        } else {
            standard_metadata.egress_spec = standard_metadata.ingress_port;
            hdr.ethernet.dst = hdr.ethernet.src;
            hdr.ethernet.src = meta.own_mac;
            ipv4_t own_ip = hdr.ipv4.dst;
            hdr.ipv4.dst = hdr.ipv4.src;
            hdr.ipv4.src = own_ip;
            hdr.udp.dst_port = hdr.udp.src_port;
            hdr.udp.src_port = AGGREGATION_PORT;
            if (answerable) {
                meta.outcome = Outcome.RESULT_REPEATED;
            } else if (meta.lacks_room) {
                meta.outcome = Outcome.ROOM_ASKED;
            }
        }
    }

    action drop_stale() {
        mark_to_drop(standard_metadata);
        meta.outcome = Outcome.STALE;
    }

    action account() {
        if (current) {
            join_round();
        } else {
            open_round();
        }
        choose();
    }

    action conclude() {
        if (!heard) {
            heard_ranks.write(index, contributors);
            all_flags.write(index, flags);
        }
        if (meta.goes_up) {
            to_parent();
        } else if (heard || meta.lacks_room) {
            to_sender();
        } else if (complete) {
            to_ranks();
        } else {
            await_others();
        }
    }

    apply {
        find_round();
        if (stale) {
            drop_stale();
        } else {
            account();
            lanes.apply(hdr, index, op, flags);
            conclude();
        }
    }
}  // control Aggregation

#endif  // P4REDUCE_AGGREGATION
