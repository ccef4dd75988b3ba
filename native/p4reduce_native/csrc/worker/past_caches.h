/* SPDX-License-Identifier: Apache-2.0 */
/* Writes to memory that go past the caches, where a processor has them.
 *
 * A normal write first loads the line that it changes, and pushes another one out. Sums of a large
 * tensor are written once, line after line, and read when all of them are there: they only push out
 * what the ranks and the switch of a machine exchange.
 */
#ifndef P4R_WORKER_PAST_CACHES_H
#define P4R_WORKER_PAST_CACHES_H

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
enum { P4R_HAS_PAST_CACHES = 1 };
#else
enum { P4R_HAS_PAST_CACHES = 0 };
#endif

/* Whole lines go past the caches, and what a block shares with its neighbours does not. */
static inline void p4r_copy_past_caches(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    uint64_t at = 0;
#ifdef __SSE2__
    uint64_t edge = -(uintptr_t)to % 64;
    if (edge < bytes) {
        memcpy(to, from, edge);
        for (at = edge; at + 64 <= bytes; at += 64)
            for (uint64_t part = at; part < at + 64; part += 16)
                _mm_stream_si128((__m128i *)(void *)(to + part),
                                 _mm_loadu_si128((const __m128i *)(const void *)(from + part)));
    }
#endif
    memcpy(to + at, from + at, bytes - at);
}

/* Others see these writes before those that follow. */
static inline void p4r_fence_past_caches(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

#endif
