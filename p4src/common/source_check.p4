// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_SOURCE_CHECK
#define P4REDUCE_SOURCE_CHECK

// Finds frames on their way to others that say that they are from the switch. Workers take
// answers from the switch's MAC address only, so nobody can answer in its place: whatever is
// in the frame, behind whatever tags, its Ethernet source is here. Its addresses in IPv4 and
// ARP are nobody else's either.
control SourceCheck(in headers_t hdr, inout metadata_t meta) {

    @name(".is_forged")
    action is_forged() {
        meta.forged = true;
    }

    @name(".own_source")
    table sources {
        key = { hdr.ethernet.src : exact @name("mac"); }
        actions = { is_forged; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    @name(".own_sender_ip")
    table sender_ips {
        key = { meta.sender_ip : exact @name("ip"); }
        actions = { is_forged; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    @name(".own_sender_mac")
    table sender_macs {
        key = { meta.sender_mac : exact @name("mac"); }
        actions = { is_forged; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    apply {
        sources.apply();
        sender_ips.apply();
        sender_macs.apply();
    }
}  // control SourceCheck

#endif  // P4REDUCE_SOURCE_CHECK
