/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers (xoshiro256**, Blackman and Vigna 2018), seeded by Python when it loads. */
#ifndef P4R_P4_RANDOM_H
#define P4R_P4_RANDOM_H

#include "wide.h"

struct p4r_random {
    uint64_t state[4];
};

P4R_INLINE uint64_t p4r_rotate(uint64_t value, unsigned by)
{
    return value << by | value >> (64 - by);
}

static P4R_UNUSED uint64_t p4r_random_next(struct p4r_random *random)
{
    uint64_t *state = random->state;
    const uint64_t result = p4r_rotate(state[1] * 5, 7) * 9;
    const uint64_t shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = p4r_rotate(state[3], 45);
    return result;
}

/* low..high inclusive, all of them equally likely; `span` (high - low) is scratch space. All are
 * numbers of `count` limbs; the caller has checked that low <= high. */
static P4R_UNUSED void p4r_random_between(struct p4r_random *random, uint64_t *to,
                                          const uint64_t *low, const uint64_t *high, uint64_t *span,
                                          unsigned count)
{
    p4r_wide_subtract(span, high, low, count);
    unsigned top = count;
    while (top > 1 && !span[top - 1])
        top--;
    const uint64_t mask = span[top - 1] ? UINT64_MAX >> __builtin_clzll(span[top - 1]) : 0;
    p4r_wide_zero(to, count);
    do {
        for (unsigned i = 0; i < top; i++)
            to[i] = p4r_random_next(random);
        to[top - 1] &= mask;
    } while (p4r_wide_less(span, to, count, false));
    p4r_wide_add(to, to, low, count);
}

#endif
