// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_DEPARSER
#define P4REDUCE_DEPARSER

// Not for bridged frames: that would repair what arrived broken.
control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.ipv4_rewritten) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUMMED);
        }
        packet.emit(hdr);
    }
}  // control IngressDeparser

control EgressDeparser(packet_out packet, inout copy_headers_t hdr, in copy_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.readdressed) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUMMED);
        }
        packet.emit(hdr);
    }
}  // control EgressDeparser

#endif  // P4REDUCE_DEPARSER
