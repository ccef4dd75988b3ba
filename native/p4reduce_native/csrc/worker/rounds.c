/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a slot, from the one that opens a stripe to its end: slots.SlotMachine._open,
 * ._advance, ._contribute and ._end_stripes. */
#include "worker/worker.h"

#include <math.h>
#include <string.h>

#define FLAG_PAYLOAD 0x01u
#define FLAG_NONFINITE 0x04u
#define NONFINITE_EXPONENT 255
#define FLAG_PADDED 0x20u
#define NO_BLOCK 0xffffffffu

static void put_words(uint8_t *at, const uint32_t *words)
{
    for (int i = 0; i < P4R_AGG_WORDS; i++) {
        at[4 * i] = (uint8_t)(words[i] >> 24);
        at[4 * i + 1] = (uint8_t)(words[i] >> 16);
        at[4 * i + 2] = (uint8_t)(words[i] >> 8);
        at[4 * i + 3] = (uint8_t)words[i];
    }
}

/* The header of a slot's next contribution, in the row that it is sent from. */
static uint8_t *begin_round(struct p4r_slots *slots, const struct p4r_stream *stream, uint32_t slot,
                            uint32_t shape, uint32_t flags, uint32_t block, int64_t announced,
                            uint32_t *words)
{
    uint32_t round = slots->next_round[slot]++;
    int64_t row = (int64_t)slot * P4R_SHAPES + shape;
    uint8_t *frame = slots->outgoing + (uint64_t)row * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;

    words[0] = slots->contribution | flags << 16;
    words[1] = slots->job;
    words[2] = slot << 16 | stream->format << 8 | stream->exponents[announced];
    words[3] = round;
    words[4] = block;
    words[5] = announced == stream->count ? NO_BLOCK : (uint32_t)announced;
    words[6] = stream->tag;
    words[7] = words[8] = 0;
    put_words(frame + P4R_AGG_OFFSET, words);
    slots->announced[slot] = announced;
    slots->expected[slot] = round;
    slots->row[slot] = row;
    slots->due[slot] = INFINITY; /* until it is sent */
    return frame;
}

void p4r_contribute(struct p4r_slots *slots, uint32_t slot, int64_t block, uint8_t exponent)
{
    const struct p4r_stream *stream = slots->streams[slot];
    int mine = block == slots->announced[slot];
    uint32_t filled = mine && exponent != NONFINITE_EXPONENT;
    int64_t announced =
        mine ? stream->next_nonzero[block + stream->stripes] : slots->announced[slot];
    uint32_t flags = exponent == NONFINITE_EXPONENT ? FLAG_NONFINITE : mine ? FLAG_PAYLOAD : 0;
    uint32_t words[P4R_AGG_WORDS];
    uint8_t *frame =
        begin_round(slots, stream, slot, filled, flags, (uint32_t)block, announced, words);

    slots->block[slot] = block;
    slots->exponent[slot] = exponent;
    words[0] = slots->result | FLAG_PAYLOAD << 16;
    memcpy(slots->awaited + (uint64_t)slot * P4R_AGG_WORDS, words, sizeof words);
    if (filled)
        p4r_block_encode(&stream->codec, &stream->source, block, block, exponent,
                         frame + P4R_PAYLOAD_OFFSET);
    slots->counts.blocks_announced++;
    slots->counts.frames_sent++;
    slots->counts.blocks_sent += filled;
    slots->counts.empty_sent += !filled;
    slots->counts.bytes_sent += P4R_PAYLOAD_OFFSET + filled * P4R_PAYLOAD_BYTES;
}

int p4r_repeat_with_room(struct p4r_slots *slots, uint32_t slot)
{
    int64_t row = slots->row[slot], padded = (int64_t)slot * P4R_SHAPES + P4R_PADDED;
    uint8_t *from = slots->outgoing + (uint64_t)row * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
    uint8_t *to = slots->outgoing + (uint64_t)padded * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;

    if (row % P4R_SHAPES != P4R_EMPTY || slots->block[slot] == P4R_OPENING)
        return 0;
    memcpy(to + P4R_AGG_OFFSET, from + P4R_AGG_OFFSET, P4R_AGG_WORDS * sizeof(uint32_t));
    to[P4R_AGG_OFFSET + 1] |= FLAG_PADDED;
    slots->row[slot] = padded;
    slots->due[slot] = INFINITY; /* until it is sent */
    slots->counts.padded++;
    slots->counts.frames_sent++;
    slots->counts.bytes_sent += P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES;
    return 1;
}

void p4r_open(struct p4r_slots *slots, const struct p4r_stream *stream, const int64_t *which,
              uint64_t count)
{
    uint32_t words[P4R_AGG_WORDS];

    for (uint64_t i = 0; i < count; i++) {
        uint32_t slot = (uint32_t)which[i];
        int64_t stripe = slot - stream->offset;
        stripe += stripe < 0 ? stream->slots : 0;
        slots->owner[slot] = stream->sequence;
        slots->count[slot] = stream->count;
        slots->tag[slot] = stream->tag;
        slots->format[slot] = stream->format;
        slots->streams[slot] = stream;
        slots->block[slot] = P4R_OPENING;
        slots->opening[slot] = 1;
        slots->order[slot] = stream->sequence * slots->slots + stripe - stream->before;
        begin_round(slots, stream, slot, 0, 0, NO_BLOCK, stream->next_nonzero[stripe], words);
        /* The answer has no sums, so is not plain. */
        memset(slots->awaited + (uint64_t)slot * P4R_AGG_WORDS, 0, sizeof words);
    }
}

void p4r_end_stripe(struct p4r_slots *slots, uint32_t slot)
{
    int64_t *left = slots->streams[slot]->left;

    slots->expected[slot] = P4R_IDLE;
    slots->order[slot] = P4R_LAST;
    slots->due[slot] = INFINITY;
    memset(slots->awaited + (uint64_t)slot * P4R_AGG_WORDS, 0, P4R_AGG_WORDS * sizeof(uint32_t));
    if (slots->waiting[slot]) {
        slots->waiting[slot] = 0;
        slots->holds_back = memchr(slots->waiting, 1, slots->slots) != NULL;
    }
    slots->finished += --*left == 0;
}
