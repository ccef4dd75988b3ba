/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of P4 that C does not define for all operands: the result is that of the Python
 * pipeline, which computes with integers of any size and cuts them when they are assigned. */
#ifndef P4R_P4_NUMBER_H
#define P4R_P4_NUMBER_H

#include "base.h"

/* Shifts by any amount. */
P4R_INLINE uint64_t p4r_shl64(uint64_t value, uint64_t by) { return by < 64 ? value << by : 0; }

P4R_INLINE p4r_u128 p4r_shl128(p4r_u128 value, uint64_t by) { return by < 128 ? value << by : 0; }

P4R_INLINE uint64_t p4r_shr64(uint64_t value, uint64_t by) { return by < 64 ? value >> by : 0; }

P4R_INLINE p4r_u128 p4r_shr128(p4r_u128 value, uint64_t by) { return by < 128 ? value >> by : 0; }

P4R_INLINE int64_t p4r_sar64(int64_t value, uint64_t by) { return value >> (by < 64 ? by : 63); }

P4R_INLINE p4r_i128 p4r_sar128(p4r_i128 value, uint64_t by)
{
    return value >> (by < 128 ? by : 127);
}

/* An amount to shift by, which may be larger than any that leaves something. */
P4R_INLINE uint64_t p4r_amount128(p4r_u128 by) { return by >> 64 ? UINT64_MAX : (uint64_t)by; }

/* The low `width` bits (1 and more) as a two's complement number. */
P4R_INLINE int64_t p4r_signed64(uint64_t value, unsigned width)
{
    return (int64_t)(value << (64 - width)) >> (64 - width);
}

P4R_INLINE p4r_i128 p4r_signed128(p4r_u128 value, unsigned width)
{
    return (p4r_i128)(value << (128 - width)) >> (128 - width);
}

/* Division, rounded down as Python's; by zero it gives zero. */
P4R_INLINE uint64_t p4r_div64(uint64_t left, uint64_t right) { return right ? left / right : 0; }

P4R_INLINE uint64_t p4r_mod64(uint64_t left, uint64_t right) { return right ? left % right : 0; }

P4R_INLINE p4r_u128 p4r_div128(p4r_u128 left, p4r_u128 right) { return right ? left / right : 0; }

P4R_INLINE p4r_u128 p4r_mod128(p4r_u128 left, p4r_u128 right) { return right ? left % right : 0; }

/* Of numbers that are well within 128 bits, so that nothing overflows. */
P4R_INLINE p4r_i128 p4r_floor_mod(p4r_i128 left, p4r_i128 right)
{
    if (!right)
        return 0;
    const p4r_i128 rest = left % right;
    return rest && (rest < 0) != (right < 0) ? rest + right : rest;
}

P4R_INLINE p4r_i128 p4r_floor_div(p4r_i128 left, p4r_i128 right)
{
    if (!right)
        return 0;
    return (left - p4r_floor_mod(left, right)) / right;
}

/* Saturation. */
P4R_INLINE uint64_t p4r_clamp_u64(uint64_t value, uint64_t high)
{
    return value < high ? value : high;
}

P4R_INLINE p4r_u128 p4r_clamp_u128(p4r_u128 value, p4r_u128 high)
{
    return value < high ? value : high;
}

P4R_INLINE int64_t p4r_clamp_i64(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

P4R_INLINE p4r_i128 p4r_clamp_i128(p4r_i128 value, p4r_i128 low, p4r_i128 high)
{
    return value < low ? low : value > high ? high : value;
}

#endif
