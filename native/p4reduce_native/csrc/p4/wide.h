/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of more than 128 bits: limbs of 64 bits, the lowest first, two's complement where they
 * can be negative. Generated code does operations without a carry itself, in loops that the compiler
 * vectorises. Those with a carry are here. `count` is the number of limbs. */
#ifndef P4R_P4_WIDE_H
#define P4R_P4_WIDE_H

#include "bytes.h"

P4R_INLINE void p4r_wide_zero(uint64_t *to, unsigned count) { memset(to, 0, count * sizeof *to); }

P4R_INLINE void p4r_wide_copy(uint64_t *to, const uint64_t *from, unsigned count)
{
    memmove(to, from, count * sizeof *to);
}

P4R_INLINE bool p4r_wide_negative(const uint64_t *value, unsigned count)
{
    return value[count - 1] >> 63;
}

/* Make a number of `from_count` limbs one of `count`, larger ones. */
P4R_INLINE void p4r_wide_extend(uint64_t *to, unsigned count, const uint64_t *from,
                                unsigned from_count, bool is_signed)
{
    const uint64_t fill = is_signed && p4r_wide_negative(from, from_count) ? UINT64_MAX : 0;
    for (unsigned i = 0; i < from_count; i++)
        to[i] = from[i];
    for (unsigned i = from_count; i < count; i++)
        to[i] = fill;
}

P4R_INLINE void p4r_wide_from_u128(uint64_t *to, unsigned count, p4r_u128 value)
{
    p4r_wide_zero(to, count);
    to[0] = (uint64_t)value;
    if (count > 1)
        to[1] = (uint64_t)(value >> 64);
}

P4R_INLINE void p4r_wide_from_i128(uint64_t *to, unsigned count, p4r_i128 value)
{
    p4r_wide_from_u128(to, count, (p4r_u128)value);
    for (unsigned i = 2; i < count; i++)
        to[i] = value < 0 ? UINT64_MAX : 0;
}

/* Clear the bits from `width` on. */
P4R_INLINE void p4r_wide_cut(uint64_t *value, unsigned count, unsigned width)
{
    for (unsigned i = width / 64; i < count; i++)
        value[i] &= i == width / 64 && width % 64 ? (UINT64_C(1) << width % 64) - 1 : 0;
}

/* Take the low `width` bits as a two's complement number. */
P4R_INLINE void p4r_wide_signed(uint64_t *value, unsigned count, unsigned width)
{
    p4r_wide_cut(value, count, width);
    if (!(value[(width - 1) / 64] >> (width - 1) % 64 & 1))
        return;
    for (unsigned i = width / 64; i < count; i++)
        value[i] |= i == width / 64 && width % 64 ? UINT64_MAX << width % 64 : UINT64_MAX;
}

P4R_INLINE void p4r_wide_add(uint64_t *to, const uint64_t *left, const uint64_t *right,
                             unsigned count)
{
    uint64_t carry = 0;
    for (unsigned i = 0; i < count; i++) {
        const p4r_u128 sum = (p4r_u128)left[i] + right[i] + carry;
        to[i] = (uint64_t)sum;
        carry = (uint64_t)(sum >> 64);
    }
}

P4R_INLINE void p4r_wide_subtract(uint64_t *to, const uint64_t *left, const uint64_t *right,
                                  unsigned count)
{
    uint64_t borrow = 0;
    for (unsigned i = 0; i < count; i++) {
        const p4r_u128 difference = (p4r_u128)left[i] - right[i] - borrow;
        to[i] = (uint64_t)difference;
        borrow = (uint64_t)(difference >> 64) & 1;
    }
}

P4R_INLINE void p4r_wide_negate(uint64_t *value, unsigned count)
{
    uint64_t carry = 1;
    for (unsigned i = 0; i < count; i++) {
        value[i] = ~value[i] + carry;
        carry = carry && !value[i];
    }
}

/* Modulo 2^(64 * count); `to` is neither operand. */
static P4R_UNUSED void p4r_wide_multiply(uint64_t *restrict to, const uint64_t *left,
                                         const uint64_t *right, unsigned count)
{
    p4r_wide_zero(to, count);
    for (unsigned i = 0; i < count; i++) {
        uint64_t carry = 0;
        for (unsigned j = 0; i + j < count; j++) {
            const p4r_u128 sum = (p4r_u128)left[i] * right[j] + to[i + j] + carry;
            to[i + j] = (uint64_t)sum;
            carry = (uint64_t)(sum >> 64);
        }
    }
}

/* Shifts by any amount; `to` is not `from`. */
static P4R_UNUSED void p4r_wide_shl(uint64_t *restrict to, const uint64_t *from, unsigned count,
                                    uint64_t by)
{
    const uint64_t limbs = by / 64;
    const unsigned bits = by % 64;
    for (unsigned i = count; i-- > 0;) {
        uint64_t value = i >= limbs ? from[i - limbs] << bits : 0;
        if (bits && i > limbs)
            value |= from[i - limbs - 1] >> (64 - bits);
        to[i] = value;
    }
}

