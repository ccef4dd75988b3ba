/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of a slot, from the one that opens a stripe to its end, and who has it next. */
#include "worker/worker.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint8_t *frame_of(struct p4r_slots *slots, int64_t row)
{
    return slots->outgoing + (uint64_t)row * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
}

uint8_t *p4r_flags(struct p4r_slots *slots, uint32_t slot)
{
    return frame_of(slots, slots->row[slot]) + P4R_FLAGS_AT;
}

void p4r_queue(struct p4r_slots *slots, uint32_t slot)
{
    if (!slots->waiting[slot]) {
        slots->waiting[slot] = 1;
        slots->queued[slots->queued_count++] = slot;
    }
}

/* The header of a slot's next contribution, in the row that it is sent from. */
static uint8_t *begin_round(struct p4r_slots *slots, const struct p4r_stream *stream, uint32_t slot,
                            uint32_t shape, uint32_t flags, uint32_t block, int64_t announced)
{
    uint32_t round = slots->next_round[slot]++;
    int64_t row = (int64_t)slot * P4R_SHAPES + shape;
    uint8_t *frame = frame_of(slots, row);
    const struct p4r_header header = {
        .version = P4R_VERSION,
        .kind = P4R_KIND_CONTRIBUTE,
        .flags = (uint8_t)flags,
        .rank = (uint16_t)slots->rank,
        .job = slots->job,
        .slot = (uint16_t)slot,
        .format = (uint8_t)stream->format,
        .next_exponent = stream->exponents[announced],
        .round = round,
        .block = block,
        .next_block = announced == stream->count ? P4R_NO_BLOCK : (uint32_t)announced,
        .tag = stream->tag,
    };

    p4r_put_header(frame, &header);
    slots->announced[slot] = announced;
    slots->expected[slot] = round;
    slots->row[slot] = row;
    slots->due[slot] = INFINITY; /* until it is sent */
    slots->counts.frames_sent++;
    slots->counts.blocks_sent += shape == P4R_FILLED;
    slots->counts.empty_sent += shape == P4R_EMPTY;
    slots->counts.bytes_sent += slots->lengths[row];
    p4r_queue(slots, slot);
    return frame;
}

int p4r_contribute(struct p4r_slots *slots, uint32_t slot, int64_t block, uint8_t exponent,
                   double now)
{
    const struct p4r_stream *stream = slots->streams[slot];
    int mine = block == slots->announced[slot];
    uint32_t filled = mine && exponent != P4R_NONFINITE_EXPONENT;
    int64_t announced =
        mine ? stream->next_nonzero[block + stream->stripes] : slots->announced[slot];
    uint32_t flags = exponent == P4R_NONFINITE_EXPONENT ? P4R_FLAG_NONFINITE
                     : mine                             ? P4R_FLAG_PAYLOAD
                                                        : 0;
    uint8_t *frame = begin_round(slots, stream, slot, filled ? P4R_FILLED : P4R_EMPTY, flags,
                                 (uint32_t)block, announced);

    slots->block[slot] = block;
    slots->exponent[slot] = exponent;
    slots->counts.blocks_announced++;
    if (mine && stream->trace)
        stream->trace->last_made = now;
    if (filled && stream->reads)
        frame[P4R_FLAGS_AT] |=
            (uint8_t)p4r_block_encode(&stream->codec, &stream->source, &stream->residual, block,
                                      block, exponent, frame + P4R_PAYLOAD_OFFSET);
    else if (mine && stream->residual.count)
        p4r_block_withhold(&stream->codec, &stream->source, &stream->residual, block);
    return filled && !stream->reads;
}

int p4r_pad(struct p4r_slots *slots, uint32_t slot)
{
    int64_t row = slots->row[slot], padded = (int64_t)slot * P4R_SHAPES + P4R_PADDED;
    uint8_t *from = frame_of(slots, row), *to = frame_of(slots, padded);

    /* The round that opens a stripe has no lanes to fit. */
    if (row % P4R_SHAPES != P4R_EMPTY || slots->block[slot] == P4R_OPENING)
        return 0;
    memcpy(to + P4R_AGG_OFFSET, from + P4R_AGG_OFFSET, P4R_AGG_BYTES);
    to[P4R_FLAGS_AT] |= P4R_FLAG_PADDED;
    slots->row[slot] = padded;
    return 1;
}

