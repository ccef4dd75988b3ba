/* SPDX-License-Identifier: Apache-2.0 */
/* Time, as all of p4reduce counts it: CLOCK_MONOTONIC in nanoseconds. */
#ifndef P4R_COMMON_CLOCK_H
#define P4R_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t p4r_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t p4r_now_ns(void) { return p4r_clock_ns(CLOCK_MONOTONIC); }

#endif
