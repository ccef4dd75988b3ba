/* SPDX-License-Identifier: Apache-2.0 */
#include "headers.h"

#include <string.h>

enum {
    PAD = P4R_CONTEXT_BYTES - P4R_CONTEXT_FRAME_BYTES,
    MASK_BITS = P4R_CONTEXT_WORDS,
    LAST_NUMBER = (1 << (32 - MASK_BITS)) - 1,
    USUAL_WORDS = 7, /* slot, exponent, round, blocks, tag and job differ; more: another context */
    MOST_WORDS = 14, /* more save too little */
    PERIOD = 4096,   /* frames */
};
/* The pause is doubled each time, so the longest one is the first one 256 times. */
static const uint64_t first_pause_ns = 50000000, longest_pause_ns = 12800000000u;

_Static_assert(PAD == P4R_ROW_PAD, "a row has room for what aligns a header");

/* The words of a frame's header that are not the known ones. */
static uint32_t differing(const uint8_t *header, const uint32_t *words)
{
    uint32_t known[P4R_CONTEXT_WORDS], mask = 0;
    memcpy(known, header, sizeof known);
    for (uint32_t i = 0; i < P4R_CONTEXT_WORDS; i++)
        mask |= (uint32_t)(known[i] != words[i]) << i;
    return mask;
}

static int count_of(uint32_t mask) { return __builtin_popcount(mask); }

static struct p4r_context *at(struct p4r_contexts *contexts, uint32_t number)
{
    return &contexts->of[number % P4R_CONTEXTS];
}

/* The confirmed context that differs least; NULL: there is none. */
static struct p4r_context *nearest(struct p4r_contexts *contexts, const uint32_t *words,
                                   uint32_t *mask)
{
    struct p4r_context *best = at(contexts, contexts->last_used);
    int least = P4R_CONTEXT_WORDS + 1;
    if (best->confirmed) {
        *mask = differing(best->bytes, words);
        least = count_of(*mask);
    }
    for (int i = 0; i < P4R_CONTEXTS && least > USUAL_WORDS; i++) {
        struct p4r_context *other = &contexts->of[i];
        const uint32_t differs = other->confirmed ? differing(other->bytes, words) : 0;
        if (!other->confirmed || count_of(differs) >= least)
            continue;
        best = other;
        *mask = differs;
        least = count_of(differs);
    }
    return least <= P4R_CONTEXT_WORDS ? best : NULL;
}

/* Has the peer store this header if it is like the last one, unless the peer is busy with another one.
 * The context whose place this takes is not used any more from now on. */
static void propose(struct p4r_contexts *contexts, const uint32_t *words, uint64_t now_ns)
{
    if (contexts->pause_ns != 0 || contexts->newest == LAST_NUMBER)
        return;
    const uint32_t differs = differing(contexts->candidate, words);
    memcpy(contexts->candidate, words, sizeof contexts->candidate);
    if (differs == 0 || count_of(differs) > USUAL_WORDS) /* 0: the same frame is tried again */
        return;
    contexts->newest++;
    struct p4r_context *place = at(contexts, contexts->newest);
    memset(place, 0, sizeof *place);
    place->number = contexts->newest;
    memcpy(place->bytes, words, sizeof place->bytes);
    contexts->ask_ns = now_ns;
    contexts->pause_ns = first_pause_ns;
}

/* The words to send: those that differ, and those that did lately. */
static uint32_t steady(struct p4r_context *context, uint32_t mask)
{
    if (++context->frames == PERIOD) {
        context->earlier = context->recent;
        context->recent = context->frames = 0;
    }
    context->recent |= mask;
    return context->recent | context->earlier;
}

size_t p4r_contexts_compress(struct p4r_contexts *contexts, struct p4r_frame frame, uint64_t now_ns,
                             uint8_t *compressed)
{
    if (frame.length < P4R_CONTEXT_FRAME_BYTES)
        return 0;
    uint32_t words[P4R_CONTEXT_WORDS] = {0}, mask = 0;
    memcpy((uint8_t *)words + PAD, frame.bytes, P4R_CONTEXT_FRAME_BYTES);
    struct p4r_context *context = nearest(contexts, words, &mask);
    if (context == NULL || count_of(mask) > USUAL_WORDS)
        propose(contexts, words, now_ns);
    /* A new one may just have taken its place. */
    if (context == NULL || !context->confirmed || count_of(mask) > MOST_WORDS)
        return 0;
    contexts->last_used = context->number;
    mask = steady(context, mask);
    const uint32_t first = (uint32_t)context->number << MASK_BITS | mask;
    for (int i = 0; i < P4R_COMPRESSED_HEAD; i++)
        compressed[i] = (uint8_t)(first >> 8 * i);
    size_t bytes = P4R_COMPRESSED_HEAD;
    for (; mask != 0; mask &= mask - 1, bytes += sizeof *words)
        memcpy(compressed + bytes, &words[__builtin_ctz(mask)], sizeof *words);
    return bytes;
}

const struct p4r_context *p4r_contexts_to_announce(struct p4r_contexts *contexts, uint64_t now_ns)
{
    if (contexts->pause_ns == 0 || now_ns < contexts->ask_ns)
        return NULL;
    contexts->ask_ns = now_ns + contexts->pause_ns;
    if (contexts->pause_ns < longest_pause_ns)
        contexts->pause_ns *= 2;
    return at(contexts, contexts->newest);
}

void p4r_contexts_confirmed(struct p4r_contexts *contexts, uint16_t number)
{
    if (number == 0 || number != contexts->newest)
        return;
    at(contexts, number)->confirmed = 1;
    contexts->pause_ns = 0;
}

void p4r_contexts_store(struct p4r_contexts *contexts, uint16_t number, const uint8_t *bytes)
{
    struct p4r_context *place = at(contexts, number);
    if (number < place->number)
        return; /* overtaken by a newer one */
    place->number = number;
    memcpy(place->bytes, bytes, sizeof place->bytes);
}

size_t p4r_contexts_restore(const struct p4r_contexts *contexts, const uint8_t *compressed,
                            size_t bytes, uint8_t *frame)
{
    uint32_t first = 0;
    if (bytes < P4R_COMPRESSED_HEAD)
        return 0;
    for (int i = 0; i < P4R_COMPRESSED_HEAD; i++)
        first |= (uint32_t)compressed[i] << 8 * i;
    const uint32_t number = first >> MASK_BITS;
    uint32_t mask = first & ((1u << MASK_BITS) - 1);
    const struct p4r_context *context = &contexts->of[number % P4R_CONTEXTS];
    size_t taken = P4R_COMPRESSED_HEAD;
    const size_t words = sizeof(uint32_t) * (size_t)count_of(mask);
    if (number == 0 || number != context->number || words > bytes - taken)
        return 0;
    memcpy(frame - PAD, context->bytes, P4R_CONTEXT_BYTES);
    for (; mask != 0; mask &= mask - 1, taken += sizeof(uint32_t))
        memcpy(frame - PAD + sizeof(uint32_t) * (size_t)__builtin_ctz(mask), compressed + taken,
               sizeof(uint32_t));
    return taken;
}
