/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of a port's engines: send, receive, go on, wait; until there is something for Python. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "worker/iteration.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

#define LONGEST_WAIT 60.0  /* seconds; only bounds what is woken anyway */
#define LONGEST_RUN 0.05   /* seconds of work after which Python sees the figures */
#define LONGEST_PAUSE 0.05 /* seconds that a caller sleeps without looking for signals */
#define LONG_ROUNDS 10     /* of a collective for which it is worth binding a thread */
#define LONG_RUN 50        /* frames; more would add little */
#define OVERSLEPT 1.0      /* seconds longer than asked for: the process was stopped, or starved */

static double seconds_now(void) { return (double)p4r_now_ns() * 1e-9; }

/* Send what may be sent; what the link does not take waits for room. */
static int flush(struct p4r_iteration *iteration, double now)
{
    struct p4r_slots *slots = iteration->slots;

    iteration->backlog_count += p4r_release(slots, iteration->backlog + iteration->backlog_count);
    assert(iteration->backlog_count <= iteration->backlog_room);
    if (!iteration->backlog_count)
        return 0;
    int sent = iteration->ops.send_rows(iteration->ops.link, slots->outgoing + P4R_BUFFER_PAD,
                                        P4R_BUFFER_STRIDE, slots->lengths, iteration->backlog,
                                        (int)iteration->backlog_count);
    if (sent == -EPIPE) /* lost; what the switch has sent comes first, and then its end */
        sent = (int)iteration->backlog_count;
    if (sent < 0)
        return sent;
    p4r_sent(slots, iteration->backlog, (uint64_t)sent, now);
    iteration->backlog_count -= (uint32_t)sent;
    memmove(iteration->backlog, iteration->backlog + sent,
            iteration->backlog_count * sizeof *iteration->backlog);
    iteration->asked_at = fmin(iteration->asked_at, now);
    iteration->asked++;
    return 0;
}

static void forget_asking(struct p4r_iteration *iteration)
{
    if (!iteration->slots->live_count || iteration->slots->heard_switch_at >= iteration->asked_at) {
        iteration->asked_at = INFINITY;
        iteration->asked = 0;
    }
}

/* -- All jobs of a run -------------------------------------------------------------------------- */

/* They have one way to the switch, lock and wake_fd, and the same rows to receive into. */
struct jobs {
    struct p4r_iteration *const *iterations;
    uint32_t count;
    uint32_t first; /* whose frames are sent first: each in turn, as the link may become full */
};

static uint32_t broken(const struct jobs *jobs, int code)
{
    jobs->iterations[0]->error = -code;
    return P4R_ITERATION_BROKEN;
}

static int flush_all(struct jobs *jobs, double now)
{
    for (uint32_t i = 0; i < jobs->count; i++) {
        int code = flush(jobs->iterations[(jobs->first + i) % jobs->count], now);
        if (code < 0)
            return code;
    }
    jobs->first = (jobs->first + 1) % jobs->count;
    return 0;
}

static int is_in_flight(const struct jobs *jobs)
{
    for (uint32_t i = 0; i < jobs->count; i++)
        if (jobs->iterations[i]->slots->live_count)
            return 1;
    return 0;
}

static int is_event(const struct jobs *jobs)
{
    for (uint32_t i = 0; i < jobs->count; i++)
        if (jobs->iterations[i]->slots->over_count || jobs->iterations[i]->slots->trouble)
            return 1;
    return 0;
}

/* Whether frames wait for room in the link; or, with `full`, so many that no more are taken on. */
static int is_backlogged(const struct jobs *jobs, int full)
{
    for (uint32_t i = 0; i < jobs->count; i++) {
        const struct p4r_iteration *iteration = jobs->iterations[i];
        uint32_t most = full ? iteration->backlog_room - iteration->slots->slots : 0;
        if (iteration->backlog_count > most)
            return 1;
    }
    return 0;
}

/* Whether the thread is to be bound: a collective takes many rounds of all its slots, and none calls
 * Python, whose threads would inherit it. */
