/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers to lanes and back, a block at a time: reference/numbers.py says the same to be read.
 *
 * Whether float32 is computed as float32 or by way of float64 is decided for each block, from its
 * exponent. All loops are written so that compilers make vector code of them, with loads and stores
 * by memcpy, as tensors may lie anywhere, and indices of 64 bits: the product of a narrower one could
 * wrap around, which no vector code does. Lanes are held within what an integer can hold even where
 * the exponent is not that of the numbers: that means nothing, but is defined. */
#include "worker/worker.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/byte_order.h"
#include "worker/half.h"

/* Below that a scale or its inverse is beyond float32's normal numbers (quantise.py). */
#define FLOAT32_SCALES_FROM 40

#define NOISE_BITS 16
#define GAMMA 0x9E3779B97F4A7C15u

/* The largest float32 below 2^31. */
#define LARGEST_FLOAT 2147483520.0f

static inline float load_float(const uint8_t *from)
{
    float number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline double load_double(const uint8_t *from)
{
    double number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline uint16_t load_16(const uint8_t *from)
{
    uint16_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline uint32_t load_32(const uint8_t *from)
{
    uint32_t number;
    memcpy(&number, from, sizeof number);
    return number;
}

static inline void store_float(uint8_t *to, float number) { memcpy(to, &number, sizeof number); }

static inline void store_double(uint8_t *to, double number) { memcpy(to, &number, sizeof number); }

static inline void store_16(uint8_t *to, uint16_t number) { memcpy(to, &number, sizeof number); }

static inline void store_32(uint8_t *to, uint32_t number) { memcpy(to, &number, sizeof number); }

/* To nearest, ties to even. Without an instruction for it rint() is a call for each number; the sum
 * with 2^23 (2^52) rounds to whole numbers as well. The sign of a zero does not matter here. */
static inline float nearest_float(float number)
{
#if defined(__SSE4_1__) || defined(__aarch64__)
    return rintf(number);
#else
    float magnitude = fabsf(number);
    float rounded = (magnitude + 0x1p23f) - 0x1p23f;
    rounded = magnitude < 0x1p23f ? rounded : magnitude;
    return copysignf(rounded, number);
#endif
}

static inline double nearest_double(double number)
{
#if defined(__SSE4_1__) || defined(__aarch64__)
    return rint(number);
#else
    double magnitude = fabs(number);
    double rounded = (magnitude + 0x1p52) - 0x1p52;
    rounded = magnitude < 0x1p52 ? rounded : magnitude;
    return copysign(rounded, number);
#endif
}

/* Comparisons with NaN are false, so that it becomes the lower bound. */
static inline float within_float(float number, float limit)
{
    number = number > -limit ? number : -limit;
    return number < limit ? number : limit;
}

static inline double within_double(double number, double limit)
{
    number = number > -limit ? number : -limit;
    return number < limit ? number : limit;
}

/* -- Lanes of 32 bits, rounded to nearest ------------------------------------------------------- */

static void floats_to_words(const uint8_t *from, float scale, double limit, uint8_t *to)
{
    /* A limit of more bits than a float32 has is never reached by one below 2^e. */
    float most = limit < 0x1p24 ? (float)limit : LARGEST_FLOAT;

    for (int i = 0; i < 256; i++) {
        float number = nearest_float(within_float(load_float(from + 4 * i) * scale, most));
        store_32(to + 4 * i, P4R_BIG32((uint32_t)(int32_t)number));
    }
}

static void floats_to_words_wide(const uint8_t *from, double scale, double limit, uint8_t *to)
{
    for (int i = 0; i < 256; i++) {
        double number = nearest_double((double)load_float(from + 4 * i) * scale);
        store_32(to + 4 * i, P4R_BIG32((uint32_t)(int32_t)within_double(number, limit)));
    }
}

static void doubles_to_words(const uint8_t *from, double scale, double limit, uint8_t *to)
{
    for (int i = 0; i < 256; i++) {
        double number = nearest_double(load_double(from + 8 * i) * scale);
        store_32(to + 4 * i, P4R_BIG32((uint32_t)(int32_t)within_double(number, limit)));
    }
}

static void words_to_floats(const uint8_t *from, uint32_t count, float factor, uint8_t *to)
{
    for (size_t i = 0; i < count; i++)
        store_float(to + 4 * i, (float)(int32_t)P4R_BIG32(load_32(from + 4 * i)) * factor);
}

/* A sum is a float32 before it is anything else: a link may have rounded it for this rank already, and
 * not for another one (link/float_lanes.h). */
static void words_to_floats_wide(const uint8_t *from, uint32_t count, double factor, uint8_t *to)
{
    for (size_t i = 0; i < count; i++) {
        float sum = (float)(int32_t)P4R_BIG32(load_32(from + 4 * i));
        store_float(to + 4 * i, (float)((double)sum * factor));
    }
}

static void words_to_doubles(const uint8_t *from, uint32_t count, double factor, uint8_t *to)
{
    for (size_t i = 0; i < count; i++)
        store_double(to + 8 * i, (double)(int32_t)P4R_BIG32(load_32(from + 4 * i)) * factor);
}

/* -- Narrow lanes, rounded at random ------------------------------------------------------------ */

static inline uint64_t mix(uint64_t number)
{
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9u;
    number = (number ^ number >> 27) * 0x94D049BB133111EBu;
    return number ^ number >> 31;
}

/* 16 bits for each lane of a block, in the order in which numpy sees them in words of 64. */
static void make_noise(uint64_t key, int64_t block, uint32_t lanes, uint16_t *noise)
{
    uint32_t words = lanes / 4;
    uint64_t first = key + (uint64_t)block * (words * GAMMA);
    for (size_t i = 0; i < words; i++) {
        uint64_t word = mix(first + i * GAMMA);
        memcpy(noise + 4 * i, &word, sizeof word);
    }
}

static void floats_to_fixed(const uint8_t *from, uint32_t count, float scale, float most,
                            int32_t *fixed)
{
    for (size_t i = 0; i < count; i++) {
        float number = nearest_float(load_float(from + 4 * i) * scale);
        fixed[i] = (int32_t)within_float(number, most);
    }
}

static void floats_to_fixed_wide(const uint8_t *from, uint32_t count, double scale, double most,
                                 int32_t *fixed)
{
    for (size_t i = 0; i < count; i++) {
        double number = nearest_double((double)load_float(from + 4 * i) * scale);
        fixed[i] = (int32_t)within_double(number, most);
    }
}

static void doubles_to_fixed(const uint8_t *from, uint32_t count, double scale, double most,
                             int32_t *fixed)
{
    for (size_t i = 0; i < count; i++) {
        double number = nearest_double(load_double(from + 8 * i) * scale);
        fixed[i] = (int32_t)within_double(number, most);
    }
}

/* Two lanes of 4 bits in a byte, the first one in its upper half. */
static inline int8_t upper_half(uint8_t pair) { return (int8_t)((int8_t)pair >> 4); }

static inline int8_t lower_half(uint8_t pair)
{
    return (int8_t)((int8_t)(uint8_t)(pair << 4) >> 4);
}

/* What lanes leave of the numbers: x - q * 2^e / M, computed as float64. */
static void floats_left(const uint8_t *numbers, const int32_t *lanes, uint32_t count, double unit,
                        uint8_t *residual)
{
    for (size_t i = 0; i < count; i++)
        store_float(residual + 4 * i,
                    (float)((double)load_float(numbers + 4 * i) - (double)lanes[i] * unit));
}

static void doubles_left(const uint8_t *numbers, const int32_t *lanes, uint32_t count, double unit,
                         uint8_t *residual)
{
    for (size_t i = 0; i < count; i++)
        store_double(residual + 8 * i, load_double(numbers + 8 * i) - (double)lanes[i] * unit);
}

static void encode_at_random(const struct p4r_codec *codec, const uint8_t *numbers,
                             uint8_t exponent, int64_t block, uint8_t *payload, uint8_t *residual)
{
    uint32_t count = p4r_lanes(codec);
    uint16_t noise[P4R_MOST_LANES];
    int32_t fixed[P4R_MOST_LANES];
    double most = codec->limit * (1 << NOISE_BITS);

    make_noise(codec->key, block, count, noise);
    if (codec->numbers == P4R_FLOAT64)
        doubles_to_fixed(numbers, count, codec->scales[exponent], most, fixed);
    else if (exponent < FLOAT32_SCALES_FROM)
        floats_to_fixed_wide(numbers, count, codec->scales[exponent], most, fixed);
    else
        floats_to_fixed(numbers, count, codec->scales32[exponent], (float)most, fixed);
    for (size_t i = 0; i < count; i++)
        fixed[i] = (fixed[i] + noise[i]) >> NOISE_BITS;
    if (residual) {
        double unit = codec->factors[exponent] * 2 / codec->limit; /* factors are halves */
        if (codec->numbers == P4R_FLOAT64)
            doubles_left(numbers, fixed, count, unit, residual);
        else
            floats_left(numbers, fixed, count, unit, residual);
    }
    if (codec->lane_bits == 16)
        for (size_t i = 0; i < count; i++)
            store_16(payload + 2 * i, P4R_BIG16((uint16_t)fixed[i]));
    else if (codec->lane_bits == 8)
        for (size_t i = 0; i < count; i++)
            payload[i] = (uint8_t)fixed[i];
    else
        for (size_t i = 0; i < count / 2; i++)
            payload[i] = (uint8_t)((uint32_t)fixed[2 * i] << 4 | ((uint32_t)fixed[2 * i + 1] & 15));
}

static void widen(const uint8_t *lanes, uint32_t lane_bits, uint32_t count, int32_t *wide)
{
    if (lane_bits == 16) {
        for (size_t i = 0; i < count; i++)
            wide[i] = (int16_t)P4R_BIG16(load_16(lanes + 2 * i));
    } else if (lane_bits == 8) {
        for (size_t i = 0; i < count; i++)
            wide[i] = (int8_t)lanes[i];
    } else {
        for (size_t i = 0; i < count / 2; i++) {
            wide[2 * i] = upper_half(lanes[i]);
            wide[2 * i + 1] = lower_half(lanes[i]);
        }
    }
}

static void decode_narrow(const struct p4r_codec *codec, const uint8_t *lanes, uint32_t count,
                          uint8_t exponent, uint8_t *numbers)
{
    int32_t wide[P4R_MOST_LANES];
    double divisor = codec->divisor, factor = codec->factors[exponent];

    widen(lanes, codec->lane_bits, count, wide);
    if (codec->numbers == P4R_FLOAT64) {
        for (size_t i = 0; i < count; i++)
            store_double(numbers + 8 * i, (double)wide[i] / divisor * factor);
    } else if (exponent < FLOAT32_SCALES_FROM) {
        factor /= divisor;
        for (size_t i = 0; i < count; i++)
            store_float(numbers + 4 * i, (float)((double)wide[i] * factor));
    } else {
        float divisor32 = (float)divisor, factor32 = codec->factors32[exponent];
        for (size_t i = 0; i < count; i++)
            store_float(numbers + 4 * i, (float)wide[i] / divisor32 * factor32);
    }
}

/* -- Any lanes ---------------------------------------------------------------------------------- */

/* Integers into the wire's byte order, or from there. */
static void swap_bytes(const uint8_t *from, uint32_t lane_bits, uint32_t count, uint8_t *to)
{
    if (lane_bits == 32)
        for (size_t i = 0; i < count; i++)
            store_32(to + 4 * i, P4R_BIG32(load_32(from + 4 * i)));
    else if (lane_bits == 16)
        for (size_t i = 0; i < count; i++)
            store_16(to + 2 * i, P4R_BIG16(load_16(from + 2 * i)));
    else
        memcpy(to, from, count);
}

/* Integers of 8 bits into lanes of 4, which hold them: the caller has looked. */
static void bytes_to_halves(const uint8_t *from, uint32_t count, uint8_t *to)
{
    for (size_t i = 0; i < count / 2; i++)
        to[i] = (uint8_t)(from[2 * i] << 4 | (from[2 * i + 1] & 15));
}

static void halves_to_bytes(const uint8_t *from, uint32_t count, uint8_t *to)
{
    for (size_t i = 0; i < count / 2; i++) {
        to[2 * i] = (uint8_t)upper_half(from[i]);
        to[2 * i + 1] = (uint8_t)lower_half(from[i]);
    }
}

#ifdef P4R_SUMS_WORDS
/* The switch adds words of 32 bits. Lanes q of w bits are in a word as the sum of q * 2^(w * place),
 * of which no carry needs a mask: with H the lanes' top bits, (x ^ H) - H. */
static uint32_t top_bits(uint32_t lane_bits)
{
    return lane_bits == 16 ? 0x80008000u : lane_bits == 8 ? 0x80808080u : 0x88888888u;
}

static void lanes_to_words(uint32_t lane_bits, uint8_t *payload)
{
    uint32_t top = top_bits(lane_bits);

    for (size_t i = 0; i < P4R_PAYLOAD_BYTES; i += 4)
        store_32(payload + i, P4R_BIG32((P4R_BIG32(load_32(payload + i)) ^ top) - top));
}

static void words_to_lanes(uint32_t lane_bits, const uint8_t *words, uint32_t bytes, uint8_t *lanes)
{
    uint32_t top = top_bits(lane_bits);

    for (size_t i = 0; i < bytes; i += 4)
        store_32(lanes + i, P4R_BIG32((P4R_BIG32(load_32(words + i)) + top) ^ top));
}

/* Whether an integer is beyond what the ranks can add up: the switch cannot see that. */
static int is_too_large(const struct p4r_codec *codec, const uint8_t *numbers)
{
    int32_t limit = (int32_t)codec->limit, found = 0;
    uint32_t count = p4r_lanes(codec);

    if (codec->numbers != P4R_INTEGERS || limit < 0)
        return 0;
    for (size_t i = 0; i < count; i++) {
        int32_t number = codec->lane_bits == 32   ? (int32_t)load_32(numbers + 4 * i)
                         : codec->lane_bits == 16 ? (int16_t)load_16(numbers + 2 * i)
                                                  : (int8_t)numbers[i];
        found |= number > limit || number < -limit;
    }
    return found;
}
#endif

static void encode(const struct p4r_codec *codec, const uint8_t *numbers, uint8_t exponent,
                   int64_t block, uint8_t *payload, uint8_t *residual)
{
    float wide[P4R_MOST_LANES], left[P4R_MOST_LANES];
    uint32_t count = p4r_lanes(codec);
    uint8_t *halves = codec->numbers == P4R_FLOAT16 ? residual : NULL;

    assert(!residual || (codec->numbers != P4R_INTEGERS && codec->lane_bits != 32));

    if (codec->numbers == P4R_INTEGERS) {
        if (codec->lane_bits == 4)
            bytes_to_halves(numbers, count, payload);
        else
            swap_bytes(numbers, codec->lane_bits, count, payload);
        return;
    }
    if (codec->numbers == P4R_FLOAT16) {
        for (size_t i = 0; i < count; i++)
            wide[i] = p4r_float_of_half(load_16(numbers + 2 * i));
        numbers = (const uint8_t *)wide;
    }
    if (codec->lane_bits != 32)
        encode_at_random(codec, numbers, exponent, block, payload,
                         halves ? (uint8_t *)left : residual);
    else if (codec->numbers == P4R_FLOAT64)
        doubles_to_words(numbers, codec->scales[exponent], codec->limit, payload);
    else if (exponent < FLOAT32_SCALES_FROM)
        floats_to_words_wide(numbers, codec->scales[exponent], codec->limit, payload);
    else
        floats_to_words(numbers, codec->scales32[exponent], codec->limit, payload);
    if (halves)
        for (size_t i = 0; i < count; i++)
            store_16(halves + 2 * i, p4r_half_of_float(left[i]));
}

uint32_t p4r_lanes_encode(const struct p4r_codec *codec, const uint8_t *numbers, uint8_t exponent,
                          int64_t block, uint8_t *payload, uint8_t *residual)
{
    encode(codec, numbers, exponent, block, payload, residual);
#ifdef P4R_SUMS_WORDS
    if (codec->lane_bits != 32)
        lanes_to_words(codec->lane_bits, payload);
    return is_too_large(codec, numbers) ? P4R_FLAG_OVERFLOW : 0;
#else
    return 0;
#endif
}

void p4r_lanes_decode(const struct p4r_codec *codec, const uint8_t *lanes, uint32_t count,
                      uint8_t exponent, uint8_t *numbers)
{
#ifdef P4R_SUMS_WORDS
    uint8_t unpacked[P4R_PAYLOAD_BYTES];
    if (codec->lane_bits != 32) {
        words_to_lanes(codec->lane_bits, lanes, count * codec->lane_bits / 8, unpacked);
        lanes = unpacked;
    }
#endif
    float wide[P4R_MOST_LANES];
    uint8_t *to = codec->numbers == P4R_FLOAT16 ? (uint8_t *)wide : numbers;

    if (codec->numbers == P4R_INTEGERS) {
        if (codec->lane_bits == 4)
            halves_to_bytes(lanes, count, numbers);
        else
            swap_bytes(lanes, codec->lane_bits, count, numbers);
        return;
    }
    if (codec->lane_bits != 32)
        decode_narrow(codec, lanes, count, exponent, to);
    else if (codec->numbers == P4R_FLOAT64)
        words_to_doubles(lanes, count, codec->factors[exponent], to);
    else if (codec->inexact || exponent < FLOAT32_SCALES_FROM)
        words_to_floats_wide(lanes, count, codec->factors[exponent], to);
    else
        words_to_floats(lanes, count, codec->factors32[exponent], to);
    if (codec->numbers == P4R_FLOAT16)
        for (size_t i = 0; i < count; i++)
            store_16(numbers + 2 * i, p4r_half_of_float(wide[i]));
}
