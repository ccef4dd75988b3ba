// SPDX-License-Identifier: Apache-2.0
// Headers that the parser assigns from an expression: a stack's last, into its next, by a condition.
#include <core.p4>
#include <v1model.p4>

header command_h { bit<8> what; bit<8> failure; }
header label_h { bit<12> value; bit<3> spare; bit<1> more; }
struct headers_t { command_h command; label_h[3] labels; label_h extra; }
struct metadata_t { label_h kept; }

#define KEEP_LAST 1
#define APPEND 2
#define REPEAT_LAST 3
#define CHOOSE 4
#define KEEP_NONE 5

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.what) {
            KEEP_NONE: kept;
            default: labels;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.more) { 1: labels; default: all_labels; }
    }
    state all_labels {
        transition select(hdr.command.what) {
            KEEP_LAST: kept;
            APPEND: appended;
            REPEAT_LAST: repeated;
            CHOOSE: chosen;
            default: accept;
        }
    }
    state kept { meta.kept = hdr.labels.last; transition accept; }
    state appended {
        packet.extract(hdr.extra);
        hdr.labels.next = hdr.extra;
        hdr.extra.setInvalid();
        transition accept;
    }
    state repeated { hdr.labels.next = hdr.labels.last; transition accept; }
    state chosen {
        meta.kept = hdr.labels[0].value == 1 ? hdr.labels[0] : hdr.labels[1];
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 255;
        if (sm.parser_error == error.StackOutOfBounds) { hdr.command.failure = 1; }
        if (meta.kept.isValid()) {
            hdr.extra.setValid();
            hdr.extra.value = meta.kept.value;
            hdr.extra.spare = 7;
            hdr.extra.more = meta.kept.more;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
