// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_UPLINK
#define P4REDUCE_UPLINK

// A switch below another one sends the sums of its rounds to that parent. Decides whether a RESULT or
// STATUS is from the parent, and for which slots. What it does then is in aggregation.p4.
control Uplink(inout headers_t hdr, inout metadata_t meta) {

    // Bytes and frames that came down from each parent.
    @name(".answered")
    DIRECT_COUNTER(answered);

    @name(".pass_down")
    action pass_down(ranks_t all_workers, bit<32> slot_base, slot_t slot_count,
                     group_t group_full) {
        meta.grant.all_workers = all_workers;
        meta.grant.slot = (slot_t)slot_base + hdr.agg.slot;
        meta.grant.slots_left = slot_count |-| hdr.agg.slot;
        meta.grant.group_full = group_full;
        meta.sticky = hdr.agg.flags & FLAGS_STICKY;
        meta.echo = hdr.agg.flags & FLAG_RETRANSMISSION;
        answered.count();
    }

    @name(".not_from_parent")
    action not_from_parent() {
        meta.outcome = Outcome.NOT_FROM_PARENT;
        answered.count();
    }

    // As in admission.p4, what a frame claims counts only on the parent's port and from the
    // parent's address. The rank is this switch's number at its parent.
    @name(".uplink")
    table parents {
        key = {
            meta.ingress_port : exact @name("ingress_port");
            hdr.ipv4.src      : exact @name("src_ip");
            hdr.agg.job       : exact @name("job");
            hdr.agg.rank      : exact @name("rank");
        }
        actions = { pass_down; @defaultonly not_from_parent; }
        const default_action = not_from_parent();
        counters = answered;
        size = UPLINK_ENTRIES;
    }

    apply {
        parents.apply();
    }
}  // control Uplink

#endif  // P4REDUCE_UPLINK