static int is_worth_binding(const struct jobs *jobs)
{
    int is_long = 0;

    for (uint32_t i = 0; i < jobs->count; i++) {
        const struct p4r_slots *slots = jobs->iterations[i]->slots;
        for (uint32_t live = 0; live < slots->live_count; live++) {
            const struct p4r_stream *stream = slots->live[live];
            if (!stream->reads || !stream->writes)
                return 0;
            is_long |= stream->count >= LONG_ROUNDS * stream->slots;
        }
    }
    return is_long;
}

/* When the first timer of all jobs runs out. `in_flight`: how many run. */
static double next_due(const struct jobs *jobs, uint32_t *in_flight)
{
    double due = INFINITY;
    uint32_t its;

    *in_flight = 0;
    for (uint32_t i = 0; i < jobs->count; i++) {
        if (!jobs->iterations[i]->slots->live_count)
            continue;
        due = fmin(due, p4r_next_due(jobs->iterations[i]->slots, &its));
        *in_flight += its;
    }
    return due;
}

/* Do what was due at a time. Returns whether anything was. */
static int expire(const struct jobs *jobs, double at)
{
    int any = 0;
    uint32_t in_flight;

    for (uint32_t i = 0; i < jobs->count; i++) {
        struct p4r_iteration *iteration = jobs->iterations[i];
        if (!iteration->slots->live_count || p4r_next_due(iteration->slots, &in_flight) > at)
            continue;
        p4r_expire(iteration->slots, at);
        forget_asking(iteration);
        any = 1;
    }
    return any;
}

/* Which job's answer a frame is. A frame of none goes to the first one, which counts it. */
static uint32_t whose(const struct jobs *jobs, const uint8_t *frame)
{
    for (uint32_t i = 0; i < jobs->count; i++) {
        const struct p4r_slots *slots = jobs->iterations[i]->slots;
        if (p4r_get_job(frame) == slots->job && p4r_get_rank(frame) == slots->rank)
            return i;
    }
    return 0;
}

