/* SPDX-License-Identifier: Apache-2.0 */
/* Meters: two rates, three colours (RFC 2698, colour-blind), reckoned as BMv2 and meters.py do:
 * tokens from the time at which the meter was made, in whole microseconds and doubles. The peak
 * bucket is asked first; a packet that it has no tokens for takes none from the committed one. */
#ifndef P4R_P4_METER_H
#define P4R_P4_METER_H

#include "base.h"

enum { P4R_GREEN, P4R_YELLOW, P4R_RED };

struct p4r_bucket {
    double per_microsecond;
    int64_t burst;
    int64_t tokens;
    uint64_t filled_low, filled_high; /* tokens so far, taken or not: a number of 128 bits */
};

struct p4r_meter {
    uint64_t start_ns;
    uint32_t is_configured;
    uint32_t in_bytes;
    struct p4r_bucket peak, committed;
};

P4R_INLINE bool p4r_bucket_take(struct p4r_bucket *bucket, int64_t amount, double micros)
{
    const p4r_i128 total = (p4r_i128)(micros * bucket->per_microsecond);
    const p4r_i128 filled = (p4r_i128)((p4r_u128)bucket->filled_high << 64 | bucket->filled_low);
    const p4r_i128 tokens = bucket->tokens + total - filled;
    bucket->tokens = tokens < bucket->burst ? (int64_t)tokens : bucket->burst;
    bucket->filled_low = (uint64_t)total;
    bucket->filled_high = (uint64_t)((p4r_u128)total >> 64);
    if (bucket->tokens < amount)
        return false;
    bucket->tokens -= amount;
    return true;
}

/* The colour of a packet of `size` bytes; green without a meter or without rates. */
static P4R_UNUSED uint64_t p4r_meter_execute(struct p4r_meter *meter, uint32_t size,
                                             uint64_t now_ns)
{
    if (!meter || !meter->is_configured)
        return P4R_GREEN;
    const uint64_t passed_ns = now_ns > meter->start_ns ? now_ns - meter->start_ns : 0;
    const double micros = (double)(passed_ns / 1000);
    const int64_t amount = meter->in_bytes ? size : 1;
    if (!p4r_bucket_take(&meter->peak, amount, micros))
        return P4R_RED;
    if (!p4r_bucket_take(&meter->committed, amount, micros))
        return P4R_YELLOW;
    return P4R_GREEN;
}

#endif
