/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's loop in C, for the progress thread and for callers: contract with
 * worker/p4reduce/protocol/native_iteration.py. */
#ifndef P4R_WORKER_ITERATION_H
#define P4R_WORKER_ITERATION_H

#include <stddef.h>

#include "link/link.h"
#include "worker/link_lock.h"
#include "worker/receive_backoff.h"
#include "worker/worker.h"

/* How frames get to the switch and back: functions of link.h, or of Python, where a transport is no
 * link. What they do and return is said in link.h. After an error Python knows what is wrong. */
struct p4r_transport_ops {
    struct p4r_link *link; /* given to each of them; NULL: it is no link */
    int (*send_rows)(struct p4r_link *, const uint8_t *base, size_t stride, const int64_t *lengths,
                     const int64_t *rows, int count);
    int (*look)(struct p4r_link *, uint8_t *rows, size_t stride, size_t room, size_t head,
                int64_t *lengths, const uint8_t **frames, int most);
    void (*drop)(struct p4r_link *, int count); /* NULL: nothing has to be done */
    int (*wait)(struct p4r_link *, int wake_fd, int timeout_ms, int how);
    void (*unbind)(struct p4r_link *); /* NULL: no wait binds the thread */
};

struct p4r_iteration {
    struct p4r_slots *slots;
    struct p4r_transport_ops ops;
    uint8_t *received; /* rows of a FrameBuffer, as many as `most` */
    int64_t *received_lengths;
    int64_t *backlog; /* rows that may be sent, and have not been yet */
    double asked_at;  /* seconds: when something was first sent since the switch last answered */
    double left_at; /* seconds: when the loop was left with something under way; 0: with nothing */
    int64_t asked;  /* how often something was sent since `asked_at` */
    uint32_t backlog_count, backlog_room;
    int32_t wake_fd; /* readable after a wake; does not block */
    int32_t error;   /* an errno, of the transport */

    struct p4r_link_lock *lock; /* of the link; NULL: the progress thread alone uses it */
    uint32_t events;            /* what callers have left to Python, as bits */
    uint32_t most;              /* frames in a batch */

    struct p4r_receive_backoff backoff;
};

enum {
    P4R_ITERATION_WOKEN = 1,     /* somebody wrote to `wake_fd` */
    P4R_ITERATION_EVENTS = 2,    /* collectives are over, or nothing can be summed any more */
    P4R_ITERATION_OVERSLEPT = 8, /* waiting has taken much longer than it should */
    P4R_ITERATION_BROKEN = 16,   /* the transport cannot be used any more */
    P4R_ITERATION_PAUSED = 32,   /* only a caller: again, when signals have been seen to */
    P4R_ITERATION_DONE = 64,     /* only a caller: the collective is over, as it should be */
    P4R_ITERATION_REFUSED = 128, /* only a caller: the progress thread runs the loop */
};

/* Drive the engines of the jobs on one port, at least one, until there is something for Python, or for
 * some milliseconds of work. Returns bits of P4R_ITERATION_*, of all jobs together. For the progress
 * thread, which holds the lock.
 *
 * If nothing is under way, callers may drive first, until somebody writes to `wake_fd`, the link's
 * peer hangs up, or no caller has driven for `quiet_ms`. */
uint32_t p4r_iteration_run(struct p4r_iteration *const *iterations, uint32_t count, int quiet_ms);

/* The same for a caller: drives one engine until `stream` is over, which it submits first if nobody has.
 * `iterations`: of the lock, as the caller has read them; REFUSED if the progress thread has had it
 * since. `counted`: whether the stream is one of p4r_counts.collectives. DONE: nothing is left. PAUSED:
 * handle signals, and call this again. Else wake the progress thread, which does the rest. */
uint32_t p4r_iteration_call(struct p4r_iteration *iteration, const struct p4r_stream *stream,
                            uint32_t iterations, uint32_t counted);

#endif
