/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from the switch, one after the other: what each is, and what it leads to.
 *
 * Rounds that become complete go on at the end of a batch, all together, since their times are
 * measured together. What ends everything ends the batch as well. */
#include "worker/worker.h"

#include <assert.h>
#include <string.h>

#include "worker/past_caches.h"

#define PAST_CACHES (2u << 20) /* bytes of a tensor that no core's caches hold anyway */
#define HALVES (P4R_FLAG_FIRST_HALF | P4R_FLAG_SECOND_HALF)

/* The effects of a batch so far. */
struct batch {
    struct p4r_slots *slots;
    double now;
    int quiet, heard;
    uint32_t completed;
    /* Sums in `numbers` for places that only Python can reach. */
    const struct p4r_stream *stream;
    uint32_t visited[P4R_WHOLE + 1]; /* how many, by part: halves come in turns */
};

/* In a status: how many switches above the own one it is from. */
static inline uint8_t level_of(const struct p4r_slots *slots, const uint8_t *frame)
{
    uint32_t level = p4r_get_next_exponent(frame);
    return (uint8_t)(level < slots->levels ? level : slots->levels - 1);
}

/* Whether a collective's sums go past the caches. */
static inline int goes_past_caches(const struct p4r_stream *stream)
{
    uint64_t block = (uint64_t)p4r_lanes(&stream->codec) * p4r_number_bytes(&stream->codec);
    return P4R_HAS_PAST_CACHES && (uint64_t)stream->count * block >= PAST_CACHES;
}

static inline uint32_t part_of(uint32_t flags)
{
    return flags & P4R_FLAG_FIRST_HALF    ? P4R_FIRST
           : flags & P4R_FLAG_SECOND_HALF ? P4R_SECOND
                                          : P4R_WHOLE;
}

/* -- What an answer is -------------------------------------------------------------------------- */

static int is_to_us(const struct p4r_slots *slots, const uint8_t *frame)
{
    uint64_t different = 0, words[P4R_COMPARED];
    memcpy(words, frame + 6, sizeof words);
    for (int i = 0; i < P4R_COMPARED; i++)
        different |= (words[i] & slots->mask[i]) ^ slots->wanted[i];
    return !different;
}

/* How long an answer is; 0: there is none with such a kind and flags. */
static int64_t length_of(uint32_t kind, uint32_t flags)
{
    if (kind == P4R_KIND_STATUS)
        return P4R_EMPTY_FRAME;
    if (kind != P4R_KIND_RESULT || flags & P4R_FLAG_PADDED || (flags & HALVES) == HALVES)
        return 0;
    if (flags & P4R_FLAG_PAYLOAD)
        return flags & HALVES ? P4R_HALF_FRAME : P4R_WHOLE_FRAME;
    return flags & HALVES ? 0 : P4R_EMPTY_FRAME;
}

static int is_an_answer(const struct p4r_slots *slots, const uint8_t *frame, int64_t length)
{
    return length >= P4R_EMPTY_FRAME && is_to_us(slots, frame) &&
           length == length_of(p4r_get_kind(frame), p4r_get_flags(frame)) &&
           p4r_get_slot(frame) < slots->slots;
}

/* Whether a result of the round under way is about the same as the contribution. */
static int is_right(const struct p4r_slots *slots, const uint8_t *frame, uint32_t slot)
{
    const struct p4r_stream *stream = slots->streams[slot];
    uint32_t next = p4r_get_next_block(frame);

    return p4r_get_tag(frame) == stream->tag && (p4r_get_format(frame)) == stream->format &&
           p4r_get_block(frame) == (uint32_t)slots->block[slot] &&
           (next == P4R_NO_BLOCK || (int64_t)next < stream->count);
}

/* -- Sums --------------------------------------------------------------------------------------- */

/* Where there is room for the numbers of so many blocks' parts: first halves, then second ones, then
 * whole blocks. */
static uint8_t *numbers_of(const struct p4r_slots *slots, uint32_t part)
{
    static const uint64_t before[] = {0, 0, 1, 2}; /* in halves */
    return slots->numbers + before[part] * slots->slots * (P4R_MOST_NUMBER_BYTES / 2);
}

