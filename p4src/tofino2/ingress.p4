// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_INGRESS
#define P4REDUCE_INGRESS

control SwitchIngress(inout headers_t hdr,
                      inout metadata_t meta,
                      in ingress_intrinsic_metadata_t intrinsic,
                      in ingress_intrinsic_metadata_from_parser_t from_parser,
                      inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                      inout ingress_intrinsic_metadata_for_tm_t for_tm) {
    @name(".outcomes")
    Counter<bit<64>, Outcome>(OUTCOMES, CounterType_t.PACKETS_AND_BYTES) outcomes;

    Frame() frame;

    action well_formed() {
        meta.malformed = false;
    }

    action malformed() {
        meta.malformed = true;
    }

    // Ingress does not know how long a frame is. Bytes after those that it states travel on in an
    // answer, and the receiver cuts them off.
    @hidden
    table lengths {
        key = {
            hdr.words.isValid()    : exact;
            hdr.udp.length         : exact;
            hdr.ipv4.total_length  : exact;
            from_parser.parser_err : exact;
        }
        actions = { well_formed; malformed; }
        const default_action = malformed();
        const entries = {
            (true,  PAYLOAD_UDP_LENGTH, PAYLOAD_UDP_LENGTH + IPV4_BYTES, 0): well_formed();
            (false, EMPTY_UDP_LENGTH,   EMPTY_UDP_LENGTH + IPV4_BYTES,   0): well_formed();
        }
        size = 2;
    }

    action to_port() {
        for_tm.ucast_egress_port = meta.port;
    }

    action to_group() {
        for_tm.mcast_grp_a = meta.group;
    }

    // To all ports but its own.
    action to_all() {
        for_tm.mcast_grp_a = meta.group;
        for_tm.rid = 0xffff;
        for_tm.level2_exclusion_id = meta.ingress_port;
    }

    action to_cpu() {
        for_tm.ucast_egress_port = meta.port;
        for_tm.bypass_egress = 1;
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = meta.ingress_port;
        hdr.packet_in._pad = 0;
    }

    action drop() {
        for_deparser.drop_ctl = 1;
    }

    apply {
        if (hdr.packet_out.isValid()) {
            meta.port = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            meta.outcome = Outcome.PACKET_OUT_SENT;
        } else {
            lengths.apply();
            frame.apply(hdr, meta);
        }
        if (meta.group == FLOOD_GROUP) {
            to_all();
        } else if (meta.group != 0) {
            to_group();
        } else if (meta.port == NOWHERE) {
            drop();
        } else if (meta.port == CPU_PORT) {
            to_cpu();
        } else {
            to_port();
        }
        outcomes.count(meta.outcome);
    }
}  // control SwitchIngress

#endif  // P4REDUCE_INGRESS