static P4R_UNUSED void p4r_wide_shr(uint64_t *restrict to, const uint64_t *from, unsigned count,
                                    uint64_t by, bool is_signed)
{
    const uint64_t fill = is_signed && p4r_wide_negative(from, count) ? UINT64_MAX : 0;
    const uint64_t limbs = by / 64;
    const unsigned bits = by % 64;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t low = limbs < count - i ? from[i + limbs] : fill;
        const uint64_t high = limbs + 1 < count - i ? from[i + limbs + 1] : fill;
        to[i] = bits ? low >> bits | high << (64 - bits) : low;
    }
}

/* An amount to shift by, which may be larger than any that leaves something, or negative. */
P4R_INLINE uint64_t p4r_wide_amount(const uint64_t *by, unsigned count)
{
    for (unsigned i = 1; i < count; i++)
        if (by[i])
            return UINT64_MAX;
    return by[0];
}

P4R_INLINE bool p4r_wide_less(const uint64_t *left, const uint64_t *right, unsigned count,
                              bool is_signed)
{
    if (is_signed && p4r_wide_negative(left, count) != p4r_wide_negative(right, count))
        return p4r_wide_negative(left, count);
    for (unsigned i = count; i-- > 0;)
        if (left[i] != right[i])
            return left[i] < right[i];
    return false;
}

P4R_INLINE bool p4r_wide_is_zero(const uint64_t *value, unsigned count)
{
    uint64_t any = 0;
    for (unsigned i = 0; i < count; i++)
        any |= value[i];
    return !any;
}

/* Unsigned division bit by bit; a quotient and a rest of `count` limbs, which are not operands.
 * By zero both are zero. */
static P4R_UNUSED void p4r_wide_divide_unsigned(uint64_t *quotient, uint64_t *rest,
                                                const uint64_t *left, const uint64_t *right,
                                                unsigned count)
{
    p4r_wide_zero(quotient, count);
    p4r_wide_zero(rest, count);
    if (p4r_wide_is_zero(right, count))
        return;
    for (unsigned bit = 64 * count; bit-- > 0;) {
        const bool carry = p4r_wide_negative(rest, count);
        for (unsigned i = count; i-- > 1;)
            rest[i] = rest[i] << 1 | rest[i - 1] >> 63;
        rest[0] = rest[0] << 1 | (left[bit / 64] >> bit % 64 & 1);
        if (carry || !p4r_wide_less(rest, right, count, false)) {
            p4r_wide_subtract(rest, rest, right, count);
            quotient[bit / 64] |= UINT64_C(1) << bit % 64;
        }
    }
}

/* Division rounded down, as Python's. Changes the operands where they are negative. */
static P4R_UNUSED void p4r_wide_divide(uint64_t *quotient, uint64_t *rest, uint64_t *left,
                                       uint64_t *right, unsigned count, bool is_signed)
{
    const bool left_negative = is_signed && p4r_wide_negative(left, count);
    const bool right_negative = is_signed && p4r_wide_negative(right, count);
    if (left_negative)
        p4r_wide_negate(left, count);
    if (right_negative)
        p4r_wide_negate(right, count);
    p4r_wide_divide_unsigned(quotient, rest, left, right, count);
    if (left_negative != right_negative) {
        const bool exact = p4r_wide_is_zero(rest, count);
        if (!exact) { /* one further down */
            p4r_wide_subtract(rest, right, rest, count);
            for (unsigned i = 0; i < count && !++quotient[i]; i++)
                ;
        }
        p4r_wide_negate(quotient, count);
    }
    if (right_negative)
        p4r_wide_negate(rest, count);
}

/* `bytes` bytes of a frame; the limbs that they do not fill become zero. */
P4R_INLINE void p4r_wide_load(uint64_t *to, unsigned count, const uint8_t *from, unsigned bytes)
{
    const unsigned whole = bytes / 8;
    P4R_LIMBS
    for (unsigned i = 0; i < whole; i++)
        to[i] = p4r_load64(from + bytes - 8 * (i + 1));
    for (unsigned i = whole; i < count; i++) {
        to[i] = 0;
        if (i == whole)
            for (unsigned at = 0; at < bytes % 8; at++)
                to[i] = to[i] << 8 | from[at];
    }
}

P4R_INLINE void p4r_wide_store(uint8_t *to, const uint64_t *from, unsigned bytes)
{
    const unsigned whole = bytes / 8;
    P4R_LIMBS
    for (unsigned i = 0; i < whole; i++)
        p4r_store64(to + bytes - 8 * (i + 1), from[i]);
    for (unsigned at = 0; at < bytes % 8; at++)
        to[at] = (uint8_t)(from[whole] >> 8 * (bytes % 8 - 1 - at));
}

#endif
