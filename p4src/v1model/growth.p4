// SPDX-License-Identifier: Apache-2.0
// Frames without room for a block's sums, and the lanes and lengths of frames that leave the switch.
#ifndef P4REDUCE_GROWTH
#define P4REDUCE_GROWTH

control Lanes(inout headers_t hdr, inout metadata_t meta) {
    Sums() sums;

#ifdef HALVES
    // A result for all ranks can leave as two halves per rank. A repeated result cannot, nor can the
    // sums to a parent: the rank gets a STATUS, and repeats its contribution with room for them.
    action fit() {
        if (meta.round_flags & FLAG_MISMATCH != 0) {
            meta.op = LaneOp.NOTHING;    // there is no sum
        } else if (meta.group == meta.grant.group_full) {
            meta.group = meta.grant.group_halves;
            meta.outcome = Outcome.ROUND_COMPLETED_HALVES;
        } else {
            meta.op = LaneOp.NOTHING;
            if (meta.group == 0) {
                meta.reply = Reply.STATUS;
                meta.outcome = Outcome.STATUS_SENT;
            } else {
                meta.reply = Reply.ROOM;
                meta.outcome = Outcome.ROOM_ASKED;
                meta.group = 0;
                meta.port = meta.ingress_port;
            }
        }
    }

#endif
    apply {
#ifdef HALVES
        if (meta.op == LaneOp.LOAD
                && (!hdr.word0.isValid() || meta.round_flags & FLAG_MISMATCH != 0)) {
            fit();
        }
#endif
        sums.apply(hdr, meta);
    }
}  // control Lanes

// Sets the lengths of a frame that leaves the switch, and hides lanes that it does not need.
control Shape(inout headers_t hdr, inout metadata_t meta) {
    action shape() {
        if (hdr.agg.flags & FLAG_PAYLOAD == 0) {
            if (hdr.agg.kind == KIND_CONTRIBUTE && hdr.word0.isValid()) {
                // To the parent, whose answer will need the room.
                hdr.agg.flags = hdr.agg.flags | FLAG_PADDED;
            } else {
#define HIDE(N) hdr.word##N.setInvalid();
                EACH_WORD(HIDE)
                hdr.udp.length = EMPTY_UDP_LENGTH;
            }
        } else if (meta.op == LaneOp.LOAD) {
            hdr.udp.length = PAYLOAD_UDP_LENGTH;
        }
        hdr.udp.checksum = 0;     // none (RFC 768)
        hdr.ipv4.total_length = hdr.udp.length + IPV4_BYTES;
        hdr.ipv4.ttl = REPLY_TTL;
        meta.ipv4_rewritten = true;
    }

    apply {
        shape();
    }
}  // control Shape

#endif  // P4REDUCE_GROWTH
