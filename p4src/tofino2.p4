// SPDX-License-Identifier: Apache-2.0
//
// p4reduce for Tofino 2: the same protocol as v1model.p4, from the same common/. What tofino2/ adds is
// how this target does it: each register is touched once by a frame, and a frame has 64 lanes.
// docs/tofino.md says what was tried, and what was not.

#include <core.p4>
#include <t2na.p4>

#include "tofino2/sizes.p4"
#include "common/constants.p4"
#include "tofino2/target.p4"         // lanes, what a frame and its metadata are

#include "tofino2/parser.p4"         // bytes -> headers, and IPv4's checksum

#include "common/admission.p4"       // may this contribution touch that slot?
#include "common/uplink.p4"          // in a tree: is this answer from the parent?
#include "tofino2/missing.p4"        // 32 of the ranks that a slot waits for
#include "tofino2/slots.p4"          // what is kept of each slot, a step for each register
#include "tofino2/lanes.p4"          // the sums
#include "common/aggregation.p4"     // rounds: what becomes of a frame, and what it says then
#include "tofino2/hello.p4"          // HELLOs to the controller, with a rate limit
#include "common/host.p4"            // the switch's own address: ARP, ping
#include "common/source_check.p4"    // frames that claim to be from the switch
#include "common/bridge.p4"          // all other traffic
#include "common/frame.p4"           // which of these a frame is for
#include "tofino2/ingress.p4"

#include "tofino2/egress.p4"         // a result's copies, each made its rank's own
#include "tofino2/deparser.p4"       // headers -> bytes

// Metadata begins as 0, which common/ relies on.
@pa_auto_init_metadata
Pipeline(PacketParser(),
         SwitchIngress(),
         IngressDeparser(),
         CopyParser(),
         SwitchEgress(),
         EgressDeparser()) pipe;

Switch(pipe) main;
