// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_BRIDGE
#define P4REDUCE_BRIDGE

// All traffic that is not for the switch: an ordinary layer-2 bridge.
control Bridge(inout headers_t hdr, inout metadata_t meta) {

    @name(".forward")
    action forward(port_t port) {
        meta.port = port;
        meta.outcome = Outcome.L2_FORWARDED;
    }

    // A group and broadcast address is never entered here, so it floods as well.
    @name(".flood")
    action flood() {
        meta.group = FLOOD_GROUP;
        meta.outcome = Outcome.L2_FLOODED;
    }

    @name(".bridge")
    table stations {
        key = { hdr.ethernet.dst : exact @name("dst_mac"); }
        actions = { forward; @defaultonly flood; }
        const default_action = flood();
        size = MAC_ENTRIES;
    }

    apply {
        stations.apply();
        if (meta.port == meta.ingress_port) {
            meta.port = NOWHERE;
            meta.outcome = Outcome.L2_HAIRPIN;
        }
    }
}  // control Bridge

#endif  // P4REDUCE_BRIDGE
