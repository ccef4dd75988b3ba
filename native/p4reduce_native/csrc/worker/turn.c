/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's loop: send, receive, go on, wait; until there is something for Python. */
#include "worker/turn.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "link/link.h"

#define LONGEST_WAIT 60.0  /* seconds; only bounds what is woken anyway */
#define LONGEST_RUN 0.05   /* seconds of work after which Python sees the figures */
#define LONGEST_PAUSE 0.05 /* seconds that a caller sleeps without looking for signals */
#define OVERSLEPT 1.0      /* seconds longer than asked for: the process was stopped, or starved */

static double seconds_now(void) { return (double)p4r_now_ns() * 1e-9; }

/* Send what may be sent; what the link does not take waits for room. */
static int flush(struct p4r_turn *turn, double now)
{
    struct p4r_slots *slots = turn->slots;

    turn->backlog_count += p4r_let_out(slots, turn->backlog + turn->backlog_count);
    if (!turn->backlog_count)
        return 0;
    int sent = p4r_link_send_rows(turn->link, slots->outgoing + P4R_BUFFER_PAD, P4R_BUFFER_STRIDE,
                                  slots->lengths, turn->backlog, (int)turn->backlog_count);
    if (sent < 0)
        return sent;
    p4r_sent(slots, turn->backlog, (uint64_t)sent, now);
    turn->backlog_count -= (uint32_t)sent;
    memmove(turn->backlog, turn->backlog + sent, turn->backlog_count * sizeof *turn->backlog);
    turn->asked_at = fmin(turn->asked_at, now);
    turn->asked++;
    return 0;
}

static void forget_asking(struct p4r_turn *turn)
{
    if (!turn->slots->live_count || turn->slots->heard_switch_at >= turn->asked_at) {
        turn->asked_at = INFINITY;
        turn->asked = 0;
    }
}

/* Take what has come. Returns how many frames that were, or minus an errno. */
static int receive(struct p4r_turn *turn)
{
    struct p4r_slots *slots = turn->slots;
    const uint8_t *frames[P4R_LINK_MOST];
    int count = p4r_link_look(turn->link, turn->received + P4R_BUFFER_PAD, P4R_BUFFER_STRIDE,
                              P4R_BUFFER_STRIDE - P4R_BUFFER_PAD, P4R_PAYLOAD_OFFSET,
                              turn->received_lengths, frames, (int)turn->most);

    if (count <= 0)
        return count;
    double now = seconds_now();
    p4r_receive_from(slots, turn->received, turn->received_lengths, frames, (uint32_t)count, now);
    p4r_nap_received(&turn->nap, (uint32_t)count, now);
    p4r_link_drop(turn->link, count);
    forget_asking(turn);
    return count;
}

static int is_woken(int wake_fd)
{
    struct pollfd wait = {.fd = wake_fd, .events = POLLIN};

    return poll(&wait, 1, 0) == 1;
}

static uint32_t broken(struct p4r_turn *turn, int code)
{
    turn->error = -code;
    return P4R_TURN_BROKEN;
}

static int is_due(const struct p4r_turn *turn, double now)
{
    uint32_t under_way;

    return p4r_next_due(turn->slots, &under_way) <= now;
}

/* A stopped process has not waited: before Python says that the others are missing, it has to hear
 * whether it is missed itself. */
static uint32_t overslept(double began, double seconds)
{
    return seconds_now() - began > seconds + OVERSLEPT ? P4R_TURN_OVERSLEPT : 0;
}

/* Wait for frames, or sleep until several have come, unless it `has_slept` and none had. `looked`: when
 * there were none. Returns 0 to go on, or why not. */
static uint32_t wait_for_more(struct p4r_turn *turn, double looked, double now, int called,
                              int *has_slept)
{
    uint32_t under_way;
    double due = p4r_next_due(turn->slots, &under_way);
    double nap = fmin(p4r_nap_until(&turn->nap, under_way), due) - now;

    *has_slept = !*has_slept && !turn->backlog_count && nap > 0;
    if (*has_slept) {
        p4r_sleep_until((uint64_t)((now + nap) * 1e9), turn->wake_fd);
        return overslept(now, nap);
    }
    if (due <= looked)
        return 0;
    double seconds = fmin(fmax(due - now, 0.0), called ? LONGEST_PAUSE : LONGEST_WAIT);
    int woken = p4r_link_wait(turn->link, turn->wake_fd, (int)ceil(seconds * 1000),
                              turn->backlog_count != 0);
    if (woken < 0)
        return broken(turn, woken);
    uint32_t why = overslept(now, seconds);
    if (called && !woken) /* a signal perhaps, whose handler only Python can call */
        why |= P4R_TURN_PAUSED;
    return woken & P4R_LINK_WOKEN ? why | P4R_TURN_WOKEN : why;
}

/* Whether somebody wants something of the progress thread. */
static int is_wanted(const struct p4r_turn *turn, int called)
{
    return called ? p4r_link_lock_is_awaited(turn->lock) : is_woken(turn->wake_fd);
}

