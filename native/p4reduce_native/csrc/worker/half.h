/* SPDX-License-Identifier: Apache-2.0 */
/* float16 (IEEE 754 binary16) to float32 and back, rounded to nearest, ties to even, as numpy does.
 * In integers: not every compiler's run-time library has these conversions. */
#ifndef P4R_WORKER_HALF_H
#define P4R_WORKER_HALF_H

#include <stdint.h>
#include <string.h>

static inline float p4r_float_of_bits(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline uint32_t p4r_bits_of_float(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static inline float p4r_float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23); /* the difference of the biases */
    uint32_t subnormal = p4r_bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
    uint32_t not_finite = magnitude << 13 | 0x7f800000u;
    return p4r_float_of_bits(sign | (magnitude < 0x7c00u ? finite : not_finite));
}

static inline uint16_t p4r_half_of_float(float number)
{
    uint32_t bits = p4r_bits_of_float(number);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    /* Normal in float16: the lowest 13 bits are rounded off, at a tie to even. A carry continues into
     * the exponent, up to infinity. */
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    /* Subnormal: the sum with 0.5 has the result's last bit where float32's last bit is. */
    uint32_t subnormal = p4r_bits_of_float(p4r_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;
    /* NaN keeps the part of its payload that fits. If that is zero, a bit is set, so that it does not
     * become infinity. */
    uint32_t payload = magnitude >> 13 & 0x3ffu;
    result = magnitude > 0x7f800000u ? 0x7c00u | payload | (payload == 0) : result;
    return (uint16_t)(sign | result);
}

#endif
