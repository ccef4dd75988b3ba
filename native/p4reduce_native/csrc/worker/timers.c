/* SPDX-License-Identifier: Apache-2.0 */
/* When to send a contribution again, and which: docs/protocol.md, "Round trips", "When nothing
 * comes" and "Who asks". */
#include "worker/worker.h"

#include <math.h>

#define ALPHA (1.0 / 8)
#define BETA (1.0 / 4)
#define VARIATIONS 4.0
#define QUIET 0.5    /* of the timeout */
#define APART 1e-9   /* seconds: frames of one batch are sent one after the other */
#define DOUBLINGS 10 /* of the frames that ask for all: more than there are slots */

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

static void answered(struct p4r_timeout *timeout, double sent_at, double now)
{
    timeout->answered_up_to = fmax(timeout->answered_up_to, sent_at);
    timeout->answered_at = now;
}

static double after(const struct p4r_timeout *timeout, int64_t retransmissions)
{
    int doubled = (int)(retransmissions < 30 ? retransmissions : 30);
    return fmin(ldexp(timeout->seconds, doubled), timeout->ceiling);
}

/* How long a contribution waits, by how often it was repeated. */
static double waits(const struct p4r_slots *slots, const struct p4r_timeout *timeout, int64_t tries)
{
    return slots->stretch * after(timeout, tries / slots->tries_a_doubling + slots->deferral);
}

/* And one that was sent once. */
static double usual(const struct p4r_slots *slots)
{
    return slots->deferral ? waits(slots, &slots->timeout, 0) : slots->timeout.seconds;
}

int p4r_quiet(const struct p4r_slots *slots, double now)
{
    return now - slots->heard_switch_at >= slots->timeout.seconds * QUIET;
}

void p4r_missed(struct p4r_slots *slots, uint32_t slot, double now)
{
    if (isfinite(slots->due[slot]) && now - slots->sent_at[slot] >= slots->timeout.seconds / 2)
        slots->due[slot] = slots->sent_at[slot];
}

void p4r_timers_answered(struct p4r_slots *slots, uint32_t slot, int heard, int quiet, double now)
{
    if (!isfinite(slots->due[slot]))
        return; /* not sent yet */
    if (!heard) {
        p4r_missed(slots, slot, now);
    } else if (slots->deferral || !slots->tries[slot]) {
        slots->tries[slot]++;
        slots->backed_off = 1;
        double due = now + waits(slots, &slots->timeout, slots->tries[slot]);
        slots->due[slot] = fmax(slots->due[slot], due);
        if (!quiet || !slots->deferral)
            return;
        for (uint32_t other = 0; other < slots->slots; other++)
            if (isfinite(slots->due[other]) && slots->tries[other] == 0)
                slots->due[other] = fmax(slots->due[other], due);
    }
}

static int any(const uint8_t *flags, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (flags[i])
            return 1;
    return 0;
}

/* Something was lost after all: timers that are held back run out as they would have, but not
 * before the rank whose turn it is could ask. */
static void stop_holding(struct p4r_slots *slots, double now)
{
    double wait = usual(slots), soonest = now + wait - slots->timeout.seconds;

    for (uint32_t slot = 0; slot < slots->slots; slot++)
        if (isfinite(slots->due[slot]) && slots->tries[slot] == 0)
            slots->due[slot] = fmin(slots->due[slot], fmax(slots->sent_at[slot] + wait, soonest));
}

/* There is no reason left to wait for long: the ranks are there and the switch answers. */
static void calm_down(struct p4r_slots *slots, uint32_t count, double now)
{
    double soon = now + usual(slots);

    for (uint32_t i = 0; i < count; i++)
        slots->tries[slots->completed[i]] = 0;
    slots->backed_off = 0;
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        slots->backed_off |= slots->tries[slot] != 0;
        if (isfinite(slots->due[slot]))
            slots->due[slot] = fmin(slots->due[slot], soon);
    }
}

int64_t p4r_timers_completed(struct p4r_slots *slots, uint32_t count, double now, int64_t *troubled)
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
        if (counted)
            answered(slots->opening[slot] ? &slots->opening_timeout : &slots->timeout,
                     slots->sent_at[slot], now);
        if (slots->opening[slot]) {
            slots->opening[slot] = 0;
            rounds--;
            if (!tried)
                longest_opening = fmax(longest_opening, seconds);
            continue;
        }
        *troubled += tried && (counted || !(slots->how[i] & P4R_ANSWERED));
        if (counted) {
            longest = fmax(longest, seconds);
            slots->round_trips[slots->round_trip_count++ % P4R_ROUND_TRIPS] = seconds;
        }
    }
    if (lost)
        stop_holding(slots, now);
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
            slots->sent_at[slot] = now + (double)i * APART;
        double wait = waits(slots, &slots->timeout, slots->tries[slot]);
        /* A frame that opens a stripe waits in the same queues as others. */
        if (slots->opening[slot])
            wait = fmax(wait, waits(slots, &slots->opening_timeout, slots->tries[slot]));
        slots->due[slot] = now + wait;
    }
}

