/* SPDX-License-Identifier: Apache-2.0 */
/* Signs of numbers, their mean magnitudes, and what they leave: torch/hooks/votes.py. */
#include "worker/compress.h"
#include "worker/wide.h"

int32_t p4r_votes(uint32_t numbers, const uint8_t *gradient, const uint8_t *residual,
                  uint64_t count, uint64_t shared, uint8_t *wanted, int8_t *votes, float *means)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH], other[P4R_STRETCH];
    uint64_t beyond = 0;

    assert(shared % P4R_STRETCH == 0 && !residual == !wanted);
    for (uint64_t first = 0; first < count; first += shared) {
        uint64_t end = p4r_least(first + shared, count);
        struct p4r_sums sums = {{0}};
        for (uint64_t from = first; from < end; from += P4R_STRETCH) {
            uint64_t some = p4r_least(P4R_STRETCH, end - from), at = from * size;
            p4r_widen(numbers, gradient + at, some, wide);
            if (residual) {
                p4r_widen(numbers, residual + at, some, other);
                for (uint64_t i = 0; i < some; i++)
                    wide[i] += other[i];
                p4r_narrow(numbers, wide, some, wanted + at);
            }
            for (uint64_t i = 0; i < some; i++) {
                votes[from + i] = (int8_t)((wide[i] > 0) - (wide[i] < 0));
                other[i] = __builtin_fabs(wide[i]);
                beyond += !(other[i] < __builtin_inf());
            }
            if (means)
                p4r_add(&sums, other, some);
        }
        if (means)
            *means++ = (float)(p4r_total(&sums) / (double)(end - first));
    }
    return beyond == 0;
}

/* Integers of one or two bytes as floats. */
static void widen_tallies(const uint8_t *tallies, uint32_t bytes, uint64_t count, double *to)
{
    assert(bytes == 1 || bytes == 2);
    for (uint64_t i = 0; bytes == 1 && i < count; i++)
        to[i] = (double)(int8_t)tallies[i];
    for (uint64_t i = 0; bytes == 2 && i < count; i++) {
        int16_t tally;
        memcpy(&tally, tallies + 2 * i, sizeof tally);
        to[i] = (double)tally;
    }
}

void p4r_votes_majority(uint32_t numbers, const uint8_t *tallies, uint32_t bytes, uint64_t count,
                        double more, uint8_t *result)
{
    double wide[P4R_STRETCH];

    for (uint64_t first = 0; first < count; first += P4R_STRETCH) {
        uint64_t some = p4r_least(P4R_STRETCH, count - first);
        widen_tallies(tallies + first * bytes, bytes, some, wide);
        for (uint64_t i = 0; i < some; i++)
            wide[i] = p4r_sign(wide[i]) + more;
        p4r_narrow(numbers, wide, some, result + first * p4r_float_bytes(numbers));
    }
}

void p4r_votes_settle(uint32_t numbers, uint8_t *wanted, const uint8_t *before, uint64_t count,
                      uint64_t shared, const float *means, const uint8_t *tallies, uint32_t bytes,
                      uint64_t ranks, uint8_t *result)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH], left[P4R_STRETCH], past[P4R_STRETCH] = {0}, votes[P4R_STRETCH];

    assert(shared % P4R_STRETCH == 0);
    for (uint64_t first = 0; first < count; first += P4R_STRETCH) {
        uint64_t some = p4r_least(P4R_STRETCH, count - first), at = first * size;
        double mean = (double)means[first / shared];
        float each = means[first / shared] / (float)ranks;
        p4r_widen(numbers, wanted + at, some, wide);
        if (before)
            p4r_widen(numbers, before + at, some, past);
        widen_tallies(tallies + first * bytes, bytes, some, votes);
        for (uint64_t i = 0; i < some; i++) {
            left[i] = wide[i] - p4r_sign(wide[i]) * mean;
            votes[i] = (double)((float)votes[i] * each);
        }
        p4r_narrow(numbers, left, some, wanted + at);
        for (uint64_t i = 0; i < some; i++) {
            double own = __builtin_isfinite(wide[i]) ? wide[i] : past[i];
            left[i] = __builtin_isfinite(left[i]) ? left[i] : own;
        }
        p4r_narrow(numbers, left, some, wanted + at);
        p4r_narrow(numbers, votes, some, result + at);
    }
}
