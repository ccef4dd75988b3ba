/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for Python: samples of digests, log messages, assertions that failed.
 *
 * An event is a word with its number, which says what it is (native/events.py has the list), and
 * words with its values, as many as its kind has. */
#ifndef P4R_P4_EVENTS_H
#define P4R_P4_EVENTS_H

#include "base.h"

enum { P4R_EVENT_WORDS = 1 << 16 };

struct p4r_events {
    uint64_t *words; /* P4R_EVENT_WORDS of them */
    uint32_t used;
    uint32_t count;
    uint64_t lost; /* because Python had not come for those before */
};

/* Room for the values of an event; NULL if there is none. */
P4R_INLINE uint64_t *p4r_event(struct p4r_events *events, uint32_t number, uint32_t values)
{
    if (values >= P4R_EVENT_WORDS - events->used) {
        events->lost++;
        return NULL;
    }
    uint64_t *words = events->words + events->used;
    events->used += 1 + values;
    events->count++;
    words[0] = number;
    return words + 1;
}

#endif
