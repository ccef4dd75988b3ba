/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as they are in a frame: big-endian, of any number of bytes. */
#ifndef P4R_P4_BYTES_H
#define P4R_P4_BYTES_H

#include "base.h"
#include "common/byte_order.h"

P4R_INLINE uint64_t p4r_load16(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return P4R_BIG16(value);
}

P4R_INLINE uint64_t p4r_load32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return P4R_BIG32(value);
}

P4R_INLINE uint64_t p4r_load64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return P4R_BIG64(value);
}

/* `count` bytes (0..8); made for a constant `count`. */
P4R_INLINE uint64_t p4r_load(const uint8_t *from, unsigned count)
{
    switch (count) {
    case 0:
        return 0;
    case 1:
        return from[0];
    case 2:
        return p4r_load16(from);
    case 3:
        return p4r_load16(from) << 8 | from[2];
    case 4:
        return p4r_load32(from);
    case 5:
        return p4r_load32(from) << 8 | from[4];
    case 6:
        return p4r_load32(from) << 16 | p4r_load16(from + 4);
    case 7:
        return p4r_load32(from) << 24 | p4r_load16(from + 4) << 8 | from[6];
    default:
        return p4r_load64(from);
    }
}

/* `count` bytes (9..16). */
P4R_INLINE p4r_u128 p4r_load128(const uint8_t *from, unsigned count)
{
    return (p4r_u128)p4r_load(from, count - 8) << 64 | p4r_load64(from + count - 8);
}

P4R_INLINE void p4r_store16(uint8_t *to, uint64_t value)
{
    const uint16_t big = P4R_BIG16((uint16_t)value);
    memcpy(to, &big, sizeof big);
}

P4R_INLINE void p4r_store32(uint8_t *to, uint64_t value)
{
    const uint32_t big = P4R_BIG32((uint32_t)value);
    memcpy(to, &big, sizeof big);
}

P4R_INLINE void p4r_store64(uint8_t *to, uint64_t value)
{
    const uint64_t big = P4R_BIG64(value);
    memcpy(to, &big, sizeof big);
}

/* The low `count` bytes (0..8) of a number; made for a constant `count`. */
P4R_INLINE void p4r_store(uint8_t *to, uint64_t value, unsigned count)
{
    switch (count) {
    case 0:
        break;
    case 1:
        to[0] = (uint8_t)value;
        break;
    case 2:
        p4r_store16(to, value);
        break;
    case 3:
        p4r_store16(to, value >> 8);
        to[2] = (uint8_t)value;
        break;
    case 4:
        p4r_store32(to, value);
        break;
    case 5:
        p4r_store32(to, value >> 8);
        to[4] = (uint8_t)value;
        break;
    case 6:
        p4r_store32(to, value >> 16);
        p4r_store16(to + 4, value);
        break;
    case 7:
        p4r_store32(to, value >> 24);
        p4r_store16(to + 4, value >> 8);
        to[6] = (uint8_t)value;
        break;
    default:
        p4r_store64(to, value);
        break;
    }
}

/* The low `count` bytes (9..16) of a number. */
P4R_INLINE void p4r_store128(uint8_t *to, p4r_u128 value, unsigned count)
{
    p4r_store(to, (uint64_t)(value >> 64), count - 8);
    p4r_store64(to + count - 8, (uint64_t)value);
}

#endif
