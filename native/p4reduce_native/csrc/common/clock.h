/* SPDX-License-Identifier: Apache-2.0 */
/* Time, as all of p4reduce counts it: CLOCK_MONOTONIC in nanoseconds. */
#ifndef P4R_COMMON_CLOCK_H
#define P4R_COMMON_CLOCK_H

#include <poll.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t p4r_clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t p4r_now_ns(void) { return p4r_clock_ns(CLOCK_MONOTONIC); }

/* Sleep until then, or until there is something to read from `fd`; returns whether there is. */
static inline int p4r_sleep_until(uint64_t then_ns, int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    const uint64_t now = p4r_now_ns(), ns = now < then_ns ? then_ns - now : 0;
#ifdef __linux__
    const struct timespec rest = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return ppoll(&wait, 1, &rest, NULL) == 1;
#else
    return poll(&wait, 1, (int)(ns / 1000000u)) == 1;
#endif
}

#endif
