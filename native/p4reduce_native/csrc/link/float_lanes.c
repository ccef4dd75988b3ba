/* SPDX-License-Identifier: Apache-2.0 */
#include "float_lanes.h"

#include <string.h>

#include "common/byte_order.h"
#include "udp_frame.h"

enum {
    LANES = P4R_PAYLOAD_BYTES / 4,
    MANTISSA_BITS = 24,
    LAST_SHIFT = 7,
    ONE = 127, /* the biased exponent of 1.0f */
    FRACTION_BITS = 23,
};

/* Frames of others pass here as well, and nothing of theirs may be rounded. */
static int has_float_lanes(struct p4r_frame frame)
{
    const uint8_t *bytes = frame.bytes;
    if (frame.length <= P4R_PAYLOAD_OFFSET || frame.length > P4R_WHOLE_FRAME ||
        (frame.length - P4R_PAYLOAD_OFFSET) % 8 != 0)
        return 0;
    if (!is_plain_udp(bytes, frame.length))
        return 0;
    const uint8_t kind = p4r_get_kind(bytes);
    const int port_at = kind == P4R_KIND_RESULT ? UDP_SOURCE_PORT : UDP_DESTINATION_PORT;
    return (kind == P4R_KIND_CONTRIBUTE || kind == P4R_KIND_RESULT) &&
           read16(bytes + port_at) == P4R_AGG_PORT && p4r_get_version(bytes) == P4R_VERSION &&
           p4r_get_format(bytes) == P4R_FORMAT_INT32 && p4r_get_tag(bytes) & P4R_FLOAT_LANES;
}

static float power_of_two(int32_t exponent)
{
    const uint32_t bits = (uint32_t)(ONE + exponent) << FRACTION_BITS;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* How many powers of two are left out of a lane, which was rounded to 24 bits. */
static int32_t shift_of(float rounded)
{
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    int32_t shift = (int32_t)(bits >> FRACTION_BITS & 255) - (ONE + MANTISSA_BITS - 1);
    shift = shift > 0 ? shift : 0;
    return shift < LAST_SHIFT ? shift : LAST_SHIFT;
}

size_t p4r_float_lanes_shorten(struct p4r_frame frame, uint8_t *shortened)
{
    uint32_t mantissas[LANES];
    uint8_t rest[LANES];
    uint32_t inexact = 0, too_large = 0;

    if (!has_float_lanes(frame))
        return 0;
    const uint8_t *lanes = frame.bytes + P4R_PAYLOAD_OFFSET;
    const size_t count = (frame.length - P4R_PAYLOAD_OFFSET) / 4;
    for (size_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, lanes + 4 * i, sizeof word);
        const int32_t lane = (int32_t)P4R_BIG32(word);
        const float rounded = (float)lane;
        const int32_t shift = shift_of(rounded);
        const int32_t mantissa = (int32_t)(rounded * power_of_two(-shift));
        inexact |= (uint32_t)lane & ((uint32_t)(int32_t)power_of_two(shift) - 1);
        /* 2^31 is no lane. The sign is taken out: -2^31 is one. */
        too_large |= (uint32_t)(mantissa ^ mantissa >> 31) >> MANTISSA_BITS;
        mantissas[i] = (uint32_t)mantissa;
        rest[i] = (uint8_t)((uint32_t)mantissa >> MANTISSA_BITS & 1) | (uint8_t)(shift << 1);
    }
    /* A contribution is added up, so it is never rounded. */
    if (too_large || (inexact && p4r_get_kind(frame.bytes) == P4R_KIND_CONTRIBUTE))
        return 0;
    uint8_t *middle = shortened + 2 * count, *last = shortened + 3 * count;
    for (size_t i = 0; i < count; i++) {
        const uint16_t low = P4R_LITTLE16((uint16_t)mantissas[i]);
        memcpy(shortened + 2 * i, &low, sizeof low);
    }
    for (size_t i = 0; i < count; i++)
        middle[i] = (uint8_t)(mantissas[i] >> 16);
    for (size_t i = 0; i < count / 2; i++)
        last[i] = (uint8_t)(rest[i] | rest[i + count / 2] << 4);
    return count / 2 * 7;
}

size_t p4r_float_lanes_restore(const uint8_t *shortened, size_t bytes, uint8_t *lanes)
{
    uint8_t rest[LANES];

    if (bytes == 0 || bytes > P4R_SHORTENED_MOST || bytes % 7 != 0)
        return 0;
    const size_t count = bytes / 7 * 2;
    const uint8_t *middle = shortened + 2 * count, *last = shortened + 3 * count;
    for (size_t i = 0; i < count / 2; i++) {
        rest[i] = last[i] & 15;
        rest[i + count / 2] = last[i] >> 4;
    }
    for (size_t i = 0; i < count; i++) {
        uint16_t low;
        memcpy(&low, shortened + 2 * i, sizeof low);
        const uint32_t unsigned_bits = P4R_LITTLE16(low) | (uint32_t)middle[i] << 16;
        const int32_t mantissa =
            (int32_t)unsigned_bits - (int32_t)((uint32_t)(rest[i] & 1) << MANTISSA_BITS);
        const int32_t lane = (int32_t)((float)mantissa * power_of_two(rest[i] >> 1));
        const uint32_t word = P4R_BIG32((uint32_t)lane);
        memcpy(lanes + 4 * i, &word, sizeof word);
    }
    return 4 * count;
}
