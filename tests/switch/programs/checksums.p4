// SPDX-License-Identifier: Apache-2.0
// The Internet checksum: verified and updated, conditional, over several headers, with payload;
// hashes.
#include <core.p4>
#include <v1model.p4>

header ipv4_h {
    bit<4> version; bit<4> ihl; bit<8> diffserv; bit<16> total_length; bit<16> identification;
    bit<3> flags; bit<13> fragment_offset; bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
}
header extra_h { bit<8> odd; }
header udp_h { bit<16> src_port; bit<16> dst_port; bit<16> length; bit<16> checksum; }
header hashes_h { bit<32> crc32; bit<16> crc16; bit<16> csum; bit<16> xored; bit<16> ranged; bit<32> ident; bit<16> verdict; }
struct headers_t { hashes_h hashes; ipv4_h ipv4; extra_h extra; udp_h udp; }
struct metadata_t { bit<1> rewrite; bit<16> length; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.protocol) { 17: udp; 18: extra; default: accept; }
    }
    state extra { packet.extract(hdr.extra); transition udp; }
    state udp { packet.extract(hdr.udp); meta.length = hdr.udp.length; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0,
            { hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, meta.length, hdr.extra.odd,
              hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length },
            hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        hdr.hashes.setValid();
        hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0, { hdr.ipv4.src, hdr.ipv4.ttl, hdr.ipv4.dst }, 64w0x100000000);
        hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0, { hdr.ipv4.src, hdr.ipv4.dst }, 32w0x10000);
        hash(hdr.hashes.csum, HashAlgorithm.csum16, 16w0, { hdr.ipv4.flags, hdr.ipv4.src, hdr.ipv4.dst }, 32w0x10000);
        hash(hdr.hashes.xored, HashAlgorithm.xor16, 16w0, { hdr.ipv4.ttl, hdr.ipv4.src, hdr.ipv4.dst }, 32w0x10000);
        hash(hdr.hashes.ranged, HashAlgorithm.crc32, 16w100, { hdr.ipv4.src, hdr.ipv4.dst }, 16w10);
        hash(hdr.hashes.ident, HashAlgorithm.identity, 32w0, { hdr.ipv4.src }, 64w0x100000000);
        hdr.hashes.verdict = (bit<16>)sm.checksum_error;
        if (hdr.ipv4.ttl > 1) {
            meta.rewrite = 1;
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewrite == 1,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.udp.isValid() && hdr.udp.checksum != 0,
            { hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, meta.length, hdr.extra.odd,
              hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.length },
            hdr.udp.checksum, HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
