// SPDX-License-Identifier: Apache-2.0
//
// p4reduce: sums the gradients that workers send through the switch. This is the program for
// v1model: BMv2 and the embedded switch. The protocol is docs/protocol.md. common/ is the switch's
// part of it, and v1model/ how this target does what common/ asks for.

#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

#include "v1model/sizes.p4"
#include "common/constants.p4"
#include "v1model/target.p4"         // lanes, what a frame and its metadata are
#include "v1model/lane_masks.p4"

#include "v1model/parser.p4"         // bytes -> headers
#include "v1model/checksums.p4"      // IPv4's, in and out

#include "common/admission.p4"       // may this contribution touch that slot?
#include "common/uplink.p4"          // in a tree: is this answer from the parent?
#include "v1model/slots.p4"          // what is kept of each slot, a step for each register
#include "v1model/lanes.p4"          // the sums
#include "v1model/growth.p4"         // frames without room for them
#include "common/aggregation.p4"     // rounds: what becomes of a frame, and what it says then
#include "v1model/hello.p4"          // HELLOs to the controller, with a rate limit
#include "common/host.p4"            // the switch's own address: ARP, ping
#include "common/source_check.p4"    // frames that claim to be from the switch
#include "common/bridge.p4"          // all other traffic
#include "common/frame.p4"           // which of these a frame is for
#include "v1model/ingress.p4"

#include "v1model/delivery.p4"       // a result's copies, each made its rank's own
#include "v1model/egress.p4"
#include "v1model/deparser.p4"       // headers -> bytes

// Ranks may deal their blocks among copies of this program: no slot of one concerns another.
@several_cores
V1Switch(PacketParser(),
         ChecksumVerification(),
         SwitchIngress(),
         SwitchEgress(),
         ChecksumUpdate(),
         PacketDeparser()) main;