static int64_t *visited_of(const struct p4r_slots *slots, uint32_t part)
{
    return slots->visited + (uint64_t)(part - 1) * slots->slots;
}

static void put_part(struct batch *batch, uint32_t part)
{
    if (batch->visited[part])
        batch->slots->visit(batch->stream->sequence, part, visited_of(batch->slots, part),
                            batch->visited[part], numbers_of(batch->slots, part));
    batch->visited[part] = 0;
}

static void put_visited(struct batch *batch)
{
    for (uint32_t part = P4R_FIRST; part <= P4R_WHOLE; part++)
        put_part(batch, part);
}

/* What goes to Python, and what went past the caches, is there once a batch is over. */
static void finish_writes(struct batch *batch)
{
    put_visited(batch);
    p4r_fence_past_caches();
}

/* Sums for a target that only Python can reach: rows of as many numbers as there are lanes. */
static void visit_sums(struct batch *batch, uint32_t slot, const uint8_t *lanes, uint32_t part)
{
    struct p4r_slots *slots = batch->slots;
    const struct p4r_stream *stream = slots->streams[slot];
    uint32_t count = p4r_lanes(&stream->codec), *visited = batch->visited + part;

    if (stream != batch->stream)
        put_visited(batch);
    else if (*visited == slots->slots)
        put_part(batch, part);
    batch->stream = stream;
    count = part == P4R_WHOLE ? count : count / 2;
    p4r_lanes_decode(&stream->codec, lanes, count, slots->exponent[slot],
                     numbers_of(slots, part) +
                         (uint64_t)*visited * count * p4r_number_bytes(&stream->codec));
    visited_of(slots, part)[(*visited)++] = slots->block[slot];
}

static void fill(struct batch *batch, uint32_t slot, int nonfinite)
{
    struct p4r_slots *slots = batch->slots;
    const struct p4r_stream *stream = slots->streams[slot];

    if (stream->writes)
        p4r_block_fill(&stream->codec, &stream->target, slots->block[slot], nonfinite);
    else
        slots->visit(stream->sequence, nonfinite ? P4R_NONFINITE : P4R_ZEROS, &slots->block[slot],
                     1, NULL);
}

/* Write sums, or half of them, into the output. */
static void deliver(struct batch *batch, const uint8_t *lanes, uint32_t slot, uint32_t flags)
{
    struct p4r_slots *slots = batch->slots;
    const struct p4r_stream *stream = slots->streams[slot];
    uint32_t part = part_of(flags);

    if (flags & P4R_FLAG_NONFINITE || !(flags & P4R_FLAG_PAYLOAD)) {
        fill(batch, slot, (flags & P4R_FLAG_NONFINITE) != 0);
        return;
    }
    if (flags & P4R_FLAG_OVERFLOW &&
        (stream->left[1] == P4R_NO_OVERFLOW || slots->block[slot] < stream->left[1]))
        stream->left[1] = slots->block[slot];
    if (stream->writes)
        p4r_block_decode(&stream->codec, &stream->target, slots->block[slot], slots->exponent[slot],
                         lanes, part, goes_past_caches(stream));
    else
        visit_sums(batch, slot, lanes, part);
    slots->counts.blocks_received += part != P4R_FIRST;
}

/* -- Results ------------------------------------------------------------------------------------ */

/* A result that has come already: maybe the first was the one that a timer asked for, and needlessly
 * so, if both are in one batch. */
static void take_duplicate(struct batch *batch, uint32_t slot, uint32_t flags)
{
    struct p4r_slots *slots = batch->slots;
    int needless = slots->parts[slot] == P4R_WHOLE && flags & P4R_FLAG_RETRANSMISSION;

    slots->counts.duplicates++;
    for (uint32_t i = 0; i < batch->completed && !(flags & P4R_FLAG_RETRANSMISSION); i++)
        if (slots->completed[i] == slot && slots->how[i]) {
            slots->how[i] = 0;
            needless = 1;
        }
    slots->counts.spurious += needless && slots->levels == 1;
}

/* A slot's last result stays, whatever becomes of the output: after the loss of a switch a rank that
 * lacks it gets it from here. The one before is not needed any more: the switch makes a result of
 * contributions of all ranks, and each had the one before then. */
