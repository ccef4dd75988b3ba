// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_SOURCE_CHECK
#define P4REDUCE_SOURCE_CHECK

// Finds forwarded frames that claim to be from the switch. Workers accept answers from the switch's
// MAC address only, so nobody can answer in its place: the Ethernet source of each frame is checked,
// whatever the frame carries. The switch's addresses in IPv4 and ARP are checked as well.
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
