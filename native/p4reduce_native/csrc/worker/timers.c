/* SPDX-License-Identifier: Apache-2.0 */
/* When a contribution is to be sent again: timers.py, which has the reasons. */
#include "worker/worker.h"

#include <math.h>

#define ALPHA (1.0 / 8)
#define BETA (1.0 / 4)
#define VARIATIONS 4.0

static void sample(struct p4r_timeout *timeout, double round_trip)
{
    if (timeout->smoothed == 0.0) {
        timeout->smoothed = round_trip;
        timeout->variation = round_trip / 2;
    } else {
        timeout->variation += BETA * (fabs(timeout->smoothed - round_trip) - timeout->variation);
        timeout->smoothed += ALPHA * (round_trip - timeout->smoothed);
    }
    double seconds = timeout->smoothed + VARIATIONS * timeout->variation;
    timeout->seconds = fmin(fmax(seconds, timeout->floor), timeout->ceiling);
}

static void measured(struct p4r_timeout *timeout, double round_trip, double now)
{
    timeout->longest = fmax(timeout->longest, round_trip);
    if (now >= timeout->window_ends) {
        sample(timeout, timeout->longest);
        timeout->longest = 0.0;
        timeout->window_ends = now + timeout->smoothed;
    }
}

static double after(const struct p4r_timeout *timeout, int64_t retransmissions)
{
    int doubled = (int)(retransmissions < 30 ? retransmissions : 30);
    return fmin(ldexp(timeout->seconds, doubled), timeout->ceiling);
}

static int any(const uint8_t *flags, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (flags[i])
            return 1;
    return 0;
}

/* Something was lost after all: timers that are held back run out as they would have. */
static void stop_holding(struct p4r_slots *slots)
{
    for (uint32_t slot = 0; slot < slots->slots; slot++)
        if (isfinite(slots->due[slot]) && slots->tries[slot] == 0)
            slots->due[slot] =
                fmin(slots->due[slot], slots->sent_at[slot] + slots->timeout.seconds);
}

/* There is no reason left to wait for long: the ranks are there and the switch answers. */
static void calm_down(struct p4r_slots *slots, uint32_t count, double now)
{
    double soon = now + slots->timeout.seconds;

    for (uint32_t i = 0; i < count; i++)
        slots->tries[slots->completed[i]] = 0;
    slots->backed_off = 0;
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        slots->backed_off |= slots->tries[slot] != 0;
        if (isfinite(slots->due[slot]))
            slots->due[slot] = fmin(slots->due[slot], soon);
    }
}

int64_t p4r_timers_completed(struct p4r_slots *slots, uint32_t count, double now,
                             int64_t *troubled)
{
    double longest = -1.0, longest_opening = -1.0;
    int64_t rounds = count;
    int lost = 0;

    *troubled = 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t slot = slots->completed[i];
        double seconds = now - slots->sent_at[slot];
        int tried = slots->tries[slot] != 0, counted = !(slots->how[i] & P4R_LATE);
        lost |= tried && !counted;
        if (slots->opening[slot]) {
            slots->opening[slot] = 0;
            rounds--;
            if (!tried)
                longest_opening = fmax(longest_opening, seconds);
            continue;
        }
        *troubled += tried && (counted || !(slots->how[i] & P4R_TOLD));
        if (counted) {
            longest = fmax(longest, seconds);
            slots->round_trips[slots->round_trip_count++ % P4R_ROUND_TRIPS] = seconds;
        }
    }
    if (lost)
        stop_holding(slots);
    if (longest_opening >= 0)
        measured(&slots->opening_timeout, longest_opening, now);
    if (rounds < count)
        slots->some_open = (uint32_t)any(slots->opening, slots->slots);
    if (longest >= 0)
        measured(&slots->timeout, longest, now);
    if (slots->backed_off)
        calm_down(slots, count, now);
    return rounds;
}

void p4r_sent(struct p4r_slots *slots, const int64_t *rows, uint64_t count, double now)
{
    for (uint64_t i = 0; i < count; i++) {
        int64_t slot = rows[i] / P4R_SHAPES;
        if (slots->expected[slot] == P4R_IDLE)
            continue; /* a repetition that left only after its result had come */
        if (slots->tries[slot] == 0)
            slots->sent_at[slot] = now;
        double wait = after(&slots->timeout, slots->tries[slot]);
        /* A frame that opens a stripe waits in the same queues as others. */
        if (slots->opening[slot])
            wait = fmax(wait, after(&slots->opening_timeout, slots->tries[slot]));
        slots->due[slot] = now + wait;
    }
}