static void keep(struct p4r_slots *slots, const uint8_t *frame, const uint8_t *lanes, uint32_t slot,
                 uint32_t part)
{
    const uint64_t half = P4R_PAYLOAD_BYTES / 2;
    uint8_t *kept = slots->kept + (uint64_t)slot * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
    uint32_t flags = p4r_get_flags(frame);
    uint32_t before = slots->parts[slot] ? kept[P4R_FLAGS_AT] : 0u; /* of the other half */

    memcpy(kept + P4R_AGG_OFFSET, frame + P4R_AGG_OFFSET, P4R_AGG_BYTES);
    kept[P4R_FLAGS_AT] = (uint8_t)((flags | before) & ~HALVES);
    if (flags & P4R_FLAG_PAYLOAD)
        memcpy(kept + P4R_PAYLOAD_OFFSET + (part == P4R_SECOND ? half : 0), lanes,
               part == P4R_WHOLE ? 2 * half : half);
}

static void take_result(struct batch *batch, const uint8_t *frame, const uint8_t *lanes,
                        uint32_t slot)
{
    struct p4r_slots *slots = batch->slots;
    uint32_t flags = p4r_get_flags(frame), part = part_of(flags), at = batch->completed;

    if ((slots->parts[slot] & part) == part) {
        take_duplicate(batch, slot, flags);
        return;
    }
    keep(slots, frame, lanes, slot, part);
    if (slots->block[slot] != P4R_OPENING)
        deliver(batch, lanes, slot, flags);
    slots->parts[slot] |= (uint8_t)part;
    if (slots->parts[slot] != P4R_WHOLE)
        return;
    slots->completed[at] = slot;
    slots->how[at] = 0;
    if (flags & P4R_FLAG_RETRANSMISSION)
        slots->how[at] = slots->tries[slot] ? P4R_LATE | P4R_TRIED : P4R_LATE;
    slots->next[2 * at] = p4r_get_next_block(frame);
    slots->next[2 * at + 1] = p4r_get_next_exponent(frame);
    batch->completed++;
}

/* Numbers of contributions whose source only Python can reach. */
static void read_visited(struct p4r_slots *slots, const struct p4r_stream *stream, uint32_t count)
{
    if (!count)
        return;
    uint64_t bytes = (uint64_t)p4r_lanes(&stream->codec) * p4r_number_bytes(&stream->codec);
    slots->visit(stream->sequence, P4R_READ, slots->visited, count, slots->numbers);
    for (uint32_t i = 0; i < count; i++) {
        int64_t slot = slots->visiting[i];
        uint8_t *row = slots->outgoing + (uint64_t)slots->row[slot] * P4R_BUFFER_STRIDE;
        row[P4R_BUFFER_PAD + P4R_FLAGS_AT] |= (uint8_t)p4r_lanes_encode(
            &stream->codec, slots->numbers + i * bytes, slots->exponent[slot], slots->block[slot],
            row + P4R_BUFFER_PAD + P4R_PAYLOAD_OFFSET, NULL);
    }
}

enum { AHEAD = 2 }; /* blocks: prefetched memory arrives in the time that they take */

/* What a slot will send next is asked for while others are quantised. */
static void will_send(const struct p4r_slots *slots, uint32_t at)
{
    const struct p4r_stream *stream = slots->streams[slots->completed[at]];
    uint32_t next = slots->next[2 * at];

    if (next == slots->announced[slots->completed[at]] && stream->reads)
        p4r_block_will_encode(&stream->codec, &stream->source, next);
}

