// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_DEPARSER
#define P4REDUCE_DEPARSER

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.agg);
#define EMIT(N) packet.emit(hdr.word##N);
        EACH_WORD(EMIT)
    }
}  // control PacketDeparser

#endif  // P4REDUCE_DEPARSER