/* Give each job its frames, in order. */
static void hand_out(const struct jobs *jobs, const uint8_t *const *frames, uint32_t count,
                     double now)
{
    const struct p4r_iteration *link = jobs->iterations[0];
    uint32_t owners[P4R_LINK_MOST], which[P4R_LINK_MOST];

    for (uint32_t i = 0; i < count; i++)
        owners[i] = whose(jobs, link->received + (uint64_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD);
    for (uint32_t job = 0; job < jobs->count; job++) {
        uint32_t its = 0;
        for (uint32_t i = 0; i < count; i++)
            if (owners[i] == job)
                which[its++] = i;
        if (its)
            p4r_receive_from(jobs->iterations[job]->slots, link->received, link->received_lengths,
                             frames, which, its, now);
    }
}

/* Take what has come. Returns how many frames that were, or minus an errno. */
static int receive(const struct jobs *jobs)
{
    struct p4r_iteration *link = jobs->iterations[0];
    const uint8_t *frames[P4R_LINK_MOST];
    int count = link->ops.look(link->ops.link, link->received + P4R_BUFFER_PAD, P4R_BUFFER_STRIDE,
                               P4R_BUFFER_STRIDE - P4R_BUFFER_PAD, P4R_PAYLOAD_OFFSET,
                               link->received_lengths, frames, (int)link->most);

    if (count <= 0)
        return count;
    double now = seconds_now();
    if (jobs->count == 1)
        p4r_receive_from(link->slots, link->received, link->received_lengths, frames, NULL,
                         (uint32_t)count, now);
    else
        hand_out(jobs, frames, (uint32_t)count, now);
    p4r_receive_backoff_received(&link->backoff, (uint32_t)count, now);
    if (link->ops.drop)
        link->ops.drop(link->ops.link, count);
    for (uint32_t i = 0; i < jobs->count; i++)
        forget_asking(jobs->iterations[i]);
    return count;
}

/* -- The loop ----------------------------------------------------------------------------------- */

static int is_woken(int wake_fd)
{
    struct pollfd wait = {.fd = wake_fd, .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

/* A stopped process has not waited: before Python says that the others are missing, it has to hear
 * whether it is missed itself. */
static uint32_t overslept(double began, double seconds)
{
    return seconds_now() - began > seconds + OVERSLEPT ? P4R_ITERATION_OVERSLEPT : 0;
}

/* Wait for frames, or sleep until several have come, unless it `has_slept` and none had. `looked`: when
 * there were none. Returns 0 to go on, or why not. */
static uint32_t wait_for_more(const struct jobs *jobs, double looked, double now, int called,
                              int *has_slept)
{
    struct p4r_iteration *link = jobs->iterations[0];
    uint32_t in_flight;
    int backlogged = is_backlogged(jobs, 0);
    double due = next_due(jobs, &in_flight);
    double backoff = fmin(p4r_receive_backoff_until(&link->backoff, in_flight), due) - now;

    *has_slept = !*has_slept && !backlogged && backoff > 0;
    if (*has_slept) {
        p4r_sleep_until((uint64_t)((now + backoff) * 1e9), link->wake_fd);
        return overslept(now, backoff);
    }
    if (due <= looked)
        return 0;
    double seconds = fmin(fmax(due - now, 0.0), called ? LONGEST_PAUSE : LONGEST_WAIT);
    int how = (backlogged ? P4R_LINK_FOR_ROOM : 0) | (is_worth_binding(jobs) ? P4R_LINK_PLACED : 0);
    int woken = link->ops.wait(link->ops.link, link->wake_fd, (int)ceil(seconds * 1000), how);
    if (woken < 0)
        return broken(jobs, woken);
    uint32_t why = overslept(now, seconds);
    if (called && !woken) /* a signal perhaps, whose handler only Python can call */
        why |= P4R_ITERATION_PAUSED;
    return woken & P4R_LINK_WOKEN ? why | P4R_ITERATION_WOKEN : why;
}

/* Whether the progress thread has a request. */
static int is_wanted(const struct p4r_iteration *iteration, int called)
{
    return called ? p4r_link_lock_is_awaited(iteration->lock) : is_woken(iteration->wake_fd);
}

/* Receives, and receives again if few frames came and the kernel carries them. Answers to both then
 * leave together. */
static int receive_more(const struct jobs *jobs)
{
    const int count = receive(jobs);

    if (count <= 0 || count >= LONG_RUN || !jobs->iterations[0]->backoff.allowed)
        return count;
    const int more = receive(jobs);
    return more < 0 ? more : count + more;
}

static uint32_t loop(struct jobs *jobs, int called, double began)
{
    struct p4r_iteration *link = jobs->iterations[0];
    double now = began, looked = began;
    int count = (int)link->most, has_slept = 0, code;

    for (;;) {
        if ((code = flush_all(jobs, now)) < 0)
            return broken(jobs, code);
        if (is_event(jobs))
            return P4R_ITERATION_EVENTS;
        if (now - began > LONGEST_RUN)
            return called ? P4R_ITERATION_PAUSED : 0;
        /* What has come counts before timers do: after a pause, answers lie in the queue. However
         * late this thread has its turn, a timer was due before the latest look. */
        if (count < (int)link->most && expire(jobs, looked))
            continue;
        /* A full backlog is sent before anything else is taken on. */
        int full = is_backlogged(jobs, 1);
        looked = seconds_now();
        if (looked - now > OVERSLEPT)
            return P4R_ITERATION_OVERSLEPT;
        if ((count = full ? 0 : receive_more(jobs)) < 0)
            return broken(jobs, count);
        now = seconds_now();
        if (!count && now - looked > OVERSLEPT) /* stopped while it looked */
            return P4R_ITERATION_OVERSLEPT;
        has_slept &= !count;
        if (count && !is_wanted(link, called))
            continue;
        if (count) {
            code = flush_all(jobs, now);
            return code < 0 ? broken(jobs, code) : P4R_ITERATION_WOKEN | P4R_ITERATION_EVENTS;
        }
        uint32_t why = wait_for_more(jobs, looked, now, called, &has_slept);
        if (why)
            return why;
        double waited = seconds_now() - now;
        began += waited; /* waiting is not work */
        now += waited;
    }
}

/* Since when nobody has looked after what is under way. */
static double unattended_since(const struct p4r_iteration *iteration)
{
    const struct p4r_slots *slots = iteration->slots;

    /* What Python has ended meanwhile is not under way any more. */
    if (!slots->live_count)
        return INFINITY;
    return iteration->left_at > 0 ? iteration->left_at : slots->live[0]->unattended_since;
}

static uint32_t run(struct jobs *jobs, int called)
{
    double began = seconds_now();
    uint32_t why = 0;

    for (uint32_t i = 0; i < jobs->count; i++) {
        assert(!jobs->iterations[i]->lock ||
               __atomic_load_n(&jobs->iterations[i]->lock->state, __ATOMIC_RELAXED) != P4R_FREE);
        if (began - unattended_since(jobs->iterations[i]) > OVERSLEPT)
            why = P4R_ITERATION_OVERSLEPT;
    }
    why = why ? why : loop(jobs, called, began);
    if (jobs->iterations[0]->ops.unbind)
        jobs->iterations[0]->ops.unbind(jobs->iterations[0]->ops.link);
    for (uint32_t i = 0; i < jobs->count; i++)
        jobs->iterations[i]->left_at = jobs->iterations[i]->slots->live_count ? seconds_now() : 0;
    return why;
}

uint32_t p4r_iteration_run(struct p4r_iteration *const *iterations, uint32_t count, int quiet_ms)
{
    struct jobs jobs = {.iterations = iterations, .count = count};
    const struct p4r_iteration *iteration = iterations[0];
    uint32_t why = 0;
    uint64_t wakes;

    if (iteration->lock && !is_in_flight(&jobs) &&
        p4r_link_lock_lend(iteration->lock, iteration->wake_fd, quiet_ms))
        why = P4R_ITERATION_WOKEN;
    if (!why)
        why = run(&jobs, 0);
    if (why & P4R_ITERATION_WOKEN && read(iteration->wake_fd, &wakes, sizeof wakes) < 0 &&
        errno != EAGAIN)
        return broken(&jobs, -errno);
    return why;
}

/* Whether all that has happened is that the collective is over. */
static int is_all_done(struct p4r_iteration *iteration, const struct p4r_stream *stream,
                       uint32_t why, uint32_t counted)
{
    struct p4r_slots *slots = iteration->slots;

    if (why != P4R_ITERATION_EVENTS || slots->trouble || !slots->over_count || slots->live_count ||
        stream->left[1] != P4R_NO_OVERFLOW)
        return 0;
    slots->over_count = 0;
    slots->counts.collectives += counted;
    iteration->asked_at = INFINITY;
    iteration->asked = 0;
    return 1;
}

uint32_t p4r_iteration_call(struct p4r_iteration *iteration, const struct p4r_stream *stream,
                            uint32_t iterations, uint32_t counted)
{
    struct p4r_link_lock *lock = iteration->lock;
    struct jobs jobs = {.iterations = &iteration, .count = 1};

    if (!p4r_link_lock_try(lock, iterations, iteration))
        return P4R_ITERATION_REFUSED;
    if (stream->sequence >= iteration->slots->next_sequence) {
        p4r_submit(iteration->slots, stream, seconds_now());
        iteration->asked_at = INFINITY;
        iteration->asked = 0;
    }
    uint32_t why = run(&jobs, 1);
    if (is_all_done(iteration, stream, why, counted)) {
        why = P4R_ITERATION_DONE;
        lock->unfinished = NULL;
    } else {
        iteration->events |= why;
        lock->unfinished = iteration;
    }
    p4r_link_lock_release(lock);
    return why;
}
