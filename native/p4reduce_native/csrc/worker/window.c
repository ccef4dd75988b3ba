/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots may send, and which: docs/protocol.md, "Window". */
#include "worker/worker.h"

#include <math.h>
#include <string.h>

#define TARGET 0.02
#define LEAST_RESULTS 32
#define TROUBLED 0.25
#define QUEUEING 4
#define CAREFULLY 8
#define LEAD 16 /* blocks that a switch may be ahead of others */

/* Returns the number that would be at `which` if they were sorted; puts them in another order. */
static double select_double(double *numbers, int64_t count, int64_t which)
{
    int64_t low = 0, high = count - 1;

    while (low < high) {
        double pivot = numbers[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (numbers[i] < pivot)
                i++;
            while (numbers[j] > pivot)
                j--;
            if (i <= j) {
                double number = numbers[i];
                numbers[i++] = numbers[j];
                numbers[j--] = number;
            }
        }
        if (which <= j)
            high = j;
        else if (which >= i)
            low = i;
        else
            break;
    }
    return numbers[which];
}

/* Sort the first slots of `sorted` by their order: Shell's way. */
void p4r_sort_by_order(struct p4r_slots *slots, uint32_t count)
{
    int64_t *sorted = slots->sorted;

    for (uint32_t gap = count / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (uint32_t i = gap; i < count; i++) {
            int64_t slot = sorted[i];
            uint32_t j = i;
            for (; j >= gap && slots->order[sorted[j - gap]] > slots->order[slot]; j -= gap)
                sorted[j] = sorted[j - gap];
            sorted[j] = slot;
        }
}

/* -- Round trips: statistics.RoundTrips ---------------------------------------------------------- */

static int64_t kept_round_trips(const struct p4r_slots *slots)
{
    return slots->round_trip_count < P4R_ROUND_TRIPS ? slots->round_trip_count : P4R_ROUND_TRIPS;
}

static double typical_round_trip(struct p4r_slots *slots, int64_t number)
{
    int64_t kept = kept_round_trips(slots);
    int64_t end = slots->round_trip_count;

    number = number < kept ? number : kept;
    if (!number)
        return 0.0;
    for (int64_t i = 0; i < number; i++)
        slots->samples[i] = slots->round_trips[(end - number + i) % P4R_ROUND_TRIPS];
    return select_double(slots->samples, number, number / 2);
}

static double shortest_round_trip(const struct p4r_slots *slots)
{
    int64_t kept = kept_round_trips(slots);
    double shortest = kept ? slots->round_trips[0] : 0.0;

    for (int64_t i = 1; i < kept; i++)
        shortest = slots->round_trips[i] < shortest ? slots->round_trips[i] : shortest;
    return shortest;
}

/* -- Window -------------------------------------------------------------------------------------- */

static int queues(const struct p4r_slots *slots, double typical)
{
    return typical > QUEUEING * fmax(shortest_round_trip(slots), slots->silence);
}

static void shrink(struct p4r_slots *slots, double factor)
{
    int64_t size = (int64_t)((double)slots->window * factor);

    slots->window = size > slots->floor ? size : slots->floor;
    slots->growth = CAREFULLY;
    slots->settling = 1;
}

static void end_period(struct p4r_slots *slots)
{
    double typical = typical_round_trip(slots, slots->results), queue = 0.0;
    int troubled = (double)slots->troubled > TROUBLED * (double)slots->results;

    slots->timeout.ceiling = fmax(slots->timeout.least_ceiling, 2 * typical);
    /* It takes longer to find out whether it is a queue, and mostly makes no difference. */
    if ((troubled || typical > TARGET / 2) && queues(slots, typical))
        queue = typical;
    if (slots->settling) {
        slots->settling = 0;
    } else if (queue > 0 && troubled) {
        shrink(slots, 0.5);
    } else if (queue > TARGET) {
        shrink(slots, fmax(TARGET / queue, 0.5));
    } else if (queue <= TARGET / 2) {
        int64_t more = slots->window / slots->growth;
        slots->window += more > 1 ? more : 1;
        if (slots->window > slots->slots)
            slots->window = slots->slots;
    }
    slots->results = slots->troubled = 0;
    slots->silence /= 2; /* pauses do not come in every period */
}

void p4r_window_completed(struct p4r_slots *slots, int64_t results, int64_t troubled)
{
    slots->results += results;
    slots->troubled += troubled;
    if (slots->results >= slots->window && slots->results >= LEAST_RESULTS)
        end_period(slots);
}

void p4r_window_outgrown(struct p4r_slots *slots) { slots->growth = CAREFULLY; }

void p4r_window_heard(struct p4r_slots *slots, double now)
{
    slots->silence = fmax(slots->silence, now - slots->latest);
    slots->latest = now;
}

/* -- Progress of switches side by side ----------------------------------------------------------- */

/* The first collective that is cut among several switches; NULL: there is none. */
static const struct p4r_stream *cut_stream(const struct p4r_slots *slots)
{
    for (uint32_t i = 0; i < slots->live_count; i++)
        if (slots->live[i]->progress.at)
            return slots->live[i];
    return NULL;
}

static double place_of(const struct p4r_progress *progress, uint32_t which)
{
    double at;

    __atomic_load(&progress->at[which], &at, __ATOMIC_RELAXED);
    return at;
}

/* The window of a switch that is ahead of the slowest one. Where they share links, what it leaves free
 * is theirs, and a collective is over when its last part is. */
static int64_t window_beside_others(const struct p4r_slots *slots, const struct p4r_stream *stream)
{
    const struct p4r_progress *progress = &stream->progress;
    double least = INFINITY;

    for (uint32_t i = 0; i < progress->count; i++)
        least = fmin(least, place_of(progress, i));
    double ahead = (place_of(progress, progress->own) - least) * (double)stream->count - LEAD;
    return slots->window - (int64_t)fmin(fmax(ahead, 0.0), (double)(slots->window / 2));
}

void p4r_window_passed(const struct p4r_stream *stream, int64_t block, int64_t next)
{
    const struct p4r_progress *progress = &stream->progress;

    if (!progress->at)
        return;
    /* Blocks that no rank has are passed with the one before them. */
    const int64_t stop = next == P4R_NO_BLOCK ? stream->count + stream->stripes - 1 : next;
    const double passed = block == P4R_OPENING ? 0 : (double)((stop - block) / stream->stripes);
    double at = place_of(progress, progress->own) + passed / fmax((double)stream->count, 1);
    if (!stream->left[0])
        at = fmax(at, progress->before + 1);
    __atomic_store(&progress->at[progress->own], &at, __ATOMIC_RELAXED);
}

/* -- Gate ---------------------------------------------------------------------------------------- */

/* Whether collectives of several classes are under way. */
static int mixes_classes(const struct p4r_slots *slots)
{
    for (uint32_t i = 1; i < slots->live_count; i++)
        if (slots->live[i]->first != slots->live[0]->first)
            return 1;
    return 0;
}

/* The number of slots of the class that has most. */
static uint32_t widest_class(const struct p4r_slots *slots)
{
    uint32_t widest = 0, stop = slots->slots;

    for (uint32_t class = slots->classes; class-- > 0; stop = slots->starts[class])
        if (stop - slots->starts[class] > widest)
            widest = stop - slots->starts[class];
    return widest;
}

/* The first slots in the order of classes, collectives and stripes, which all ranks have. The first
 * slot of each class with something to do is held back by no rank, however much their windows
 * differ, and whatever else they have called.
 *
 * All classes together have as many blocks under way as the widest of them has alone. So a higher
 * class takes the link from a lower one, instead of sharing it. Stripes that are not open yet do
 * not count: they wait for ranks, and not for the link. */
uint32_t p4r_release(struct p4r_slots *slots, int64_t *out)
{
    uint32_t busy = 0, found = 0, queued = slots->queued_count;

    if (!queued && !slots->holds_back)
        return 0;
    const int mixed = mixes_classes(slots);
    const struct p4r_stream *cut = mixed ? NULL : cut_stream(slots);
    const int64_t window = cut ? window_beside_others(slots, cut) : slots->window;

    slots->queued_count = 0;
    if (!slots->holds_back && window >= slots->slots && !mixed) {
        for (uint32_t i = 0; i < queued; i++) {
            int64_t slot = slots->queued[i];
            slots->waiting[slot] = 0;
            if (slots->order[slot] != P4R_LAST)
                out[found++] = slots->row[slot];
        }
        return found;
    }
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        if (slots->order[slot] == P4R_LAST)
            slots->waiting[slot] = 0;
        else
            slots->sorted[busy++] = slot;
    }
    p4r_sort_by_order(slots, busy);
    slots->holds_back = 0;
    uint32_t class = slots->classes, class_start = slots->slots, open = 0;
    uint32_t widest = widest_class(slots);
    for (uint32_t i = 0; i < busy; i++) {
        int64_t slot = slots->sorted[i];
        int opening = slots->block[slot] == P4R_OPENING;
        int first = slot < class_start, ahead = open < widest;
        while (slot < class_start)
            class_start = slots->starts[--class];
        open += !opening;
        if (!slots->waiting[slot])
            continue;
        if (window && (first || (i < window && (ahead || opening)))) {
            slots->waiting[slot] = 0;
            out[found++] = slots->row[slot];
        } else {
            slots->holds_back = 1;
        }
    }
    if (cut && window)
        cut->progress.held_back[cut->progress.own] +=
            found * ((double)slots->window / (double)window - 1);
    return found;
}
