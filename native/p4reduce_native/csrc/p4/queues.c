/* SPDX-License-Identifier: Apache-2.0 */
#include "queues.h"

struct p4r_queues *p4r_queues_new(uint32_t priorities, uint32_t depth, uint64_t interval_ns)
{
    const size_t count = (size_t)(P4R_QUEUE_PORTS + 1) * priorities;
    struct p4r_queues *queues = calloc(1, sizeof *queues + count * sizeof queues->queue[0]);
    if (!queues)
        return NULL;
    queues->priorities = priorities;
    for (uint32_t port = 0; port <= P4R_QUEUE_PORTS; port++) {
        queues->depth[port] = depth;
        queues->interval_ns[port] = interval_ns;
    }
    return queues;
}

void p4r_queues_free(struct p4r_queues *queues)
{
    struct p4r_queued *item;
    if (!queues)
        return;
    while ((item = p4r_queues_pop(queues, UINT64_MAX, NULL, NULL)))
        free(item);
    free(queues);
}

static uint32_t place_of(uint32_t port) { return port < P4R_QUEUE_PORTS ? port : P4R_QUEUE_PORTS; }

struct p4r_queued *p4r_queues_push(struct p4r_queues *queues, uint32_t port, uint32_t priority,
                                   size_t bytes, uint64_t now_ns)
{
    const uint32_t place = place_of(port);
    struct p4r_egress_queue *queue = &queues->queue[place * queues->priorities + priority];
    struct p4r_queued *item = queue->count < queues->depth[place] ? malloc(bytes) : NULL;
    if (!item)
        return NULL;
    const uint64_t earliest = queue->last_due_ns + queues->interval_ns[place];
    queue->last_due_ns = queue->was_used && earliest > now_ns ? earliest : now_ns;
    queue->was_used = true;
    item->next = NULL;
    item->due_ns = queue->last_due_ns;
    item->number = queues->numbers++;
    item->enqueued_ns = now_ns;
    item->port = port;
    item->priority = priority;
    item->enq_depth = queue->count;
    if (queue->last)
        queue->last->next = item;
    else
        queue->first = item;
    queue->last = item;
    queue->count++;
    if (queues->waiting[place]++ == 0)
        queues->active[queues->active_count++] = place;
    return item;
}

static bool goes_before(const struct p4r_queued *one, const struct p4r_queued *other)
{
    if (one->priority != other->priority)
        return one->priority > other->priority;
    if (one->due_ns != other->due_ns)
        return one->due_ns < other->due_ns;
    return one->number < other->number;
}

/* The first frame of the highest priority that is due. */
static struct p4r_queued *due_at(const struct p4r_queues *queues, uint32_t place, uint64_t now_ns)
{
    for (uint32_t priority = queues->priorities; priority-- > 0;) {
        struct p4r_queued *first = queues->queue[place * queues->priorities + priority].first;
        if (first && first->due_ns <= now_ns)
            return first;
    }
    return NULL;
}

static void take_out(struct p4r_queues *queues, uint32_t at, struct p4r_queued *item)
{
    const uint32_t place = queues->active[at];
    struct p4r_egress_queue *queue = &queues->queue[place * queues->priorities + item->priority];
    queue->first = item->next;
    if (!queue->first)
        queue->last = NULL;
    item->deq_depth = --queue->count;
    if (--queues->waiting[place] == 0)
        queues->active[at] = queues->active[--queues->active_count];
}

struct p4r_queued *p4r_queues_pop(struct p4r_queues *queues, uint64_t now_ns, p4r_ready ready,
                                  void *context)
{
    struct p4r_queued *best = NULL;
    uint32_t best_at = 0;
    for (uint32_t at = 0; at < queues->active_count; at++) {
        struct p4r_queued *item = due_at(queues, queues->active[at], now_ns);
        if (item && (!best || goes_before(item, best)) && (!ready || ready(context, item->port))) {
            best = item;
            best_at = at;
        }
    }
    if (best)
        take_out(queues, best_at, best);
    return best;
}

uint64_t p4r_queues_next(const struct p4r_queues *queues, p4r_ready ready, void *context)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t at = 0; at < queues->active_count; at++) {
        const uint32_t first = queues->active[at] * queues->priorities;
        for (uint32_t priority = 0; priority < queues->priorities; priority++) {
            const struct p4r_queued *item = queues->queue[first + priority].first;
            if (item && item->due_ns < next && (!ready || ready(context, item->port)))
                next = item->due_ns;
        }
    }
    return next;
}