/* Go on after rounds that are complete. */
static void complete(struct p4r_slots *slots, uint32_t count, double now)
{
    const struct p4r_stream *reading = NULL;
    uint32_t to_read = 0;
    int64_t troubled;

    for (uint32_t i = 0; i < count; i++) {
        slots->how[i] |= slots->heard[slots->completed[i]] ? P4R_ANSWERED : 0;
        slots->heard[slots->completed[i]] = 0;
    }
    int64_t rounds = p4r_timers_completed(slots, count, now, &troubled);

    p4r_window_completed(slots, rounds, troubled);
    for (uint32_t i = 0; i < count && i < AHEAD; i++)
        will_send(slots, i);
    for (uint32_t i = 0; i < count; i++) {
        if (i + AHEAD < count)
            will_send(slots, i + AHEAD);
        uint32_t slot = (uint32_t)slots->completed[i], next = slots->next[2 * i];
        const struct p4r_stream *stream = slots->streams[slot];
        int64_t block = slots->block[slot];
        int goes_on = 1;

        slots->parts[slot] = 0;
        if (stream->trace)
            p4r_trace_answered(stream->trace, slots->block[slot] == P4R_OPENING, now);
        if (next == P4R_NO_BLOCK) {
            goes_on = p4r_end_stripe(slots, slot, now);
        } else if (p4r_contribute(slots, slot, next, (uint8_t)slots->next[2 * i + 1], now)) {
            if (stream != reading) {
                read_visited(slots, reading, to_read);
                to_read = 0;
            }
            reading = stream;
            slots->visited[to_read] = next;
            slots->visiting[to_read++] = slot;
        }
        /* What follows a repeated result is late by this rank's timer, for the others too. */
        if (goes_on && slots->how[i] & P4R_TRIED)
            *p4r_flags(slots, slot) |= P4R_FLAG_RETRANSMISSION;
        p4r_window_passed(stream, block, next);
    }
    read_visited(slots, reading, to_read);
}

/* -- Statuses ----------------------------------------------------------------------------------- */

/* Let timers know who was heard: another rank may have asked for all of this switch. */
static void tell_timer(struct batch *batch, const uint8_t *frame, uint32_t slot)
{
    struct p4r_slots *slots = batch->slots;
    uint32_t ahead = p4r_get_round(frame) - (uint32_t)slots->expected[slot];
    int level = level_of(slots, frame);
    /* A STATUS from a switch above is about switches, and not about single ranks. */
    int mine = level || p4r_get_contributors(frame) & slots->own_bit;

    if (p4r_get_flags(frame) & P4R_FLAG_PADDED || slots->expected[slot] == P4R_IDLE)
        return;
    if (ahead == 0)
        p4r_timers_answered(slots, slot, mine, batch->quiet, batch->now);
    else if (ahead == 1 && !mine)
        p4r_missed(slots, slot, batch->now); /* the others have its result */
}

static void take_status(struct batch *batch, const uint8_t *frame, uint32_t slot)
{
    struct p4r_slots *slots = batch->slots;
    struct p4r_trace *trace = slots->streams[slot]->trace;
    uint64_t heard = p4r_get_contributors(frame);
    uint8_t level = level_of(slots, frame);

    slots->counts.statuses++;
    if (p4r_get_flags(frame) & P4R_FLAG_PADDED) {
        /* No timer has a part in this, so the frame does not say so. */
        if (slots->parts[slot] == P4R_WHOLE || !p4r_pad(slots, slot))
            return;
        slots->counts.padded++;
        slots->counts.frames_sent++;
        slots->counts.bytes_sent += slots->lengths[slots->row[slot]];
        slots->due[slot] = 1.0 / 0.0; /* until it is sent */
        p4r_queue(slots, slot);
        return;
    }
    /* In a tree the own switch also says that all its ranks are there, while others are not. */
    if (level || slots->everybody & ~heard) {
        slots->heard[slot] = heard;
        slots->level[slot] = level;
        if (slots->levels == 1 && trace) /* where bits are ranks */
            p4r_trace_status(trace, heard, batch->now);
    }
    if (slots->left[level] & ~heard) {
        slots->trouble = P4R_RANKS_LEFT;
        slots->trouble_slot = slot;
        slots->trouble_level = level;
        slots->trouble_bits = slots->left[level] & ~heard;
    }
}

/* -- Frames ------------------------------------------------------------------------------------- */

