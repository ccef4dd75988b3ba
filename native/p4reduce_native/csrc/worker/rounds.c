/* SPDX-License-Identifier: Apache-2.0 */
/* The next round of a slot: slots.SlotMachine._advance and ._contribute. */
#include "worker/worker.h"

#include <math.h>

#define FLAG_PAYLOAD 0x01u
#define FLAG_NONFINITE 0x04u
#define NONFINITE_EXPONENT 255
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

void p4r_contribute(struct p4r_slots *slots, uint32_t slot, int64_t block, uint8_t exponent)
{
    const struct p4r_stream *stream = slots->streams[slot];
    int mine = block == slots->announced[slot];
    int filled = mine && exponent != NONFINITE_EXPONENT;
    int64_t announced =
        mine ? stream->next_nonzero[block + stream->stripes] : slots->announced[slot];
    uint32_t round = slots->next_round[slot]++;
    int64_t row = (int64_t)slot * P4R_SHAPES + filled;
    uint8_t *frame = slots->outgoing + (uint64_t)row * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
    uint32_t flags = exponent == NONFINITE_EXPONENT ? FLAG_NONFINITE : mine ? FLAG_PAYLOAD : 0;
    uint32_t words[P4R_AGG_WORDS] = {
        slots->contribution | flags << 16,
        slots->job,
        slot << 16 | stream->format << 8 | stream->exponents[announced],
        round,
        (uint32_t)block,
        announced == stream->count ? NO_BLOCK : (uint32_t)announced,
        stream->tag,
        0,
        0,
    };

    slots->announced[slot] = announced;
    slots->block[slot] = block;
    slots->exponent[slot] = exponent;
    slots->expected[slot] = round;
    slots->row[slot] = row;
    slots->due[slot] = INFINITY; /* until it is sent */
    put_words(frame + P4R_AGG_OFFSET, words);
    words[0] = slots->result | FLAG_PAYLOAD << 16;
    for (int i = 0; i < P4R_AGG_WORDS; i++)
        slots->awaited[slot * P4R_AGG_WORDS + (uint32_t)i] = words[i];
    if (filled)
        p4r_block_encode(&stream->codec, &stream->source, block, block, exponent,
                         frame + P4R_PAYLOAD_OFFSET);
    slots->counts.blocks_announced++;
    slots->counts.frames_sent++;
    slots->counts.blocks_sent += filled;
    slots->counts.empty_sent += !filled;
    slots->counts.bytes_sent += filled ? P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES
                                       : P4R_PAYLOAD_OFFSET;
}
