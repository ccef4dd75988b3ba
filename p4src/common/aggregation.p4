// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_AGGREGATION
#define P4REDUCE_AGGREGATION

// The rounds of all slots: what becomes of a contribution, and in a tree of a parent's answer.
// A frame takes these steps:
//
//  slots    merges it into what is kept of its slot (the target's slots.p4)
//  decide   finds its case, by what is kept now
//  lanes    stores, adds or loads the sums (the target's lanes.p4)
//  tell     writes the header of a frame that leaves here
//  shape    gives that frame its lanes, or takes them away, and sets its lengths (the target's)
//
// decide and tell are the case tables of docs/protocol.md. Their first entry that matches counts: "_"
// in a row stands for what no row before it has taken.

control Aggregation(inout headers_t hdr, inout metadata_t meta) {
    Slots() slots;
    Lanes() lanes;
    Shape() shape;

    // -- What becomes of a frame -----------------------------------------------------------------

    action keep(LaneOp op, Outcome outcome) {    // or drop, if there is nothing to keep of it
        meta.op = op;
        meta.outcome = outcome;
    }

    action to_sender(LaneOp op, Reply reply, Outcome outcome) {
        meta.op = op;
        meta.reply = reply;
        meta.outcome = outcome;
        meta.port = meta.ingress_port;
    }

    action to_ranks(LaneOp op, Reply reply, Outcome outcome) {
        meta.op = op;
        meta.reply = reply;
        meta.outcome = outcome;
        meta.group = meta.grant.group_full;
    }

    action to_parent(LaneOp op, Reply reply, Outcome outcome) {
        meta.op = op;
        meta.reply = reply;
        meta.outcome = outcome;
        meta.group = meta.group_up;
    }

    @hidden
    table decide {
        key = {
            hdr.agg.kind  : ternary;
            meta.claim    : ternary;
            meta.unheard  : ternary;
            meta.missing  : ternary;
            hdr.agg.flags : ternary;
            meta.paid     : ternary;
            meta.partial  : ternary;
            meta.goes_up  : ternary;
            meta.final    : ternary;
        }
        actions = { keep; to_sender; to_ranks; to_parent; }
        const default_action = keep(LaneOp.NOTHING, Outcome.STALE);
        const entries = {
            // kind, round, unheard, missing, flags, paid, partial, goes up, final

            // A late duplicate.
            (KIND_CONTRIBUTE, IS_STALE,   _, _, _,                      _, _, _,          _          ): keep(LaneOp.NOTHING, Outcome.STALE);

            // Heard before, complete, and the parent has not answered: it is asked again, or not.
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      _, 1, UP_NOT,     FINAL_NOT  ): to_sender(LaneOp.NOTHING, Reply.STATUS, Outcome.STATUS_SENT);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      1, 1, UP_TURN,    FINAL_NOT  ): to_parent(LaneOp.LOAD, Reply.UP_LANES, Outcome.SUMS_SENT_UP_AGAIN);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      0, 1, UP_TURN,    FINAL_NOT  ): to_parent(LaneOp.NOTHING, Reply.UP_EMPTY, Outcome.SUMS_SENT_UP_AGAIN);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      1, 1, UP_FOR_ONE, FINAL_NOT  ): to_parent(LaneOp.LOAD, Reply.UP_LANES_FOR_ONE, Outcome.SUMS_SENT_UP_AGAIN);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      0, 1, UP_FOR_ONE, FINAL_NOT  ): to_parent(LaneOp.NOTHING, Reply.UP_EMPTY_FOR_ONE, Outcome.SUMS_SENT_UP_AGAIN);

            // Heard before, complete: the result was lost.
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      _, 1, _,          FINAL_LANES): to_sender(LaneOp.LOAD, Reply.RESULT_LANES, Outcome.RESULT_REPEATED);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      _, 1, _,          FINAL_EMPTY): to_sender(LaneOp.NOTHING, Reply.RESULT_EMPTY, Outcome.RESULT_REPEATED);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      1, 0, _,          _          ): to_sender(LaneOp.LOAD, Reply.RESULT_LANES, Outcome.RESULT_REPEATED);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, 0, _,                      0, 0, _,          _          ): to_sender(LaneOp.NOTHING, Reply.RESULT_EMPTY, Outcome.RESULT_REPEATED);

            // Heard before, others are missing: who was heard, to all ranks if it says so.
            (KIND_CONTRIBUTE, IS_CURRENT, 0, _, SET(FLAG_TELL_ALL),     _, _, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.STATUS, Outcome.STATUS_SENT);
            (KIND_CONTRIBUTE, IS_CURRENT, 0, _, _,                      _, _, _,          _          ): to_sender(LaneOp.NOTHING, Reply.STATUS, Outcome.STATUS_SENT);

            // The last one.
            (KIND_CONTRIBUTE, _,          _, 0, SET(FLAG_PAYLOAD),      1, 0, _,          _          ): to_ranks(LaneOp.ADD, Reply.RESULT_LANES, Outcome.ROUND_COMPLETED);
            (KIND_CONTRIBUTE, _,          _, 0, SET(FLAG_PAYLOAD),      0, 0, _,          _          ): to_ranks(LaneOp.STORE, Reply.RESULT_LANES, Outcome.ROUND_COMPLETED);
            (KIND_CONTRIBUTE, _,          _, 0, _,                      1, 0, _,          _          ): to_ranks(LaneOp.LOAD, Reply.RESULT_LANES, Outcome.ROUND_COMPLETED);
            (KIND_CONTRIBUTE, _,          _, 0, _,                      0, 0, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.RESULT_EMPTY, Outcome.ROUND_COMPLETED);
            (KIND_CONTRIBUTE, _,          _, 0, SET(FLAG_PAYLOAD),      1, 1, _,          _          ): to_parent(LaneOp.ADD, Reply.UP_LANES, Outcome.SUMS_SENT_UP);
            (KIND_CONTRIBUTE, _,          _, 0, SET(FLAG_PAYLOAD),      0, 1, _,          _          ): to_parent(LaneOp.STORE, Reply.UP_LANES, Outcome.SUMS_SENT_UP);
            (KIND_CONTRIBUTE, _,          _, 0, _,                      1, 1, _,          _          ): to_parent(LaneOp.LOAD, Reply.UP_LANES, Outcome.SUMS_SENT_UP);
            (KIND_CONTRIBUTE, _,          _, 0, _,                      0, 1, _,          _          ): to_parent(LaneOp.NOTHING, Reply.UP_EMPTY, Outcome.SUMS_SENT_UP);

            // A further one, or the first.
            (KIND_CONTRIBUTE, IS_CURRENT, _, _, SET(FLAG_PAYLOAD),      1, _, _,          _          ): keep(LaneOp.ADD, Outcome.ROUND_JOINED);
            (KIND_CONTRIBUTE, IS_CURRENT, _, _, SET(FLAG_PAYLOAD),      0, _, _,          _          ): keep(LaneOp.STORE, Outcome.ROUND_JOINED);
            (KIND_CONTRIBUTE, IS_CURRENT, _, _, _,                      _, _, _,          _          ): keep(LaneOp.NOTHING, Outcome.ROUND_JOINED);
            (KIND_CONTRIBUTE, IS_OPENED,  _, _, SET(FLAG_PAYLOAD),      _, _, _,          _          ): keep(LaneOp.STORE, Outcome.ROUND_OPENED);
            (KIND_CONTRIBUTE, IS_OPENED,  _, _, _,                      _, _, _,          _          ): keep(LaneOp.NOTHING, Outcome.ROUND_OPENED);

            // From the parent, about a round that has its result, and about one that waits for it.
            (_,               IS_CURRENT, _, 0, _,                      _, _, _,          SET(FINAL) ): keep(LaneOp.NOTHING, Outcome.ANSWER_DUPLICATE);
            (KIND_RESULT,     IS_CURRENT, _, 0, SET(FLAG_FIRST_HALF),   _, _, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.HALF_DOWN, Outcome.HALF_PASSED_DOWN);
            (KIND_RESULT,     IS_CURRENT, _, 0, SET(FLAG_SECOND_HALF),  _, _, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.HALF_DOWN, Outcome.HALF_PASSED_DOWN);
            (KIND_RESULT,     IS_CURRENT, _, 0, SET(FLAG_PAYLOAD),      _, _, _,          _          ): to_ranks(LaneOp.STORE, Reply.RESULT_LANES, Outcome.RESULT_PASSED_DOWN);
            (KIND_RESULT,     IS_CURRENT, _, 0, _,                      _, _, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.RESULT_EMPTY, Outcome.RESULT_PASSED_DOWN);
            (KIND_STATUS,     IS_CURRENT, _, 0, SET(FLAG_FOR_ONE),      _, _, _,          _          ): keep(LaneOp.NOTHING, Outcome.STATUS_KEPT_BACK);
            (KIND_STATUS,     IS_CURRENT, _, 0, _,                      _, _, _,          _          ): to_ranks(LaneOp.NOTHING, Reply.STATUS_DOWN, Outcome.STATUS_PASSED_DOWN);

            // From the parent, about anything else.
            (_,               _,          _, _, _,                      _, _, _,          _          ): keep(LaneOp.NOTHING, Outcome.ANSWER_STALE);
        }
    }

    // -- What a frame says that leaves here ---------------------------------------------------------

    // The sums of all ranks here, as a result or to the parent.
    action tell_sums(bit<4> kind, bit<8> flags) {
        hdr.agg.kind = kind;
        hdr.agg.flags = meta.round_flags | flags;
        hdr.agg.contributors = meta.grant.all_workers;
    }

    action tell_status(bit<8> flags) {
        hdr.agg.kind = KIND_STATUS;
        hdr.agg.flags = meta.round_flags | flags;
        hdr.agg.contributors = meta.grant.all_workers & ~meta.missing;
        hdr.agg.next_exponent = 0;    // how many switches above this one it is about
    }

    // The switch that it is from is one further away.
    action pass_status() {
        hdr.agg.next_exponent = hdr.agg.next_exponent + 1;
    }

    action pass_half() {
        hdr.agg.contributors = meta.grant.all_workers;
    }

    @hidden
    table tell {
        key = {
            meta.reply       : ternary;
            meta.round_flags : ternary;
            hdr.agg.flags    : ternary;
        }
        actions = { tell_sums; tell_status; pass_status; pass_half; }
        const default_action = tell_sums(KIND_RESULT, 0);
        const entries = {
            // reply, the round's flags, the frame's flags. There is no sum if ranks disagree on the call.
            (Reply.RESULT_LANES,     SET(FLAG_MISMATCH), _                ): tell_sums(KIND_RESULT, 0);
            (Reply.RESULT_LANES,     _,                  _                ): tell_sums(KIND_RESULT, FLAG_PAYLOAD);
            (Reply.RESULT_EMPTY,     _,                  _                ): tell_sums(KIND_RESULT, 0);
            (Reply.UP_LANES,         SET(FLAG_MISMATCH), _                ): tell_sums(KIND_CONTRIBUTE, 0);
            (Reply.UP_LANES,         _,                  _                ): tell_sums(KIND_CONTRIBUTE, FLAG_PAYLOAD);
            (Reply.UP_EMPTY,         _,                  _                ): tell_sums(KIND_CONTRIBUTE, 0);
            (Reply.UP_LANES_FOR_ONE, SET(FLAG_MISMATCH), _                ): tell_sums(KIND_CONTRIBUTE, FLAG_FOR_ONE);
            (Reply.UP_LANES_FOR_ONE, _,                  _                ): tell_sums(KIND_CONTRIBUTE, FLAG_PAYLOAD | FLAG_FOR_ONE);
            (Reply.UP_EMPTY_FOR_ONE, _,                  _                ): tell_sums(KIND_CONTRIBUTE, FLAG_FOR_ONE);
            (Reply.STATUS,           _,                  SET(FLAG_FOR_ONE)): tell_status(FLAG_FOR_ONE);
            (Reply.STATUS,           _,                  _                ): tell_status(0);
            (Reply.ROOM,             _,                  _                ): tell_status(FLAG_PADDED);
            (Reply.HALF_DOWN,        _,                  _                ): pass_half();
            (Reply.STATUS_DOWN,      _,                  _                ): pass_status();
        }
    }

    // -- Its addresses -------------------------------------------------------------------------------

    action back_to_sender() {
        hdr.agg.flags = hdr.agg.flags | meta.echo;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.own_mac;
        ipv4_t own_ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own_ip;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = AGGREGATION_PORT;
    }

    // Egress adds to whom.
    action from_switch() {
        hdr.agg.flags = hdr.agg.flags | meta.echo;
        hdr.ethernet.src = meta.own_mac;
        hdr.ipv4.src = hdr.ipv4.dst;      // the frame was for the switch's own address
        hdr.udp.src_port = AGGREGATION_PORT;
    }

    apply {
        slots.apply(hdr, meta);
        if (meta.outcome == Outcome.UNSET) {
            decide.apply();
        }
        lanes.apply(hdr, meta);
        if (meta.reply != Reply.NONE) {
            tell.apply();
            shape.apply(hdr, meta);
            if (meta.group == 0) {
                back_to_sender();
            } else {
                from_switch();
            }
        }
    }
}  // control Aggregation

#endif  // P4REDUCE_AGGREGATION
