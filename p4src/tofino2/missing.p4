// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_MISSING
#define P4REDUCE_MISSING

// Who has not contributed yet: 32 of the ranks, as that is a word of a stateful ALU.
// missing begins as all ranks but this one.
control Missing(in headers_t hdr, inout metadata_t meta, in bit<32> rank,
                inout bit<32> unheard, inout bit<32> missing) {
    Register<bit<32>, index_t>(SLOT_STATES) missing_ranks;

    // The opener need not be one of these 32, but it was not heard before.
    RegisterAction2<bit<32>, index_t, bit<32>, bit<32>>(missing_ranks) hear_first_of = {
        void apply(inout bit<32> kept, out bit<32> unheard_now, out bit<32> missing_now) {
            kept = missing;
            unheard_now = 1;
            missing_now = kept;
        }
    };

    RegisterAction2<bit<32>, index_t, bit<32>, bit<32>>(missing_ranks) hear_more_of = {
        void apply(inout bit<32> kept, out bit<32> unheard_now, out bit<32> missing_now) {
            unheard_now = kept & rank;
            kept = kept & ~rank;
            missing_now = kept;
        }
    };

    RegisterAction2<bit<32>, index_t, bit<32>, bit<32>>(missing_ranks) hear_nothing_of = {
        void apply(inout bit<32> kept, out bit<32> unheard_now, out bit<32> missing_now) {
            unheard_now = 0;
            missing_now = kept;
        }
    };

    action hear_first()   { unheard = hear_first_of.execute(STATE, missing); }
    action hear_more()    { unheard = hear_more_of.execute(STATE, missing); }
    action hear_nothing() { unheard = hear_nothing_of.execute(STATE, missing); }

    @hidden
    table hear {
        key = {
            hdr.agg.kind : ternary;
            meta.claim   : ternary;
        }
        actions = { hear_first; hear_more; hear_nothing; }
        const entries = {
            (KIND_CONTRIBUTE, IS_CURRENT): hear_more();
            (KIND_CONTRIBUTE, IS_OPENED):          hear_first();
            (_,               IS_CURRENT): hear_nothing();
        }
        size = 4;
    }

    apply {
        hear.apply();
    }
}  // control Missing

#endif  // P4REDUCE_MISSING
