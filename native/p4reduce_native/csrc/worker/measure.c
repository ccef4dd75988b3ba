/* SPDX-License-Identifier: Apache-2.0 */
/* Measures blocks before they are sent: measure.py. */
#include "worker/worker.h"

#include <assert.h>
#include <string.h>

#include "worker/half.h"

#define NONFINITE_EXPONENT 255
#define FLOAT64_TO_FLOAT32_BIAS (1023 - 127)

/* The bits of numbers without their signs are in the order of their magnitudes, NaN being largest. */
static uint16_t largest_half(const uint8_t *numbers, uint64_t count)
{
    uint16_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, numbers + 2 * i, sizeof bits);
        bits &= 0x7fff;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static uint32_t largest_float(const uint8_t *numbers, uint64_t count)
{
    int32_t largest = 0; /* signed: SSE2 can compare these only, and the sign is gone */
    for (uint64_t i = 0; i < count; i++) {
        int32_t bits;
        memcpy(&bits, numbers + 4 * i, sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t)largest;
}

static uint64_t largest_double(const uint8_t *numbers, uint64_t count)
{
    int64_t largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        int64_t bits;
        memcpy(&bits, numbers + 8 * i, sizeof bits);
        bits &= 0x7fffffffffffffff;
        largest = bits > largest ? bits : largest;
    }
    return (uint64_t)largest;
}

/* Adds `from` to `to` in place. The block is measured right after, while it is in the nearest cache. */
static void add_numbers(uint32_t kind, uint8_t *to, const uint8_t *from, uint64_t count)
{
    if (kind == P4R_FLOAT16) {
        for (uint64_t i = 0; i < count; i++) {
            uint16_t sum, other;
            memcpy(&sum, to + 2 * i, sizeof sum);
            memcpy(&other, from + 2 * i, sizeof other);
            sum = p4r_half_of_float(p4r_float_of_half(sum) + p4r_float_of_half(other));
            memcpy(to + 2 * i, &sum, sizeof sum);
        }
    } else if (kind == P4R_FLOAT32) {
        for (uint64_t i = 0; i < count; i++) {
            float sum, other;
            memcpy(&sum, to + 4 * i, sizeof sum);
            memcpy(&other, from + 4 * i, sizeof other);
            sum += other;
            memcpy(to + 4 * i, &sum, sizeof sum);
        }
    } else {
        for (uint64_t i = 0; i < count; i++) {
            double sum, other;
            memcpy(&sum, to + 8 * i, sizeof sum);
            memcpy(&other, from + 8 * i, sizeof other);
            sum += other;
            memcpy(to + 8 * i, &sum, sizeof sum);
        }
    }
}

static int any_bits(const uint8_t *bytes, uint64_t count)
{
    uint64_t at = 0;
    for (; at + 64 <= count; at += 64) {
        uint64_t words[8], any = 0;
        memcpy(words, bytes + at, sizeof words);
        for (int i = 0; i < 8; i++)
            any |= words[i];
        if (any)
            return 1; /* mostly in the first ones, as a gradient's block is rarely zero */
    }
    for (; at < count; at++)
        if (bytes[at])
            return 1;
    return 0;
}

int64_t p4r_measure(uint32_t kind, uint32_t number_bytes, uint8_t *base, uint64_t blocks,
                    uint64_t width, uint8_t *exponents, uint8_t *nonzero, const uint8_t *residual)
{
    const uint64_t block_bytes = width * number_bytes;

    assert(!residual || kind != P4R_INTEGERS);
    for (uint64_t i = 0; i < blocks; i++) {
        uint8_t *block = base + i * block_bytes;
        if (residual)
            add_numbers(kind, block, residual + i * block_bytes, width);
        if (kind == P4R_INTEGERS) {
            exponents[i] = 0;
            nonzero[i] = (uint8_t)any_bits(block, block_bytes);
        } else if (kind == P4R_FLOAT16) {
            uint16_t largest = largest_half(block, width);
            exponents[i] = (uint8_t)(p4r_bits_of_float(p4r_float_of_half(largest)) >> 23);
            nonzero[i] = largest != 0;
        } else if (kind == P4R_FLOAT32) {
            uint32_t largest = largest_float(block, width);
            exponents[i] = (uint8_t)(largest >> 23);
            nonzero[i] = largest != 0;
        } else {
            uint64_t largest = largest_double(block, width);
            int64_t exponent = (int64_t)(largest >> 52) - FLOAT64_TO_FLOAT32_BIAS;
            if (largest >> 52 == 2047)
                exponent = NONFINITE_EXPONENT;
            else if (exponent >= NONFINITE_EXPONENT)
                return (int64_t)i;
            exponents[i] = (uint8_t)(exponent > 0 ? exponent : 0);
            nonzero[i] = largest != 0;
        }
    }
    return -1;
}

uint64_t p4r_look_ahead(const uint8_t *nonzero, uint64_t blocks, uint64_t stripes, int64_t *next)
{
    uint64_t rounds = (blocks + stripes - 1) / stripes + 1, found = 0;

    for (uint64_t at = rounds * stripes; at-- > blocks;)
        next[at] = (int64_t)blocks;
    for (uint64_t at = blocks; at-- > 0;) {
        next[at] = nonzero[at] ? (int64_t)at : next[at + stripes];
        found += nonzero[at];
    }
    return found;
}
