// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_CHECKSUMS
#define P4REDUCE_CHECKSUMS

#define IPV4_CHECKSUMMED { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_length, \
    hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, \
    hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

control ChecksumVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {
        // With options the sum would have to cover them; such frames are only
        // ever bridged, so their checksum is the receiver's business.
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
                        IPV4_CHECKSUMMED, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}  // control ChecksumVerification

control ChecksumUpdate(inout headers_t hdr, inout metadata_t meta) {
    apply {
        // Not for bridged frames: that would repair what arrived broken.
        update_checksum(meta.ipv4_rewritten,
                        IPV4_CHECKSUMMED, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}  // control ChecksumUpdate

#endif  // P4REDUCE_CHECKSUMS
