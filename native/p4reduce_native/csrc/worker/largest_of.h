/* SPDX-License-Identifier: Apache-2.0 */
/* The selection of largest.c, which includes this once for each type of numbers:
 * NAMED(what)      a function's name
 * WORD, WIDTH      an integer that holds a magnitude's bits, and how many bits that are
 * MAGNITUDE(bits)  of a number with these bits */
static WORD NAMED(key)(const uint8_t *base, uint64_t at)
{
    WORD bits;
    memcpy(&bits, base + sizeof bits * at, sizeof bits);
    return (WORD)MAGNITUDE(bits);
}

/* Counts all elements by their topmost bits. Four tables in turn: neighbours are often alike, and the
 * next one would wait until its counter has been written. */
static void NAMED(count)(const uint8_t *base, uint64_t count, unsigned shift, uint64_t *counts)
{
    uint32_t tables[4][BUCKETS];
    for (uint64_t first = 0; first < count; first += LONGEST) {
        uint64_t end = count - first < LONGEST ? count : first + LONGEST, at = first;
        memset(tables, 0, sizeof tables);
        for (; at + 4 <= end; at += 4)
            for (unsigned j = 0; j < 4; j++)
                tables[j][NAMED(key)(base, at + j) >> shift]++;
        for (; at < end; at++)
            tables[0][NAMED(key)(base, at) >> shift]++;
        for (unsigned j = 0; j < BUCKETS; j++)
            counts[j] += (uint64_t)tables[0][j] + tables[1][j] + tables[2][j] + tables[3][j];
    }
}

/* Counts by the bits from `shift` on, among elements whose bits from `known` on are these. */
static void NAMED(refine)(const uint8_t *base, uint64_t count, unsigned known, WORD prefix,
                          unsigned shift, uint64_t *counts)
{
    WORD mask = (WORD)(((WORD)1 << (known - shift)) - 1);
    for (uint64_t first = 0; first < count; first += TOGETHER) {
        uint64_t end = count - first < TOGETHER ? count : first + TOGETHER;
        WORD some = 0;
        for (uint64_t at = first; at < end; at++)
            some += (WORD)(NAMED(key)(base, at) >> known) == prefix;
        for (uint64_t at = first; some && at < end; at++) {
            WORD key = NAMED(key)(base, at);
            if ((WORD)(key >> known) == prefix)
                counts[(WORD)(key >> shift) & mask]++;
        }
    }
}

/* Collects what is above the threshold, and the first `equal` ones that are equal to it. */
static uint64_t NAMED(collect)(const uint8_t *base, uint64_t count, WORD threshold, uint64_t equal,
                               uint64_t most, int64_t *places)
{
    uint64_t found = 0;
    for (uint64_t first = 0; first < count; first += TOGETHER) {
        uint64_t end = count - first < TOGETHER ? count : first + TOGETHER;
        WORD some = 0;
        for (uint64_t at = first; at < end; at++)
            some += NAMED(key)(base, at) >= threshold;
        /* Without a branch on what each element is, which no processor could guess. The end of
         * `places` is reached where all have been found. */
        for (uint64_t at = first; some && at < end && found < most; at++) {
            WORD key = NAMED(key)(base, at);
            uint64_t tied = key == threshold && equal;
            places[found] = (int64_t)at;
            found += (key > threshold) | tied;
            equal -= tied;
        }
    }
    return found;
}

static uint64_t NAMED(largest)(const uint8_t *base, uint64_t count, uint64_t most, int64_t *places)
{
    unsigned known = WIDTH > STEP ? WIDTH - STEP : 0;
    uint64_t counts[BUCKETS] = {0}, equal = most;
    NAMED(count)(base, count, known, counts);
    WORD prefix = (WORD)bucket_of(counts, &equal);
    while (known) {
        unsigned shift = known > STEP ? known - STEP : 0;
        memset(counts, 0, sizeof counts);
        NAMED(refine)(base, count, known, prefix, shift, counts);
        prefix = (WORD)((WORD)(prefix << (known - shift)) | (WORD)bucket_of(counts, &equal));
        known = shift;
    }
    return NAMED(collect)(base, count, prefix, equal, most, places);
}

#undef NAMED
#undef WORD
#undef WIDTH
#undef MAGNITUDE
