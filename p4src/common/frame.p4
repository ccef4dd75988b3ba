// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_FRAME
#define P4REDUCE_FRAME

// Which part of the switch a frame is for. It is dropped unless that sends it on.
control Frame(inout headers_t hdr, inout metadata_t meta) {
    OwnAddress()  own_address;
    SourceCheck() source_check;
    Hello()       hello;
    Admission()   admission;
    Uplink()      uplink;
    Aggregation() aggregation;
    Host()        host;
    Bridge()      bridge;

    apply {
        own_address.apply(meta);

        if (!meta.own) {
            source_check.apply(hdr, meta);
            if (meta.forged) {
                meta.outcome = Outcome.FORGED_SOURCE;
            } else {
                bridge.apply(hdr, meta);
            }
        } else if (meta.bad_checksum) {
            meta.outcome = Outcome.BAD_IPV4_CHECKSUM;
        } else if (!hdr.udp.isValid() || hdr.udp.dst_port != AGGREGATION_PORT) {
            host.apply(hdr, meta);
        } else if (meta.malformed) {
            meta.outcome = Outcome.MALFORMED;
        } else if (hdr.agg.version != AGGREGATION_VERSION) {
            meta.outcome = Outcome.BAD_VERSION;
        } else if (hdr.agg.kind == KIND_HELLO) {
            hello.apply(meta);
        } else if (hdr.agg.kind > KIND_STATUS) {
            meta.outcome = Outcome.UNKNOWN_KIND;
        } else if (hdr.agg.kind == KIND_CONTRIBUTE && hdr.agg.format > FORMAT_INT4) {
            meta.outcome = Outcome.UNKNOWN_FORMAT;
        } else {
            if (hdr.agg.kind == KIND_CONTRIBUTE) {
                admission.apply(hdr, meta);
            } else {
                uplink.apply(hdr, meta);
            }
            if (meta.grant.slots_left != 0) {
                aggregation.apply(hdr, meta);
            } else if (meta.outcome == Outcome.UNSET) {
                meta.outcome = Outcome.SLOT_OUT_OF_RANGE;
            }
        }
    }
}  // control Frame

#endif  // P4REDUCE_FRAME
