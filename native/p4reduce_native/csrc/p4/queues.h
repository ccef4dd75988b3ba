/* SPDX-License-Identifier: Apache-2.0 */
/* Egress queues: one for each port and priority, with a depth and a rate, as simple_switch's.
 *
 * A frame that is queued may leave when those before it have, at the queue's rate; of all that may
 * leave, the highest priority goes first, and then what has waited longest. state/queues.py is the
 * same in Python.
 */
#ifndef P4R_P4_QUEUES_H
#define P4R_P4_QUEUES_H

#include "../pipeline_abi.h"
#include "base.h"

enum {
    P4R_QUEUE_PORTS = 512,    /* 9 bits in v1model; what is sent beyond shares a queue of its own */
    P4R_MOST_RELEASED = 1024, /* by one call, so that circulating frames do not block others */
};

/* At the start of what the generated code queues. */
struct p4r_queued {
    struct p4r_queued *next;
    uint64_t due_ns; /* it leaves then at the earliest */
    uint64_t number; /* the order of what is due at the same time */
    uint64_t enqueued_ns;
    uint32_t port, priority;
    uint32_t enq_depth; /* how many waited before it */
    uint32_t deq_depth; /* how many wait behind it */
};

struct p4r_egress_queue {
    struct p4r_queued *first, *last;
    uint32_t count;
    bool was_used;
    uint64_t last_due_ns; /* of the last frame that was put in, if one was */
};

struct p4r_queues {
    uint32_t priorities;
    uint32_t depth[P4R_QUEUE_PORTS + 1];
    uint64_t interval_ns[P4R_QUEUE_PORTS + 1]; /* from one frame to the next; 0: any */
    uint64_t numbers;
    uint32_t active[P4R_QUEUE_PORTS + 1]; /* the ports where something waits */
    uint32_t active_count;
    uint32_t waiting[P4R_QUEUE_PORTS + 1]; /* frames of a port */
    struct p4r_egress_queue queue[];       /* by port, then by priority */
};

/* NULL: no memory. `depth` and `interval_ns` are those of all ports. */
struct p4r_queues *p4r_queues_new(uint32_t priorities, uint32_t depth, uint64_t interval_ns);
void p4r_queues_free(struct p4r_queues *queues);

/* `bytes` of memory that begin with a struct p4r_queued, at the end of its queue. NULL: the queue
 * is full, or there is no memory. `priority` is below `priorities`. */
struct p4r_queued *p4r_queues_push(struct p4r_queues *queues, uint32_t port, uint32_t priority,
                                   size_t bytes, uint64_t now_ns);
/* What leaves next, which the caller frees; NULL if nothing may leave now. `ready`: NULL for yes. */
struct p4r_queued *p4r_queues_pop(struct p4r_queues *queues, uint64_t now_ns, p4r_ready ready,
                                  void *context);
/* When the next frame of a port that is ready is due; UINT64_MAX if there is none. */
uint64_t p4r_queues_next(const struct p4r_queues *queues, p4r_ready ready, void *context);

#endif
