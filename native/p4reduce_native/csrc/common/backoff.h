/* SPDX-License-Identifier: Apache-2.0 */
/* When to try again what has failed for a reason whose end no event reports: a device without memory,
 * a host without a route. */
#ifndef P4R_COMMON_BACKOFF_H
#define P4R_COMMON_BACKOFF_H

#include <stdint.h>

#include "common/clock.h"

enum { P4R_BACKOFF_LEAST_NS = 1000000, P4R_BACKOFF_MOST_NS = 64000000 };

/* Zeros: nothing has failed. */
struct p4r_backoff {
    uint64_t until_ns; /* of CLOCK_MONOTONIC: no try before; 0: at once */
    uint64_t pause_ns; /* the latest one; each is twice as long as the one before */
};

static inline void p4r_backoff_fail(struct p4r_backoff *backoff)
{
    const uint64_t twice = 2 * backoff->pause_ns;
    backoff->pause_ns = twice == 0                    ? (uint64_t)P4R_BACKOFF_LEAST_NS
                        : twice < P4R_BACKOFF_MOST_NS ? twice
                                                      : (uint64_t)P4R_BACKOFF_MOST_NS;
    backoff->until_ns = p4r_now_ns() + backoff->pause_ns;
}

/* Whether it is too early for the next try; if not, the pause is over. */
static inline int p4r_backoff_holds(struct p4r_backoff *backoff)
{
    if (backoff->until_ns == 0)
        return 0;
    if (p4r_now_ns() < backoff->until_ns)
        return 1;
    backoff->until_ns = 0;
    return 0;
}

#endif