static uint32_t loop(struct p4r_turn *turn, int called, double began)
{
    struct p4r_slots *slots = turn->slots;
    double now = began, looked = began;
    int count = (int)turn->most, has_slept = 0, code;

    for (;;) {
        if ((code = flush(turn, now)) < 0)
            return broken(turn, code);
        if (slots->over_count || slots->trouble)
            return P4R_TURN_NEWS;
        if (now - began > LONGEST_RUN)
            return called ? P4R_TURN_PAUSED : 0;
        /* What has come counts before timers do: after a pause, answers lie in the queue. However
         * late this thread has its turn, a timer was due before the latest look. */
        if (count < (int)turn->most && is_due(turn, looked)) {
            p4r_expire(slots, looked);
            forget_asking(turn);
            continue;
        }
        /* A full backlog is sent before anything else is taken on. */
        int full = turn->backlog_count + slots->slots > turn->backlog_room;
        looked = seconds_now();
        if (looked - now > OVERSLEPT)
            return P4R_TURN_OVERSLEPT;
        if ((count = full ? 0 : receive(turn)) < 0)
            return broken(turn, count);
        now = seconds_now();
        has_slept &= !count;
        if (count && !is_wanted(turn, called))
            continue;
        if (count) {
            code = flush(turn, now);
            return code < 0 ? broken(turn, code) : P4R_TURN_WOKEN | P4R_TURN_NEWS;
        }
        uint32_t why = wait_for_more(turn, looked, now, called, &has_slept);
        if (why)
            return why;
        began += seconds_now() - now; /* waiting is no work */
        now = seconds_now();
    }
}

static uint32_t run(struct p4r_turn *turn, int called)
{
    double began = seconds_now(), left_at = turn->left_at;

    turn->left_at = 0;
    uint32_t why =
        left_at > 0 && began - left_at > OVERSLEPT ? P4R_TURN_OVERSLEPT : loop(turn, called, began);
    turn->left_at = turn->slots->live_count ? seconds_now() : 0;
    return why;
}

/* Let callers drive. Returns P4R_TURN_WOKEN if there is something else to do than to listen. */
static uint32_t let_callers_drive(struct p4r_turn *turn, int quiet_ms)
{
    /* Frames are no reason to wake: they are for the caller that drives. */
    struct pollfd waits[2] = {
        {.fd = p4r_link_fd(turn->link), .events = POLLRDHUP},
        {.fd = turn->wake_fd, .events = POLLIN},
    };
    struct p4r_link_lock *lock = turn->lock;
    uint32_t calls = __atomic_load_n(&lock->calls, __ATOMIC_RELAXED), before;
    int events;

    p4r_link_lock_release(lock);
    do {
        before = calls;
        events = poll(waits, 2, quiet_ms);
        calls = __atomic_load_n(&lock->calls, __ATOMIC_RELAXED);
    } while (events == 0 && calls != before);
    /* What is asked for is looked at after this. */
    return p4r_link_lock_take(lock) || waits[1].revents != 0 ? P4R_TURN_WOKEN : 0;
}

static uint32_t run_for_thread(struct p4r_turn *turn, int quiet_ms)
{
    uint32_t why = turn->lock && !turn->slots->live_count ? let_callers_drive(turn, quiet_ms) : 0;
    uint64_t wakes;

    if (!why)
        why = run(turn, 0);
    if (why & P4R_TURN_WOKEN && read(turn->wake_fd, &wakes, sizeof wakes) < 0 && errno != EAGAIN)
        return broken(turn, -errno);
    return why;
}

/* Whether all that has happened is that the collective is over. */
static int is_all_done(struct p4r_turn *turn, const struct p4r_stream *stream, uint32_t why,
                       uint32_t counted)
{
    struct p4r_slots *slots = turn->slots;

    if (why != P4R_TURN_NEWS || slots->trouble || !slots->over_count || slots->live_count ||
        stream->left[1] != P4R_NO_OVERFLOW)
        return 0;
    slots->over_count = 0;
    slots->counts.collectives += counted;
    turn->asked_at = INFINITY;
    turn->asked = 0;
    return 1;
}

static uint32_t run_for_caller(struct p4r_turn *turn, const struct p4r_stream *stream,
                               uint32_t turns, uint32_t counted)
{
    struct p4r_link_lock *lock = turn->lock;

    if (!p4r_link_lock_try(lock, turns, turn))
        return P4R_TURN_REFUSED;
    if (stream->sequence >= turn->slots->next_sequence) {
        p4r_submit(turn->slots, stream, seconds_now());
        turn->asked_at = INFINITY;
        turn->asked = 0;
    }
    uint32_t why = run(turn, 1);
    if (is_all_done(turn, stream, why, counted)) {
        why = P4R_TURN_DONE;
        lock->unfinished = NULL;
    } else {
        turn->events |= why;
        lock->unfinished = turn;
    }
    p4r_link_lock_release(lock);
    return why;
}

uint32_t p4r_turn_run(struct p4r_turn *turn, const struct p4r_stream *stream, uint32_t turns,
                      uint32_t counted, int quiet_ms)
{
    return stream ? run_for_caller(turn, stream, turns, counted) : run_for_thread(turn, quiet_ms);
}