/* The stripe that a stream has in a slot; none if it is not less than its stripes. */
static int64_t stripe_in(const struct p4r_stream *stream, uint32_t slot)
{
    int64_t place = (int64_t)slot - stream->offset;

    if ((int64_t)slot < stream->first || (int64_t)slot >= stream->first + stream->slots)
        return stream->stripes;
    return place < 0 ? place + stream->slots : place;
}

static void open_stripe(struct p4r_slots *slots, const struct p4r_stream *stream, uint32_t slot,
                        double now)
{
    int64_t stripe = stripe_in(stream, slot);

    slots->owner[slot] = stream->sequence;
    slots->streams[slot] = stream;
    slots->block[slot] = P4R_OPENING;
    slots->opening[slot] = 1;
    slots->some_open = 1;
    slots->order[slot] = stream->sequence * slots->slots + stripe - stream->before;
    if (stream->trace && stream->trace->opened == 0)
        stream->trace->opened = now;
    begin_round(slots, stream, slot, P4R_EMPTY, 0, P4R_NO_BLOCK, stream->next_nonzero[stripe]);
}

void p4r_submit(struct p4r_slots *slots, const struct p4r_stream *stream, double now)
{
    assert(slots->live_count < slots->room);
    slots->live[slots->live_count++] = stream;
    slots->next_sequence = stream->sequence + 1;
    slots->counts.blocks += stream->count;
    for (int64_t stripe = 0; stripe < stream->stripes; stripe++) {
        int64_t place = stream->offset - stream->first + stripe;
        uint32_t slot = (uint32_t)(stream->first + place % stream->slots);
        if (slots->expected[slot] == P4R_IDLE)
            open_stripe(slots, stream, slot, now);
    }
}

/* The stream that gets a slot after its present one; NULL: none waits for it. */
static const struct p4r_stream *next_in_line(const struct p4r_slots *slots, uint32_t slot)
{
    const struct p4r_stream *present = slots->streams[slot];
    uint32_t at = 0;

    while (slots->live[at] != present)
        at++;
    while (++at < slots->live_count)
        if (stripe_in(slots->live[at], slot) < slots->live[at]->stripes)
            return slots->live[at];
    return NULL;
}

static void finish(struct p4r_slots *slots, const struct p4r_stream *stream)
{
    uint32_t at = 0;

    while (slots->live[at] != stream)
        at++;
    slots->live_count--;
    memmove(slots->live + at, slots->live + at + 1, (slots->live_count - at) * sizeof *slots->live);
    assert(slots->over_count < slots->room);
    slots->over[slots->over_count++] = stream->sequence;
    if (!slots->live_count)
        slots->latest = INFINITY; /* that nothing comes from now on means nothing */
}

int p4r_end_stripe(struct p4r_slots *slots, uint32_t slot, double now)
{
    const struct p4r_stream *stream = slots->streams[slot], *next = next_in_line(slots, slot);

    slots->expected[slot] = P4R_IDLE;
    slots->order[slot] = P4R_LAST;
    slots->due[slot] = INFINITY;
    if (next)
        open_stripe(slots, next, slot, now);
    if (--stream->left[0] == 0)
        finish(slots, stream);
    return next != NULL;
}

void p4r_stop(struct p4r_slots *slots)
{
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        slots->expected[slot] = P4R_IDLE;
        slots->order[slot] = P4R_LAST;
        slots->due[slot] = INFINITY;
        slots->waiting[slot] = 0;
    }
    slots->live_count = slots->over_count = slots->queued_count = 0;
    slots->holds_back = 0;
    slots->latest = INFINITY;
}

void p4r_resume(struct p4r_slots *slots, double now)
{
    slots->some_open = 0;
    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        if (slots->expected[slot] == P4R_IDLE)
            continue;
        slots->some_open |= slots->opening[slot];
        slots->parts[slot] = 0;
        slots->tries[slot] = 0;
        slots->sent_at[slot] = now;
        slots->due[slot] = INFINITY; /* until it is sent */
        slots->counts.frames_sent++;
        slots->counts.bytes_sent += slots->lengths[slots->row[slot]];
        p4r_queue(slots, slot);
    }
}
