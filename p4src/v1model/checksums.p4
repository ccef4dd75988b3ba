// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_CHECKSUMS
#define P4REDUCE_CHECKSUMS

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
