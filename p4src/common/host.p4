// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_HOST
#define P4REDUCE_HOST

// Knows which addresses are the switch's own.
control OwnAddress(inout metadata_t meta) {

    @name(".is_own")
    action is_own(mac_t mac) {
        meta.own = true;
        meta.own_mac = mac;
    }

    @name(".own_address")
    table addresses {
        key = { meta.target_ip : exact @name("ip"); }
        actions = { is_own; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    apply {
        addresses.apply();
    }
}  // control OwnAddress

// The switch as a host: answers ARP requests and pings, so that users can
// check with their own tools that it is there.
control Host(inout headers_t hdr, inout metadata_t meta) {

    action reply_arp() {
        ipv4_t own_ip = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = meta.own_mac;
        hdr.arp.sender_ip = own_ip;
    }

    action reply_echo(bit<16> checksum_change) {
        ipv4_t own_ip = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own_ip;
        hdr.ipv4.ttl = REPLY_TTL;
        meta.ipv4_rewritten = true;
        hdr.icmp.type = ICMP_ECHO_REPLY;
        hdr.icmp.checksum = hdr.icmp.checksum + checksum_change;
    }

    action back_to_sender() {
        meta.port = meta.ingress_port;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.own_mac;
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            reply_arp();
            back_to_sender();
            meta.outcome = Outcome.ARP_REPLIED;
        } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST
                   && hdr.icmp.code == 0) {
            // The type goes down by 8, so the checksum goes up by that (RFC 1624), with an end-around
            // carry.
            if (hdr.icmp.checksum < 0xf800) {
                reply_echo(0x0800);
            } else {
                reply_echo(0x0801);
            }
            back_to_sender();
            meta.outcome = Outcome.ECHO_REPLIED;
        } else {
            meta.outcome = Outcome.HOST_UNHANDLED;
        }
    }
}  // control Host

#endif  // P4REDUCE_HOST
