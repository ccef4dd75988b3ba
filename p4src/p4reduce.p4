// SPDX-License-Identifier: Apache-2.0
//
// p4reduce: sums the gradients that workers send through the switch.
// The protocol is docs/protocol.md, the switch's part of it aggregation.p4.

#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

#include "include/constants.p4"
#include "include/types.p4"
#include "include/lane_masks.p4"

#include "include/parser.p4"        // bytes -> headers
#include "include/checksums.p4"     // IPv4's, in and out

#include "include/hello.p4"         // HELLOs to the controller, with a rate limit
#include "include/admission.p4"     // may this contribution touch that slot?
#include "include/slots.p4"         // the registers of each slot
#include "include/lanes.p4"         // the sums
#include "include/aggregation.p4"   // rounds: who was heard, what to answer, what to ask a parent
#include "include/uplink.p4"        // in a tree: what the parent has answered
#include "include/host.p4"          // the switch's own address: ARP, ping
#include "include/source_check.p4"  // frames that claim to be from the switch
#include "include/bridge.p4"        // all other traffic
#include "include/switch_ingress.p4"

#include "include/delivery.p4"      // a result's copies, each made its rank's own
#include "include/switch_egress.p4"
#include "include/deparser.p4"      // headers -> bytes

// Ranks may deal their blocks among copies of this program: no slot of one concerns another.
@several_cores
V1Switch(PacketParser(),
         ChecksumVerification(),
         SwitchIngress(),
         SwitchEgress(),
         ChecksumUpdate(),
         PacketDeparser()) main;
