/* SPDX-License-Identifier: Apache-2.0 */
/* The largest elements, by counting: without a sort, and without memory beside a table.
 *
 * The bits of a float without its sign are in the order of magnitudes. A pass over the array counts
 * how many elements there are of each of the topmost 11 bits. That tells which value of these bits
 * the threshold has. The next pass counts by the next 11 bits among the elements that have it; and so
 * on, until all bits are known. A last pass collects what is above the threshold. */
#include "worker/compress.h"
#include "worker/worker.h"

#include <assert.h>
#include <string.h>

#define STEP 11
#define BUCKETS (1u << STEP)
#define TOGETHER 16          /* elements that are passed by at once if none of them matters */
#define LONGEST (1ull << 30) /* elements, before counters of 32 bits are emptied */

/* Finds the bucket with the threshold. `most` becomes how many of its elements are wanted. */
static uint64_t bucket_of(const uint64_t *counts, uint64_t *most)
{
    uint64_t bucket = BUCKETS;
    while (bucket > 0 && counts[bucket - 1] < *most)
        *most -= counts[--bucket];
    assert(bucket > 0);
    return bucket - 1;
}

#define NAMED(what) halves_##what
#define WORD uint16_t
#define WIDTH 15
#define MAGNITUDE(bits) ((bits) & 0x7fffu)
#include "worker/largest_of.h"

#define NAMED(what) floats_##what
#define WORD uint32_t
#define WIDTH 31
#define MAGNITUDE(bits) ((bits) & 0x7fffffffu)
#include "worker/largest_of.h"

#define NAMED(what) doubles_##what
#define WORD uint64_t
#define WIDTH 63
#define MAGNITUDE(bits) ((bits) & 0x7fffffffffffffffu)
#include "worker/largest_of.h"

/* Of integers. The lowest one's magnitude fits, as there is no sign. */
#define NAMED(what) bytes_##what
#define WORD uint8_t
#define WIDTH 8
#define MAGNITUDE(bits) ((bits) & 0x80u ? 0x100u - (bits) : (bits))
#include "worker/largest_of.h"

#define NAMED(what) shorts_##what
#define WORD uint16_t
#define WIDTH 16
#define MAGNITUDE(bits) ((bits) & 0x8000u ? 0x10000u - (bits) : (bits))
#include "worker/largest_of.h"

#define NAMED(what) words_##what
#define WORD uint32_t
#define WIDTH 32
#define MAGNITUDE(bits) ((bits) & 0x80000000u ? -(bits) : (bits))
#include "worker/largest_of.h"

void p4r_largest(uint32_t numbers, uint32_t bytes, const uint8_t *base, uint64_t count,
                 uint64_t most, int64_t *places)
{
    uint64_t found = 0;

    assert(most <= count);
    if (!most)
        return;
    if (numbers == P4R_FLOAT16)
        found = halves_largest(base, count, most, places);
    else if (numbers == P4R_FLOAT32)
        found = floats_largest(base, count, most, places);
    else if (numbers == P4R_FLOAT64)
        found = doubles_largest(base, count, most, places);
    else if (bytes == 1)
        found = bytes_largest(base, count, most, places);
    else if (bytes == 2)
        found = shorts_largest(base, count, most, places);
    else if (bytes == 4)
        found = words_largest(base, count, most, places);
    assert(found == most);
    (void)found;
}
