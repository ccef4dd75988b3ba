/* SPDX-License-Identifier: Apache-2.0 */
/* A stretch of floats of any type as float64, where sums, differences and products of two of them,
 * rounded to their type in the end, have the bits that their own arithmetic gives. */
#ifndef P4R_WORKER_WIDE_H
#define P4R_WORKER_WIDE_H

#include "worker/half.h"
#include "worker/worker.h"

#include <assert.h>
#include <string.h>

#define P4R_STRETCH 256 /* numbers at a time: a multiple of 8 */
#define P4R_BEYOND 0x1p128

static inline uint64_t p4r_least(uint64_t one, uint64_t other) { return one < other ? one : other; }

static inline uint64_t p4r_float_bytes(uint32_t numbers)
{
    assert(numbers >= P4R_FLOAT16 && numbers <= P4R_FLOAT64);
    return (uint64_t)1 << numbers;
}

static inline void p4r_widen(uint32_t numbers, const uint8_t *from, uint64_t count, double *to)
{
    assert(count <= P4R_STRETCH);
    if (numbers == P4R_FLOAT16) {
        for (uint64_t i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, from + 2 * i, sizeof half);
            to[i] = (double)p4r_float_of_half(half);
        }
    } else if (numbers == P4R_FLOAT32) {
        for (uint64_t i = 0; i < count; i++) {
            float number;
            memcpy(&number, from + 4 * i, sizeof number);
            to[i] = (double)number;
        }
    } else {
        memcpy(to, from, 8 * count);
    }
}

/* Rounds numbers to their type, in `wide` and in memory. */
static inline void p4r_narrow(uint32_t numbers, double *wide, uint64_t count, uint8_t *to)
{
    if (numbers == P4R_FLOAT16) {
        for (uint64_t i = 0; i < count; i++) {
            uint16_t half = p4r_half_of_float((float)wide[i]);
            memcpy(to + 2 * i, &half, sizeof half);
            wide[i] = (double)p4r_float_of_half(half);
        }
    } else if (numbers == P4R_FLOAT32) {
        for (uint64_t i = 0; i < count; i++) {
            float number = (float)wide[i];
            memcpy(to + 4 * i, &number, sizeof number);
            wide[i] = (double)number;
        }
    } else {
        memcpy(to, wide, 8 * count);
    }
}

/* 1, -1, or 0 for zero and NaN. */
static inline double p4r_sign(double number) { return (double)((number > 0) - (number < 0)); }

/* Eight partial sums. */
struct p4r_sums {
    double part[8];
};

static inline double p4r_total(const struct p4r_sums *sums)
{
    const double *part = sums->part;
    return ((part[0] + part[4]) + (part[2] + part[6])) +
           ((part[1] + part[5]) + (part[3] + part[7]));
}

/* Adds products; the first of them belongs to part `phase`. */
static inline void p4r_add_products(struct p4r_sums *sums, const double *one, const double *other,
                                    uint64_t count, unsigned phase)
{
    uint64_t at = 0;
    for (; phase && at < count; at++, phase = (phase + 1) & 7)
        sums->part[phase] += one[at] * other[at];
    struct p4r_sums own = *sums; /* a copy can stay in registers */
    for (; at + 8 <= count; at += 8)
        for (uint64_t j = 0; j < 8; j++)
            own.part[j] += one[at + j] * other[at + j];
    for (uint64_t j = 0; at < count; at++, j++)
        own.part[j] += one[at] * other[at];
    *sums = own;
}

/* Adds numbers; the first of them belongs to part 0. */
static inline void p4r_add(struct p4r_sums *sums, const double *wide, uint64_t count)
{
    struct p4r_sums own = *sums;
    uint64_t at = 0;
    for (; at + 8 <= count; at += 8)
        for (uint64_t j = 0; j < 8; j++)
            own.part[j] += wide[at + j];
    for (uint64_t j = 0; at < count; at++, j++)
        own.part[j] += wide[at];
    *sums = own;
}

static inline int p4r_all_within(const double *wide, uint64_t count)
{
    uint64_t beyond = 0;
    for (uint64_t i = 0; i < count; i++)
        beyond += !(__builtin_fabs(wide[i]) < P4R_BEYOND); /* NaN compares false */
    return beyond == 0;
}

static inline int p4r_any(const double *wide, uint64_t count)
{
    uint64_t some = 0;
    for (uint64_t i = 0; i < count; i++)
        some += wide[i] != 0;
    return some != 0;
}

#endif
