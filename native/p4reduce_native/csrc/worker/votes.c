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
            if (means) {
                static const double ones[P4R_STRETCH] = {[0 ... P4R_STRETCH - 1] = 1.0};
                p4r_add_products(&sums, other, ones, some, 0);
            }
        }
        if (means)
            *means++ = (float)(p4r_total(&sums) / (double)(end - first));
    }
    return beyond == 0;
}

void p4r_votes_settle(uint32_t numbers, uint8_t *wanted, const uint8_t *before, uint64_t count,
                      uint64_t shared, const float *means, const int16_t *tallies, uint64_t ranks,
                      uint8_t *result)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH], left[P4R_STRETCH], past[P4R_STRETCH] = {0};
    double votes[P4R_STRETCH];

    assert(shared % P4R_STRETCH == 0);
    for (uint64_t first = 0; first < count; first += P4R_STRETCH) {
        uint64_t some = p4r_least(P4R_STRETCH, count - first), at = first * size;
        double mean = (double)means[first / shared];
        float each = means[first / shared] / (float)ranks;
        p4r_widen(numbers, wanted + at, some, wide);
        if (before)
            p4r_widen(numbers, before + at, some, past);
        for (uint64_t i = 0; i < some; i++) {
            double sign = (double)((wide[i] > 0) - (wide[i] < 0));
            left[i] = wide[i] - sign * mean;
            votes[i] = (double)((float)tallies[first + i] * each);
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
