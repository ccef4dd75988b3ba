// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_INGRESS
#define P4REDUCE_INGRESS

control SwitchIngress(inout headers_t hdr,
                      inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    @name(".outcomes")
    counter<Outcome>(OUTCOMES, CounterType.packets_and_bytes) outcomes;

    Frame() frame;

    action begin() {
        meta.bad_checksum = standard_metadata.checksum_error == 1;
        // The lengths that a frame states must be those that it has, or bytes that nobody looked
        // at would travel on in the answers.
        meta.malformed =
            standard_metadata.parser_error != error.NoError
#ifdef HALVES
            || hdr.udp.length != (hdr.word0.isValid() == hdr.word2.isValid()
                                  ? (hdr.word0.isValid() ? PAYLOAD_UDP_LENGTH : EMPTY_UDP_LENGTH)
                                  : HALF_UDP_LENGTH)
#else
            || hdr.udp.length != (hdr.word0.isValid() ? PAYLOAD_UDP_LENGTH : EMPTY_UDP_LENGTH)
#endif
            || hdr.ipv4.total_length != hdr.udp.length + IPV4_BYTES
            || standard_metadata.packet_length != ETHERNET_BYTES + (bit<32>)hdr.ipv4.total_length;
    }

    action end() {
        standard_metadata.egress_spec = meta.port;
        standard_metadata.mcast_grp = meta.group;
        outcomes.count(meta.outcome);
    }

    apply {
        if (hdr.packet_out.isValid()) {
            meta.port = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            meta.outcome = Outcome.PACKET_OUT_SENT;
        } else {
            begin();
            frame.apply(hdr, meta);
        }
        end();
    }
}  // control SwitchIngress

#endif  // P4REDUCE_INGRESS
