// SPDX-License-Identifier: Apache-2.0
// What the switch keeps of each slot beside its sums (lanes.p4), in two versions: for even and for
// odd rounds. A stateful ALU is passed once, so each register has steps of which a frame takes one,
// and what the registers before it have said decides which. Merging is idempotent, and a repetition
// is the same frame, so it may be merged again. v1model/slots.p4 is the same in plain P4.
#ifndef P4REDUCE_SLOTS
#define P4REDUCE_SLOTS

control Slots(inout headers_t hdr, inout metadata_t meta) {
    Missing() low_ranks;
    Missing() high_ranks;

    bit<32> next_exponent;   // as a word, like the block that it belongs to
    bit<8>  payload;         // 1: the frame has lanes
    bit<8>  mismatch;
    bit<32> asker;           // the rank, and a bit that tells it from nobody
    bit<32> answer;          // what the parent's answer leaves: FINAL_LANES or FINAL_EMPTY

    action prepare() {
        next_exponent = (bit<32>)hdr.agg.next_exponent;
        payload = hdr.agg.flags & FLAG_PAYLOAD;
        asker = 16w1 ++ hdr.agg.rank;
        meta.missing = meta.grant.all_workers & ~meta.grant.worker_bit;
    }

    // -- Whose round it is ---------------------------------------------------------------------------

    // An ALU says which of three comparisons hold as one bit: 1 << (same job + 2 * same round
    // + 4 * newer). Rounds wrap (RFC 1982) and a comparison does not. So there are two orders: signed
    // near 0, and unsigned near 2^31. An answer opens no round.
    Register<pair_t, index_t>(SLOT_STATES) claims;    // job, round

    RegisterAction<pair_t, index_t, bit<8>>(claims) claim_signed_of = {
        void apply(inout pair_t kept, out bit<8> claim) {
            claim = this.predicate(kept.low == hdr.agg.job, kept.high == hdr.agg.round,
                                   (int<32>)kept.high < (int<32>)hdr.agg.round);
            if (kept.low != hdr.agg.job || (int<32>)kept.high < (int<32>)hdr.agg.round) {
                kept.low = hdr.agg.job;
                kept.high = hdr.agg.round;
            }
        }
    };

    RegisterAction<pair_t, index_t, bit<8>>(claims) claim_unsigned_of = {
        void apply(inout pair_t kept, out bit<8> claim) {
            claim = this.predicate(kept.low == hdr.agg.job, kept.high == hdr.agg.round,
                                   kept.high < hdr.agg.round);
            if (kept.low != hdr.agg.job || kept.high < hdr.agg.round) {
                kept.low = hdr.agg.job;
                kept.high = hdr.agg.round;
            }
        }
    };

    RegisterAction<pair_t, index_t, bit<8>>(claims) claim_nothing_of = {
        void apply(inout pair_t kept, out bit<8> claim) {
            claim = this.predicate(kept.low == hdr.agg.job, kept.high == hdr.agg.round);
        }
    };

    action claim_signed()   { meta.claim = claim_signed_of.execute(STATE); }
    action claim_unsigned() { meta.claim = claim_unsigned_of.execute(STATE); }
    action claim_nothing()  { meta.claim = claim_nothing_of.execute(STATE); }

    @hidden
    table claim {
        key = {
            hdr.agg.kind  : ternary;
            hdr.agg.round : ternary;
        }
        actions = { claim_signed; claim_unsigned; claim_nothing; }
        const entries = {
            (KIND_CONTRIBUTE, 0x00000000 &&& 0xc0000000): claim_signed();
            (KIND_CONTRIBUTE, 0xc0000000 &&& 0xc0000000): claim_signed();
            (KIND_CONTRIBUTE, _):                         claim_unsigned();
            (_, _):                                       claim_nothing();
        }
        size = 4;
    }

    // -- What it is about: all must say the same -----------------------------------------------------

    // The tag has the format in it.
    Register<pair_t, index_t>(SLOT_STATES) subjects;    // tag, block

    RegisterAction<pair_t, index_t, bit<8>>(subjects) agree_first_of = {
        void apply(inout pair_t kept, out bit<8> differs) {
            kept.low = hdr.agg.tag;
            kept.high = hdr.agg.block;
            differs = 0;
        }
    };

    RegisterAction<pair_t, index_t, bit<8>>(subjects) agree_more_of = {
        void apply(inout pair_t kept, out bit<8> differs) {
            differs = 0;
            if (kept.low != hdr.agg.tag || kept.high != hdr.agg.block) {
                differs = 1;
            }
        }
    };

    action agree_first() { mismatch = agree_first_of.execute(STATE); }
    action agree_more()  { mismatch = agree_more_of.execute(STATE); }

    @hidden
    table agree {
        key = {
            hdr.agg.kind : ternary;
            meta.claim   : ternary;
        }
        actions = { agree_first; agree_more; }
        const entries = {
            (KIND_CONTRIBUTE, IS_CURRENT): agree_more();
            (KIND_CONTRIBUTE, IS_OPENED):          agree_first();
        }
        size = 2;
    }

    // -- What comes next: the smallest block, and its largest exponent -------------------------------

    Register<pair_t, index_t>(SLOT_STATES) offers;    // next block, next exponent

    RegisterAction<pair_t, index_t, bit<32>>(offers) offer_first_of = {
        void apply(inout pair_t kept, out bit<32> block) {
            kept.low = hdr.agg.next_block;
            kept.high = next_exponent;
            block = kept.low;
        }
    };

    RegisterAction2<pair_t, index_t, bit<32>, bit<32>>(offers) offer_more_of = {
        void apply(inout pair_t kept, out bit<32> block, out bit<32> exponent) {
            if (hdr.agg.next_block < kept.low
                    || hdr.agg.next_block == kept.low && next_exponent > kept.high) {
                kept.low = hdr.agg.next_block;
                kept.high = next_exponent;
            }
            block = kept.low;
            exponent = kept.high;
        }
    };

    action offer_first() { hdr.agg.next_block = offer_first_of.execute(STATE); }
    action offer_more()  { hdr.agg.next_block = offer_more_of.execute(STATE, next_exponent); }

    @hidden
    table offer {
        key = {
            hdr.agg.kind : ternary;
            meta.claim   : ternary;
            meta.missing : ternary;
        }
        actions = { offer_first; offer_more; }
        const entries = {
            (KIND_CONTRIBUTE, IS_CURRENT, _): offer_more();
            (KIND_CONTRIBUTE, IS_OPENED,          _): offer_first();
            (KIND_RESULT,     IS_CURRENT, 0): offer_more();    // it has what was offered here in it
        }
        size = 4;
    }

    // -- Whether there are lanes ---------------------------------------------------------------------

    Register<bit<8>, index_t>(SLOT_STATES) payloads;

    RegisterAction<bit<8>, index_t, bit<8>>(payloads) pay_first_of = {
        void apply(inout bit<8> kept, out bit<8> before) {
            before = 0;
            kept = payload;
        }
    };

    RegisterAction<bit<8>, index_t, bit<8>>(payloads) pay_more_of = {
        void apply(inout bit<8> kept, out bit<8> before) {
            before = kept;
            kept = kept | payload;
        }
    };

    action pay_first() { meta.paid = pay_first_of.execute(STATE); }
    action pay_more()  { meta.paid = pay_more_of.execute(STATE); }

    @hidden
    table pay {
        key = {
            hdr.agg.kind : ternary;
            meta.claim   : ternary;
        }
        actions = { pay_first; pay_more; }
        const entries = {
            (KIND_CONTRIBUTE, IS_CURRENT): pay_more();
            (KIND_CONTRIBUTE, IS_OPENED):          pay_first();
        }
        size = 2;
    }

    // -- What the result must repeat -----------------------------------------------------------------

    Register<bit<8>, index_t>(SLOT_STATES) all_flags;

    RegisterAction<bit<8>, index_t, bit<8>>(all_flags) flag_first_of = {
        void apply(inout bit<8> kept, out bit<8> all) {
            kept = meta.sticky;
            all = kept;
        }
    };

    RegisterAction<bit<8>, index_t, bit<8>>(all_flags) flag_more_of = {
        void apply(inout bit<8> kept, out bit<8> all) {
            kept = kept | meta.sticky;
            all = kept;
        }
    };

    // No other flag is of use then.
    RegisterAction<bit<8>, index_t, bit<8>>(all_flags) flag_mismatch_of = {
        void apply(inout bit<8> kept, out bit<8> all) {
            kept = kept | FLAG_MISMATCH;
            all = kept;
        }
    };

    action flag_first()    { meta.round_flags = flag_first_of.execute(STATE); }
    action flag_more()     { meta.round_flags = flag_more_of.execute(STATE); }
    action flag_mismatch() { meta.round_flags = flag_mismatch_of.execute(STATE); }

    @hidden
    table flag {
        key = {
            hdr.agg.kind : ternary;
            meta.claim   : ternary;
            meta.missing : ternary;
            mismatch     : ternary;
        }
        actions = { flag_first; flag_more; flag_mismatch; }
        const entries = {
            (KIND_CONTRIBUTE, IS_CURRENT, _, 1): flag_mismatch();
            (KIND_CONTRIBUTE, IS_CURRENT, _, _): flag_more();
            (KIND_CONTRIBUTE, IS_OPENED,          _, _): flag_first();
            (KIND_RESULT,     IS_CURRENT, 0, _): flag_more();
        }
        size = 4;
    }

    // -- In a tree: who asks the parent again, and whether it has answered ---------------------------

    // The first rank that asks does so for all until the answer comes, and whoever asks for all takes
    // no turn (v1model/slots.p4, ask_parent).
    Register<pair_t, index_t>(SLOT_STATES) turns;    // asker, answer

    RegisterAction2<pair_t, index_t, bit<8>, bit<8>>(turns) turn_first_of = {
        void apply(inout pair_t kept, out bit<8> goes_up, out bit<8> final) {
            kept.low = 0;
            kept.high = 0;
            goes_up = UP_NOT;
            final = FINAL_NOT;
        }
    };

    RegisterAction2<pair_t, index_t, bit<8>, bit<8>>(turns) turn_asked_of = {
        void apply(inout pair_t kept, out bit<8> goes_up, out bit<8> final) {
            goes_up = UP_NOT;
            final = kept.high[7:0];
            if (kept.high == 0 && (kept.low == 0 || kept.low == asker)) {
                kept.low = asker;
                goes_up = UP_TURN;
            }
        }
    };

    RegisterAction<pair_t, index_t, bit<8>>(turns) turn_kept_of = {
        void apply(inout pair_t kept, out bit<8> final) {
            final = kept.high[7:0];
        }
    };

    RegisterAction<pair_t, index_t, bit<8>>(turns) turn_answered_of = {
        void apply(inout pair_t kept, out bit<8> final) {
            final = kept.high[7:0];
            kept.high = answer;
        }
    };

    action turn_first()    { meta.goes_up = turn_first_of.execute(STATE, meta.final); }
    action turn_asked()    { meta.goes_up = turn_asked_of.execute(STATE, meta.final); }
    action turn_kept()     { meta.final = turn_kept_of.execute(STATE); }
    action turn_for_one()  { meta.final = turn_kept_of.execute(STATE); meta.goes_up = UP_FOR_ONE; }
    action turn_answered() { meta.final = turn_answered_of.execute(STATE); }

    @hidden
    table turn {
        key = {
            hdr.agg.kind  : ternary;
            meta.claim    : ternary;
            meta.unheard  : ternary;
            meta.missing  : ternary;
            hdr.agg.flags : ternary;
        }
        actions = { turn_first; turn_asked; turn_kept; turn_for_one; turn_answered; }
        const entries = {
            (KIND_CONTRIBUTE, IS_OPENED,          _, _, _):                  turn_first();
            (KIND_CONTRIBUTE, IS_STALE,           _, _, _):                  turn_kept();
            (KIND_CONTRIBUTE, _,                  0, 0, SET(FLAG_TELL_ALL)): turn_for_one();
            (KIND_CONTRIBUTE, _,                  0, 0, SET(FLAG_FOR_ONE)):  turn_for_one();
            (KIND_CONTRIBUTE, _,                  0, 0, _):                  turn_asked();
            (KIND_RESULT,     IS_CURRENT, _, 0, _):                  turn_answered();
            (_,               IS_CURRENT, _, _, _):                  turn_kept();
        }
        size = 8;
    }

    apply {
        prepare();
        answer = (bit<32>)FINAL_EMPTY;
        if (payload == 1) {
            answer = (bit<32>)FINAL_LANES;
        }
        claim.apply();
        low_ranks.apply(hdr, meta, meta.grant.worker_bit[31:0],
                        meta.unheard[31:0], meta.missing[31:0]);
        high_ranks.apply(hdr, meta, meta.grant.worker_bit[63:32],
                         meta.unheard[63:32], meta.missing[63:32]);
        agree.apply();
        offer.apply();
        pay.apply();
        flag.apply();
        turn.apply();
        if (hdr.agg.kind != KIND_STATUS) {
            hdr.agg.next_exponent = (bit<8>)next_exponent;
        }
    }
}  // control Slots

#endif  // P4REDUCE_SLOTS
