/* SPDX-License-Identifier: Apache-2.0 */
/* The hash algorithms of v1model, over bytes, with BMv2's parameters (hashes.py says the same). */
#ifndef P4R_P4_HASH_H
#define P4R_P4_HASH_H

#include "wide.h"

/* -- The input ---------------------------------------------------------------------------------- */

/* Fields strung together bit by bit; the buffer is large enough for all of them. */
struct p4r_bits {
    uint8_t *bytes;
    size_t used;                    /* whole bytes */
    unsigned pending, pending_bits; /* those of the byte that is not full: 0..7 */
};

/* Appends the low `width` bits (0..64) of a number. */
static P4R_UNUSED void p4r_put(struct p4r_bits *bits, uint64_t value, unsigned width)
{
    if (!bits->pending_bits && width % 8 == 0) {
        for (unsigned left = width; left > 0; left -= 8)
            bits->bytes[bits->used++] = (uint8_t)(value >> (left - 8));
        return;
    }
    for (unsigned left = width; left > 0; left--) {
        bits->pending = bits->pending << 1 | (value >> (left - 1) & 1);
        if (++bits->pending_bits == 8) {
            bits->bytes[bits->used++] = (uint8_t)bits->pending;
            bits->pending = bits->pending_bits = 0;
        }
    }
}

static P4R_UNUSED void p4r_put128(struct p4r_bits *bits, p4r_u128 value, unsigned width)
{
    if (width > 64)
        p4r_put(bits, (uint64_t)(value >> 64), width - 64);
    p4r_put(bits, (uint64_t)value, width < 64 ? width : 64);
}

static P4R_UNUSED void p4r_put_wide(struct p4r_bits *bits, const uint64_t *value, unsigned width)
{
    if (width % 64)
        p4r_put(bits, value[width / 64], width % 64);
    for (unsigned i = width / 64; i-- > 0;)
        p4r_put(bits, value[i], 64);
}

/* Fills the last byte up with zeros, and appends `length` bytes. */
static P4R_UNUSED void p4r_put_end(struct p4r_bits *bits, const uint8_t *more, size_t length)
{
    if (bits->pending_bits)
        bits->bytes[bits->used++] = (uint8_t)(bits->pending << (8 - bits->pending_bits));
    bits->pending = bits->pending_bits = 0;
    if (length)
        memcpy(bits->bytes + bits->used, more, length);
    bits->used += length;
}

/* -- The Internet checksum ---------------------------------------------------------------------- */

/* A one's complement sum is a sum modulo 65535, because 2^16 = 1 there. Of the two zeros, 0xFFFF is
 * the checksum of nothing but zeros. */
P4R_INLINE uint64_t p4r_sum_to_checksum(uint64_t sum)
{
    const uint64_t rest = sum % 65535;
    return sum ? (rest ? 65535 - rest : 0) : 65535;
}

/* A number as an addend of few bits: zero only if it is, and equal modulo 65535. */
P4R_INLINE uint64_t p4r_fold(uint64_t value) { return (value >> 32) + (value & 0xFFFFFFFF); }

static P4R_UNUSED uint64_t p4r_fold_wide(const uint64_t *value, unsigned count)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < count; i++)
        sum += p4r_fold(value[i]);
    return sum;
}

/* Whether the checksum at `place` in a header of `size` bytes (both even) is wrong. */
static P4R_UNUSED bool p4r_checksum_wrong(const uint8_t *header, uint32_t size, uint32_t place)
{
    uint64_t sum = 0;
    uint32_t at = 0;
    for (; at + 4 <= size; at += 4)
        sum += p4r_load32(header + at);
    if (at < size)
        sum += p4r_load16(header + at);
    if (sum % 65535 || !sum)
        return true;
    const uint64_t checksum = p4r_load16(header + place);
    if (checksum != 65535)
        return false;
    /* In the place of a checksum 0xFFFF is equal to 0, but right only if all else is zero. */
    for (at = 0; at < size; at++)
        if (header[at] && at != place && at != place + 1)
            return true;
    return false;
}

static P4R_UNUSED uint64_t p4r_hash_csum16(const uint8_t *bytes, size_t length)
{
    uint64_t sum = 0;
    for (size_t at = 0; at + 1 < length; at += 2)
        sum += p4r_load16(bytes + at);
    if (length % 2)
        sum += (uint64_t)bytes[length - 1] << 8;
    return p4r_sum_to_checksum(sum);
}

/* -- CRCs --------------------------------------------------------------------------------------- */

/* CRC-16/ARC: polynomial 0x8005, reflected, initial value 0. */
static P4R_UNUSED uint64_t p4r_hash_crc16(const uint8_t *bytes, size_t length)
{
    uint32_t value = 0;
    for (size_t at = 0; at < length; at++) {
        value ^= bytes[at];
        for (unsigned bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? 0xA001 : 0);
    }
    return value;
}

/* CRC-16/CCITT-FALSE: polynomial 0x1021, not reflected, initial value 0xFFFF. */
static P4R_UNUSED uint64_t p4r_hash_crcCCITT(const uint8_t *bytes, size_t length)
{
    uint32_t value = 0xFFFF;
    for (size_t at = 0; at < length; at++) {
        value ^= (uint32_t)bytes[at] << 8;
        for (unsigned bit = 0; bit < 8; bit++)
            value = (value << 1 ^ (value & 0x8000 ? 0x1021 : 0)) & 0xFFFF;
    }
    return value;
}

/* CRC-32 (ISO-HDLC): polynomial 0x04C11DB7, reflected, initial value and final xor all ones. */
static P4R_UNUSED uint64_t p4r_hash_crc32(const uint8_t *bytes, size_t length)
{
    static const uint32_t by_nibble[16] = {
        0x00000000, 0x1DB71064, 0x3B6E20C8, 0x26D930AC, 0x76DC4190, 0x6B6B51F4,
        0x4DB26158, 0x5005713C, 0xEDB88320, 0xF00F9344, 0xD6D6A3E8, 0xCB61B38C,
        0x9B64C2B0, 0x86D3D2D4, 0xA00AE278, 0xBDBDF21C,
    };
    uint32_t value = 0xFFFFFFFF;
    for (size_t at = 0; at < length; at++) {
        value ^= bytes[at];
        value = value >> 4 ^ by_nibble[value & 15];
        value = value >> 4 ^ by_nibble[value & 15];
    }
    return value ^ 0xFFFFFFFF;
}

/* -- Others ------------------------------------------------------------------------------------- */

/* The first 8 bytes as a number. */
static P4R_UNUSED uint64_t p4r_hash_identity(const uint8_t *bytes, size_t length)
{
    uint64_t value = 0;
    for (size_t at = 0; at < length && at < 8; at++)
        value = value << 8 | bytes[at];
    return value;
}

/* The words of `size` bytes, the last one padded with zeros, exclusive-ored. */
static P4R_UNUSED uint64_t p4r_hash_xor(const uint8_t *bytes, size_t length, unsigned size)
{
    uint64_t value = 0;
    for (size_t at = 0; at < length; at++)
        value ^= (uint64_t)bytes[at] << 8 * (size - 1 - at % size);
    return value;
}

static P4R_UNUSED uint64_t p4r_hash_xor16(const uint8_t *bytes, size_t length)
{
    return p4r_hash_xor(bytes, length, 2);
}

static P4R_UNUSED uint64_t p4r_hash_xor32(const uint8_t *bytes, size_t length)
{
    return p4r_hash_xor(bytes, length, 4);
}

#endif
