/* SPDX-License-Identifier: Apache-2.0 */
/* Where the blocks of tensors lie, and what goes between them and frames. */
#include "worker/worker.h"

#include <math.h>
#include <string.h>

#include "worker/past_caches.h"

static const uint8_t ZEROS[P4R_MOST_LANES * sizeof(double)];

/* Returns where a block begins and how many bytes of it there are; NULL: it is nowhere. */
static uint8_t *find(const struct p4r_blocks *blocks, int64_t block, uint64_t block_bytes,
                     uint64_t *bytes)
{
    if (blocks->places)
        block = blocks->places[block];
    uint64_t low = 0, high = blocks->count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (blocks->pieces[middle].first <= block)
            low = middle;
        else
            high = middle;
    }
    const struct p4r_piece *piece = &blocks->pieces[low];
    int64_t inner = block - piece->first;
    if (!piece->base || inner < 0 || inner > piece->full)
        return NULL;
    *bytes = inner < piece->full ? block_bytes : (uint64_t)piece->tail_bytes;
    return *bytes ? piece->base + (uint64_t)inner * block_bytes : NULL;
}

/* A block's first lines; the processor prefetches those after them by itself. */
enum { LINE = 64, HINTED = 16 * LINE };

static void hint(const struct p4r_codec *codec, const struct p4r_blocks *blocks, int64_t block,
                 int is_written)
{
    uint64_t bytes = 0;
    const uint8_t *numbers =
        find(blocks, block, (uint64_t)p4r_lanes(codec) * p4r_number_bytes(codec), &bytes);

    for (uint64_t at = 0; numbers && at < bytes && at < HINTED; at += LINE)
        if (is_written)
            __builtin_prefetch(numbers + at, 1, 3);
        else
            __builtin_prefetch(numbers + at, 0, 3);
}

void p4r_block_will_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                           int64_t block)
{
    hint(codec, source, block, 0);
}

void p4r_block_will_decode(const struct p4r_codec *codec, const struct p4r_blocks *target,
                           int64_t block)
{
    hint(codec, target, block, 1);
}

uint32_t p4r_block_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                          const struct p4r_blocks *residual, int64_t block, int64_t number,
                          uint8_t exponent, uint8_t *payload)
{
    uint8_t padded[sizeof ZEROS], left[sizeof ZEROS];
    uint64_t whole = (uint64_t)p4r_lanes(codec) * p4r_number_bytes(codec), bytes, room = 0;
    const uint8_t *numbers = find(source, block, whole, &bytes);
    uint8_t *errors = residual->count ? find(residual, number, whole, &room) : NULL;

    if (!numbers) {
        numbers = ZEROS;
    } else if (bytes < whole) {
        memcpy(padded, numbers, bytes);
        memset(padded + bytes, 0, whole - bytes);
        numbers = padded;
    }
    int is_cut = errors && room < whole;
    uint32_t flags =
        p4r_lanes_encode(codec, numbers, exponent, number, payload, is_cut ? left : errors);
    if (is_cut)
        memcpy(errors, left, room);
    return flags;
}

void p4r_block_withhold(const struct p4r_codec *codec, const struct p4r_blocks *source,
                        const struct p4r_blocks *residual, int64_t block)
{
    static const uint64_t exponent_bits[] = {0, 0x7c00, 0x7f800000, 0x7ff0000000000000};
    uint64_t size = p4r_number_bytes(codec), mask = exponent_bits[codec->numbers & 3];
    uint64_t whole = p4r_lanes(codec) * size, bytes = 0, room = 0;
    const uint8_t *numbers = find(source, block, whole, &bytes);
    uint8_t *waits = residual->count ? find(residual, block, whole, &room) : NULL;

    for (uint64_t at = 0; waits && at < room; at += size) {
        uint64_t bits = 0;
        if (numbers && at < bytes)
            memcpy(&bits, numbers + at, size); /* little-endian, as all that this runs on */
        if ((bits & mask) == mask)
            bits = 0;
        memcpy(waits + at, &bits, size);
    }
}

void p4r_block_decode(const struct p4r_codec *codec, const struct p4r_blocks *target, int64_t block,
                      uint8_t exponent, const uint8_t *lanes, uint32_t part, int past_caches)
{
    _Alignas(64) uint8_t decoded[sizeof ZEROS];
    uint32_t count = p4r_lanes(codec), size = p4r_number_bytes(codec);
    uint64_t whole = (uint64_t)count * size, begin = 0, bytes;
    uint8_t *numbers = find(target, block, whole, &bytes);

    if (!numbers)
        return;
    if (part != P4R_WHOLE)
        count /= 2;
    if (part == P4R_SECOND)
        begin = whole / 2;
    uint64_t length = (uint64_t)count * size;
    if (begin >= bytes)
        return;
    if (begin + length <= bytes && !past_caches) {
        p4r_lanes_decode(codec, lanes, count, exponent, numbers + begin);
        return;
    }
    p4r_lanes_decode(codec, lanes, count, exponent, decoded);
    if (length > bytes - begin)
        length = bytes - begin;
    if (past_caches)
        p4r_copy_past_caches(numbers + begin, decoded, length);
    else
        memcpy(numbers + begin, decoded, length);
}

void p4r_block_fill(const struct p4r_codec *codec, const struct p4r_blocks *target, int64_t block,
                    int nonfinite)
{
    static const uint16_t half = 0x7e00;
    static const float single = NAN;
    static const double wide = NAN;
    uint32_t size = p4r_number_bytes(codec);
    uint64_t whole = (uint64_t)p4r_lanes(codec) * size, bytes;
    uint8_t *numbers = find(target, block, whole, &bytes);
    const void *none = size == 2 ? (const void *)&half : size == 4 ? (const void *)&single : &wide;

    if (!numbers || (nonfinite && codec->numbers == P4R_INTEGERS))
        return;
    if (!nonfinite)
        memset(numbers, 0, bytes);
    for (uint64_t at = 0; nonfinite && at + size <= bytes; at += size)
        memcpy(numbers + at, none, size);
}

void p4r_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                const struct p4r_blocks *residual, const int64_t *blocks, const int64_t *numbers,
                const uint8_t *exponents, uint8_t *rows, const int64_t *which, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *row = rows + (uint64_t)which[i] * P4R_BUFFER_STRIDE;
        p4r_block_encode(codec, source, residual, blocks[i], numbers[i], exponents[i],
                         row + P4R_BUFFER_PAD + P4R_PAYLOAD_OFFSET);
    }
}

void p4r_decode(const struct p4r_codec *codec, const struct p4r_blocks *target,
                const int64_t *blocks, const uint8_t *exponents, const uint8_t *rows,
                const int64_t *which, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *row = rows + (uint64_t)which[i] * P4R_BUFFER_STRIDE;
        p4r_block_decode(codec, target, blocks[i], exponents[i],
                         row + P4R_BUFFER_PAD + P4R_PAYLOAD_OFFSET, P4R_WHOLE, 0);
    }
}