static void take_answer(struct batch *batch, const uint8_t *frame, const uint8_t *lanes)
{
    struct p4r_slots *slots = batch->slots;
    uint32_t slot = p4r_get_slot(frame), again = p4r_get_flags(frame) & P4R_FLAG_RETRANSMISSION;
    int is_status = p4r_get_kind(frame) == P4R_KIND_STATUS;
    /* What comes for all ranks of a tree's switch says nothing of this rank's frames. */
    batch->heard |= !is_status || !level_of(slots, frame);
    if (is_status)
        tell_timer(batch, frame, slot);
    int awaited = slots->expected[slot] == (int64_t)p4r_get_round(frame);
    /* The switch had the contribution before it was repeated, and we its result or no reason to
     * wait for one yet. In a tree others may be meant. */
    slots->counts.spurious += again && (is_status || !awaited) && slots->levels == 1;
    if (!awaited) {
        slots->counts.stale++;
    } else if (is_status) {
        take_status(batch, frame, slot);
    } else if (p4r_get_flags(frame) & P4R_FLAG_MISMATCH) {
        slots->trouble = P4R_MISMATCH;
        slots->trouble_slot = slot;
    } else if (is_right(slots, frame, slot)) {
        take_result(batch, frame, lanes, slot);
    } else {
        slots->counts.invalid++;
    }
}

static void take(struct batch *batch, const uint8_t *frame, const uint8_t *lanes, int64_t length)
{
    struct p4r_slots *slots = batch->slots;

    slots->counts.frames_received++;
    slots->counts.bytes_received += length;
    if (is_an_answer(slots, frame, length))
        take_answer(batch, frame, lanes);
    else
        slots->counts.invalid++;
}

/* A frame that another core has written is asked for while those before it are read, and so is where
 * its numbers go. */
static void will_take(const struct p4r_slots *slots, const uint8_t *row, const uint8_t *frame)
{
    uint32_t slot = p4r_get_slot(row);

    for (int at = P4R_EMPTY_FRAME; at < P4R_WHOLE_FRAME; at += 64)
        __builtin_prefetch(frame + at, 0, 3);
    if (slot >= slots->slots || slots->expected[slot] == P4R_IDLE || slots->block[slot] < 0)
        return;
    const struct p4r_stream *stream = slots->streams[slot];
    if (stream->writes && !goes_past_caches(stream))
        p4r_block_will_decode(&stream->codec, &stream->target, slots->block[slot]);
}

void p4r_receive(struct p4r_slots *slots, uint8_t *rows, const int64_t *lengths, uint32_t count,
                 double now)
{
    p4r_receive_from(slots, rows, lengths, NULL, NULL, count, now);
}

void p4r_receive_from(struct p4r_slots *slots, uint8_t *rows, const int64_t *lengths,
                      const uint8_t *const *frames, const uint32_t *which, uint32_t count,
                      double now)
{
    struct batch batch = {.slots = slots, .now = now, .quiet = p4r_quiet(slots, now)};
    const uint8_t *first = rows + P4R_BUFFER_PAD;

    for (uint32_t i = 0; frames && i < count && i < AHEAD; i++) {
        uint32_t at = which ? which[i] : i;
        will_take(slots, first + (uint64_t)at * P4R_BUFFER_STRIDE, frames[at]);
    }
    for (uint32_t i = 0; i < count && !slots->trouble; i++) {
        uint32_t at = which ? which[i] : i;
        const uint8_t *frame = first + (uint64_t)at * P4R_BUFFER_STRIDE;
        if (frames && i + AHEAD < count) {
            uint32_t next = which ? which[i + AHEAD] : i + AHEAD;
            will_take(slots, first + (uint64_t)next * P4R_BUFFER_STRIDE, frames[next]);
        }
        take(&batch, frame, (frames ? frames[at] : frame) + P4R_PAYLOAD_OFFSET, lengths[at]);
    }
    finish_writes(&batch);
    if (batch.heard) {
        slots->heard_switch_at = now;
        p4r_window_heard(slots, now);
    }
    if (batch.completed && !slots->trouble)
        complete(slots, batch.completed, now);
}

void p4r_take_handed(struct p4r_slots *slots, const uint8_t *rows, uint32_t count, double now)
{
    struct batch batch = {.slots = slots, .now = now};

    for (uint32_t i = 0; i < count && !slots->trouble; i++) {
        const uint8_t *frame = rows + (uint64_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
        assert(p4r_get_slot(frame) < slots->slots);
        take_answer(&batch, frame, frame + P4R_PAYLOAD_OFFSET);
    }
    finish_writes(&batch);
    if (batch.completed && !slots->trouble)
        complete(slots, batch.completed, now);
}
