// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_SWITCH_EGRESS
#define P4REDUCE_SWITCH_EGRESS

control SwitchEgress(inout headers_t hdr,
                     inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    ResultDelivery() delivery;

    apply {
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in._pad = 0;
        } else if (meta.group == FLOOD_GROUP) {
            if (standard_metadata.egress_port == standard_metadata.ingress_port) {
                mark_to_drop(standard_metadata);
            }
        } else if (meta.group != 0) {
            delivery.apply(hdr, meta, standard_metadata);
        }
    }
}  // control SwitchEgress

#endif  // P4REDUCE_SWITCH_EGRESS
