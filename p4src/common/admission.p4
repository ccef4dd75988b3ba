// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_ADMISSION
#define P4REDUCE_ADMISSION

// Decides whether a contribution may touch a slot at all, and which ones are its
// job's. What a frame claims (job, rank) counts only on the port and from the
// address that the controller bound to that rank when it attached.
control Admission(inout headers_t hdr, inout metadata_t meta) {

    // Bytes and frames that each rank, or switch below, sent up.
    @name(".contributed")
    DIRECT_COUNTER(contributed);

    @name(".grant")
    action grant(ranks_t worker_bit, ranks_t all_workers, bit<32> slot_base,
                 slot_t slot_count, group_t group_full, group_t group_halves) {
        meta.grant = { worker_bit, all_workers, (slot_t)slot_base + hdr.agg.slot,
                       slot_count |-| hdr.agg.slot, group_full, group_halves };
        meta.sticky = hdr.agg.flags & FLAGS_STICKY;
        meta.echo = hdr.agg.flags & FLAG_RETRANSMISSION;
        contributed.count();
    }

    // The same where a job's ranks are on several switches, and this is not the root of them.
    @name(".grant_partial")
    action grant_partial(ranks_t worker_bit, ranks_t all_workers, bit<32> slot_base,
                         slot_t slot_count, group_t group_full, group_t group_halves,
                         group_t group_up) {
        grant(worker_bit, all_workers, slot_base, slot_count, group_full, group_halves);
        meta.group_up = group_up;
        meta.partial = 1;
    }

    @name(".refuse")
    action refuse() {    // without slots
        meta.outcome = Outcome.NOT_ADMITTED;
        contributed.count();
    }

    @name(".admission")
    table ranks {
        key = {
            meta.ingress_port : exact @name("ingress_port");
            hdr.ipv4.src      : exact @name("src_ip");
            hdr.agg.job       : exact @name("job");
            hdr.agg.rank      : exact @name("rank");
        }
        actions = { grant; grant_partial; @defaultonly refuse; }
        const default_action = refuse();
        counters = contributed;
        size = ADMISSION_ENTRIES;
    }

    apply {
        ranks.apply();
    }
}  // control Admission

#endif  // P4REDUCE_ADMISSION
