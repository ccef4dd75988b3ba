// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_SWITCH_INGRESS
#define P4REDUCE_SWITCH_INGRESS

control SwitchIngress(inout headers_t hdr,
                inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    @name(".outcomes")
    counter<Outcome>(OUTCOMES, CounterType.packets_and_bytes) outcomes;

    OwnAddress()  own_address;
    SourceCheck() source_check;
    Hello()       hello;
    Admission()   admission;
    Aggregation() aggregation;
    Uplink()      uplink;
    Host()        host;
    Bridge()      bridge;

    apply {
        own_address.apply(meta);

        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            meta.outcome = Outcome.PACKET_OUT_SENT;
        } else if (!meta.own) {
            source_check.apply(hdr, meta);
            if (meta.forged) {
                REFUSE(Outcome.FORGED_SOURCE);
            } else {
                bridge.apply(hdr, meta, standard_metadata);
            }
        } else if (standard_metadata.checksum_error == 1) {
            REFUSE(Outcome.BAD_IPV4_CHECKSUM);
        } else if (!hdr.udp.isValid() || hdr.udp.dst_port != AGGREGATION_PORT) {
            host.apply(hdr, meta, standard_metadata);
        } else if (standard_metadata.parser_error != error.NoError
                   || hdr.udp.length != (hdr.word0.isValid() == hdr.word2.isValid()
                                         ? (hdr.word0.isValid() ? PAYLOAD_UDP_LENGTH
                                                                : EMPTY_UDP_LENGTH)
                                         : HALF_UDP_LENGTH)
                   || hdr.ipv4.total_length != hdr.udp.length + IPV4_BYTES
                   || standard_metadata.packet_length
                       != ETHERNET_BYTES + (bit<32>)hdr.ipv4.total_length) {
            // The lengths that the frame states must be those that it has, or bytes that
            // nobody looked at would travel on in the answers.
            REFUSE(Outcome.MALFORMED);
        } else if (hdr.agg.version != AGGREGATION_VERSION) {
            REFUSE(Outcome.BAD_VERSION);
        } else if (hdr.agg.kind != KIND_CONTRIBUTE) {
            if (hdr.agg.kind == KIND_HELLO) {
                hello.apply(meta, standard_metadata);
            } else if (hdr.agg.kind == KIND_RESULT || hdr.agg.kind == KIND_STATUS) {
                uplink.apply(hdr, meta, standard_metadata);
            } else {
                REFUSE(Outcome.UNKNOWN_KIND);
            }
        } else if (hdr.agg.format > FORMAT_INT4) {
            REFUSE(Outcome.UNKNOWN_FORMAT);
        } else {
            admission.apply(hdr, meta, standard_metadata);
            if (hdr.agg.slot < meta.grant.slot_count) {
                aggregation.apply(hdr, meta, standard_metadata);
            } else if (meta.grant.worker_bit == 0) {
                REFUSE(Outcome.NOT_ADMITTED);
            } else {
                REFUSE(Outcome.SLOT_OUT_OF_RANGE);
            }
        }

        outcomes.count(meta.outcome);
    }
}  // control SwitchIngress

#endif  // P4REDUCE_SWITCH_INGRESS
