/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that left by the CPU port and wait for Python. */
#ifndef P4R_LOOP_PACKET_IN_H
#define P4R_LOOP_PACKET_IN_H

#include <stdint.h>

/* Python is called at the end of the iteration, so these wait for one iteration only. */
enum { P4R_MOST_PACKET_INS = 4096 };

struct p4r_packet_ins {
    uint8_t *bytes; /* each a length (32 bits) and the frame */
    uint32_t used, room;
    uint32_t count;
    uint32_t next; /* where Python reads on */
};

/* 0, or -1: too many wait, or no memory. */
int p4r_packet_in_push(struct p4r_packet_ins *, const uint8_t *frame, uint32_t length);
/* The length of the next, or -1: that were all, and they are forgotten. */
int64_t p4r_packet_in_next(struct p4r_packet_ins *, const uint8_t **frame);
void p4r_packet_ins_free(struct p4r_packet_ins *);

#endif
