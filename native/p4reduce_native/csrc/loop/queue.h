/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that wait to leave by a port.
 *
 * A socket's own buffer holds about 180 frames where the limits are the kernel's defaults, which is
 * less than a multicast burst of a few hundred slots. So frames that do not fit wait here.
 */
#ifndef P4R_LOOP_QUEUE_H
#define P4R_LOOP_QUEUE_H

#include <stdint.h>

#include "common/frame.h"

enum { P4R_QUEUE_FRAMES = 1024 };

struct p4r_queue {
    uint8_t *rows;
    uint32_t head;
    uint32_t count;
    uint32_t bytes;   /* of all frames in it */
    uint32_t touched; /* rows in use since memory was last given back */
    uint32_t lengths[P4R_QUEUE_FRAMES];
};

/* 0, or -1: no memory. Memory is only taken as the queue fills. */
int p4r_queue_init(struct p4r_queue *);
void p4r_queue_free(struct p4r_queue *);

/* Copies a frame; 0, or -1: the queue is full. */
int p4r_queue_push(struct p4r_queue *, const uint8_t *bytes, uint32_t length);

/* The first frames, at most `most`; they stay in the queue. Returns how many. */
int p4r_queue_peek(const struct p4r_queue *, struct p4r_frame *frames, int most);

/* Drops the first `count`. */
void p4r_queue_pop(struct p4r_queue *, uint32_t count);

#endif