void p4r_expire_timers(struct p4r_slots *slots, int waiting, double now)
{
    for (uint32_t slot = 0; slot < slots->slots; slot++)
        if (waiting ? slots->expected[slot] != P4R_IDLE : isfinite(slots->due[slot]))
            slots->due[slot] = fmin(slots->sent_at[slot], now);
}

double p4r_next_due(const struct p4r_slots *slots, uint32_t *in_flight)
{
    double due = INFINITY;

    *in_flight = 0;
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        *in_flight += slots->due[slot] != INFINITY;
        due = slots->due[slot] < due ? slots->due[slot] : due;
    }
    for (uint32_t i = 0; i < slots->live_count; i++)
        due = slots->live[i]->deadline < due ? slots->live[i]->deadline : due;
    return due;
}

/* Send a slot's last frame again. One without payload is padded from now on, so that a result fits
 * into it. */
static void repeat(struct p4r_slots *slots, uint32_t slot, double now)
{
    struct p4r_trace *trace = slots->streams[slot]->trace;

    (void)p4r_pad(slots, slot);
    *p4r_flags(slots, slot) |=
        (uint8_t)(slots->asks_for_all ? P4R_FLAG_RETRANSMISSION | P4R_FLAG_TELL_ALL
                                      : P4R_FLAG_RETRANSMISSION);
    slots->tries[slot]++;
    slots->backed_off = 1;
    slots->due[slot] = INFINITY; /* until it is sent */
    slots->counts.retransmissions++;
    slots->counts.frames_sent++;
    slots->counts.bytes_sent += slots->lengths[slots->row[slot]];
    if (trace)
        p4r_trace_repeated(trace, now);
    p4r_queue(slots, slot);
}

/* Until when a contribution may stand in a queue behind others, as far as this rank can know: none
 * that was sent later has been answered (RFC 8985, section 6.2, step 5), and answers do come (RFC
 * 6298, section 5.3). So it is slow rather than lost. A timer that is due since its frame was sent
 * has been told that it is lost. */
static double behind_until(const struct p4r_slots *slots, uint32_t slot)
{
    const struct p4r_timeout *timeout =
        slots->opening[slot] ? &slots->opening_timeout : &slots->timeout;

    if (slots->tries[slot] || slots->due[slot] <= slots->sent_at[slot] ||
        slots->sent_at[slot] < timeout->answered_up_to)
        return -INFINITY;
    return timeout->answered_at + slots->timeout.seconds * QUIET;
}

/* The timers of some slots have run out, of one class: what that waits for says nothing of others.
 *
 * All are repeated, unless nothing at all comes: then a rank is late, rather than a frame lost in
 * each slot. So one frame asks for all, the next time two do, then four. They are the first ones in
 * the order that all ranks have, so that all ask for the same. */
static void expire_class(struct p4r_slots *slots, uint32_t first, uint32_t stop, double now)
{
    uint32_t count = 0, number;

    for (uint32_t slot = first; slot < stop; slot++) {
        if (slots->due[slot] > now)
            continue;
        double until = behind_until(slots, slot);
        if (until <= now) {
            slots->sorted[count++] = slot;
            continue;
        }
        slots->due[slot] = until;
        if (!slots->opening[slot])
            p4r_window_outgrown(slots);
    }
    number = count;
    if (count > 1 && p4r_quiet(slots, now)) {
        p4r_sort_by_order(slots, count);
        int64_t tries = slots->tries[slots->sorted[0]];
        number = 1u << (tries < DOUBLINGS ? tries : DOUBLINGS);
        number = number < count ? number : count;
        for (uint32_t i = number; i < count; i++)
            slots->due[slots->sorted[i]] = now + waits(slots, &slots->timeout, tries + 1);
    }
    for (uint32_t i = 0; i < number; i++)
        repeat(slots, (uint32_t)slots->sorted[i], now);
}

void p4r_expire(struct p4r_slots *slots, double now)
{
    uint32_t stop = slots->slots;

    for (uint32_t class = slots->classes; class-- > 0; stop = slots->starts[class])
        expire_class(slots, slots->starts[class], stop, now);
    for (uint32_t i = 0; i < slots->live_count && !slots->trouble; i++)
        if (slots->live[i]->deadline <= now) {
            slots->trouble = P4R_DEADLINE;
            slots->trouble_sequence = slots->live[i]->sequence;
        }
}
