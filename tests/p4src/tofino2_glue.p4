// SPDX-License-Identifier: Apache-2.0
// The frame of v1model around the Tofino 2 program's own steps, so that they can be run:
// tofino2_on_v1model.py puts those in the place of each comment in angle brackets.

<p4src/tofino2/sizes.p4>
#include "common/constants.p4"

<p4src/tofino2/target.p4>

parser PacketParser(packet_in packet,
                    out headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        meta.ingress_port = standard_metadata.ingress_port;
        meta.port = NOWHERE;
        transition parse_ethernet;
    }

#define VERIFY_IPV4_CHECKSUM()
#include "common/parser.p4"

    state parse_lanes {
        packet.extract(hdr.words);
        transition accept;
    }
}

#include "v1model/checksums.p4"
#include "common/admission.p4"
#include "common/uplink.p4"
<p4src/tofino2/missing.p4>
<p4src/tofino2/slots.p4>
<p4src/tofino2/lanes.p4>
#include "common/aggregation.p4"
#include "v1model/hello.p4"
#include "common/host.p4"
#include "common/source_check.p4"
#include "common/bridge.p4"
#include "common/frame.p4"

control SwitchIngress(inout headers_t hdr,
                      inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    @name(".outcomes")
    counter<Outcome>(OUTCOMES, CounterType.packets_and_bytes) outcomes;

    Frame() frame;

    apply {
        meta.bad_checksum = standard_metadata.checksum_error == 1;
        meta.malformed = hdr.udp.length != (hdr.words.isValid() ? PAYLOAD_UDP_LENGTH : EMPTY_UDP_LENGTH);
        frame.apply(hdr, meta);
        standard_metadata.egress_spec = meta.port;
        standard_metadata.mcast_grp = meta.group;
        outcomes.count(meta.outcome);
    }
}

control SwitchEgress(inout headers_t hdr,
                     inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    @name(".whole")
    action whole(mac_t mac, ipv4_t ip, bit<16> udp_port, rank_t rank) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
        hdr.agg.rank = rank;
    }

    @name(".delivery")
    table replicas {
        key = { standard_metadata.egress_rid : exact @name("replica"); }
        actions = { whole; @defaultonly NoAction; }
        const default_action = NoAction();
        size = REPLICA_ENTRIES;
    }

    apply {
        if (meta.group != 0) {
            replicas.apply();
        }
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(PacketParser(),
         ChecksumVerification(),
         SwitchIngress(),
         SwitchEgress(),
         ChecksumUpdate(),
         PacketDeparser()) main;
