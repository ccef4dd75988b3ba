// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_UPLINK
#define P4REDUCE_UPLINK

// A switch below another one sends the sums of its rounds to that parent (to_parent in
// aggregation.p4). Here is what the parent answers, which goes on to everybody below:
//
//  the slot is about  complete  final | whole result       half of one     status
//  -----------------------------------+--------------------------------------------------
//  the same round     yes       no    | keep and pass on   pass on         pass on, or drop
//                                     |                      if it is for one (Aggregation)
//  the same round     yes       yes   | a duplicate: drop
//  anything else      -         -     | stale: drop
//
// Who kept half of a result could not repeat it: it has room for one set of sums, and what is
// in there already is what the parent needs if it has to be asked once more.
control Uplink(inout headers_t hdr,
               inout metadata_t meta,
               inout standard_metadata_t standard_metadata) {
    bit<32> index;
    bool current;      // the registers are about this round
    bool complete;     // all that are below were heard in it
    bool final;        // and the parent has answered

    // Bytes and frames that came down from each parent.
    @name(".answered")
    direct_counter(CounterType.packets_and_bytes) answered;

    @name(".pass_down")
    action pass_down(ranks_t all_workers, bit<32> slot_base, slot_t slot_count,
                     group_t group_full) {
        meta.grant.all_workers = all_workers;
        meta.grant.slot_base = slot_base;
        meta.grant.slot_count = slot_count;
        meta.grant.group_full = group_full;
        answered.count();
    }

    @name(".not_from_parent")
    action not_from_parent() {
        answered.count();
    }

    // As for contributions, what a frame claims counts only on the parent's port and from
    // its address. The rank is the number that this switch has there.
    @name(".uplink")
    table parents {
        key = {
            standard_metadata.ingress_port : exact @name("ingress_port");
            hdr.ipv4.src                   : exact @name("src_ip");
            hdr.agg.job                    : exact @name("job");
            hdr.agg.rank                   : exact @name("rank");
        }
        actions = { pass_down; @defaultonly not_from_parent; }
        const default_action = not_from_parent();
        counters = answered;
        size = UPLINK_ENTRIES;
    }

    action find_round() {
        job_t job;
        round_t round;
        ranks_t heard;
        bit<8> flags;
        index = (meta.grant.slot_base + (bit<32>)hdr.agg.slot) << 1 | (hdr.agg.round & 1);
        jobs.read(job, index);
        rounds.read(round, index);
        heard_ranks.read(heard, index);
        all_flags.read(flags, index);
        current = job == hdr.agg.job && round == hdr.agg.round;
        complete = heard == meta.grant.all_workers;
        final = flags & FLAG_FINAL != 0;
    }

    // Of a round in which the ranks did not agree, nothing but that is of use.
    action keep() {
        next_blocks.write(index, hdr.agg.next_block);
        next_exponents.write(index, hdr.agg.next_exponent);
        all_flags.write(index, (hdr.agg.flags & FLAGS_STICKY) | FLAG_FINAL);
        if (hdr.agg.flags & FLAG_PAYLOAD != 0) {
            STORE_WORDS;
        }
    }

    action to_everybody_below() {
        standard_metadata.mcast_grp = meta.grant.group_full;
        meta.delivery = Delivery.TO_REPLICAS;
        meta.ipv4_rewritten = true;
        if (hdr.agg.kind == KIND_STATUS) {
            hdr.agg.next_exponent = hdr.agg.next_exponent + 1;    // switches up to where it is from
            if (hdr.agg.flags & FLAG_PADDED != 0) {
                askers.write(index, 0);    // whoever has room now is let through
            }
            meta.outcome = Outcome.STATUS_PASSED_DOWN;
        } else {
            hdr.agg.contributors = meta.grant.all_workers;
            if (hdr.word0.isValid() != hdr.word2.isValid()) {
                askers.write(index, 0);    // whoever lacks the other half as well
                meta.outcome = Outcome.HALF_PASSED_DOWN;
            } else {
                keep();
                meta.outcome = Outcome.RESULT_PASSED_DOWN;
            }
        }
    }

    apply {
        if (!parents.apply().hit) {
            REFUSE(Outcome.NOT_FROM_PARENT);
        } else if (hdr.agg.slot >= meta.grant.slot_count) {
            REFUSE(Outcome.SLOT_OUT_OF_RANGE);
        } else {
            find_round();
            if (!current || !complete) {
                REFUSE(Outcome.ANSWER_STALE);
            } else if (final) {
                REFUSE(Outcome.ANSWER_DUPLICATE);
            } else if (hdr.agg.kind == KIND_STATUS && hdr.agg.flags & FLAG_FOR_ONE != 0) {
                REFUSE(Outcome.STATUS_KEPT_BACK);
            } else {
                to_everybody_below();
            }
        }
    }
}  // control Uplink

#endif  // P4REDUCE_UPLINK
