/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread's loop in C: contract with worker/p4reduce/protocol/native_turn.py. */
#ifndef P4R_WORKER_TURN_H
#define P4R_WORKER_TURN_H

#include "worker/nap.h"
#include "worker/link_owner.h"
#include "worker/worker.h"

struct p4r_link;

struct p4r_turn {
    struct p4r_slots *slots;
    struct p4r_link *link;
    uint8_t *received; /* rows of a FrameBuffer, as many as `most` */
    int64_t *received_lengths;
    int64_t *backlog; /* rows that may be sent, and have not been yet */
    double asked_at;  /* when something was first sent since the switch last answered */
    double left_at;   /* when the loop was left with something under way; 0: with nothing */
    int64_t asked;    /* how often since then */
    uint32_t backlog_count, backlog_room;
    int32_t wake_fd; /* an eventfd */
    int32_t error;   /* an errno, of the link */

    /* Of collectives that callers run themselves. */
    struct p4r_link_owner *owner; /* of the link */
    int64_t lent_sequence;        /* of the latest one that has begun so */
    uint32_t lent;                /* whether one has since Python was last told */
    uint32_t lent_open;           /* whether it is left to the progress thread, or paused */
    uint32_t lent_why;            /* why the loop has returned since then, as bits */
    uint32_t most;                /* frames in a batch */

    struct p4r_nap nap;
};

enum {
    P4R_TURN_WOKEN = 1,     /* somebody wrote to `wake_fd` */
    P4R_TURN_NEWS = 2,      /* collectives are over, or nothing can be summed any more */
    P4R_TURN_OVERSLEPT = 8, /* waiting has taken much longer than it should */
    P4R_TURN_BROKEN = 16,   /* the link cannot be used any more */
    P4R_TURN_PAUSED = 32,   /* only p4r_turn_lend: go on, when signals have been seen to */
    P4R_TURN_DONE = 64,     /* only p4r_turn_lend: the collective is over, as it should be */
    P4R_TURN_REFUSED = 128, /* only p4r_turn_lend: it is the thread's turn; nothing was done */
};

/* Go on until there is something for Python, or for some milliseconds of work. Returns why it has
 * returned, as bits. */
uint32_t p4r_turn_run(struct p4r_turn *turn);

/* Run a collective in the thread that waits for it, when nothing else is under way: submit it if it
 * `begins`, and go on as p4r_turn_run. What is left unless it is DONE is for the progress thread,
 * which has to be woken; or after PAUSED for the same call once more. `taken`: of the owner, when
 * nothing else was under way. `counted`: whether it is one of p4r_counts.collectives. */
uint32_t p4r_turn_lend(struct p4r_turn *turn, const struct p4r_stream *stream, uint32_t begins,
                       uint32_t taken, uint32_t counted);

#endif
