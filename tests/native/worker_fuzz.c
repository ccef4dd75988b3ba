/* SPDX-License-Identifier: Apache-2.0 */
/* Any frames at any state of a worker's slots: nothing beyond an array is touched, whatever comes.
 *
 *     worker_fuzz SEED ROUNDS
 *
 * Each array has exactly the entries that worker.h asks for, so that the address sanitizer sees a
 * step beyond; built with -fsanitize=address,undefined. Prints how many frames were regular. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/worker.h"

#define MOST 40
#define TABLE 256

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static void *array(size_t count, size_t size)
{
    void *made = calloc(count, size);
    if (!made)
        exit(2);
    return made;
}

static void randomise(void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)draw(256);
}

/* Tables for one rank of 4; only their sizes matter here. */
static double scales[TABLE], factors[TABLE];
static float scales32[TABLE], factors32[TABLE];

static void make_tables(void)
{
    for (int e = 0; e < TABLE; e++) {
        scales[e] = ldexp(1.0, 29 + 126 - e);
        factors[e] = 1 / scales[e];
        scales32[e] = (float)scales[e];
        factors32[e] = (float)factors[e];
    }
}

struct tensor {
    struct p4r_piece pieces[2];
    uint8_t *bytes;
};

/* Blocks in one piece or two, exactly as long as they have to be; some are nowhere. */
static struct p4r_blocks make_tensor(struct tensor *tensor, int64_t blocks, uint64_t block_bytes)
{
    uint64_t tail = draw(2) ? 1 + draw((uint32_t)block_bytes - 1) : 0;
    int64_t first = blocks > 2 && draw(2) ? blocks / 2 : 0;
    int64_t full = blocks - first - (tail && blocks > first);

    if (!full || blocks == first)
        tail = tail && blocks > first ? tail : 0;
    tensor->bytes = array((uint64_t)full * block_bytes + tail + 1, 1);
    randomise(tensor->bytes, (uint64_t)full * block_bytes + tail);
    struct p4r_piece nowhere = {0, first, 0, NULL};
    struct p4r_piece real = {first, full, (int64_t)tail, tensor->bytes};
    tensor->pieces[0] = first ? nowhere : real;
    tensor->pieces[1] = real;
    return (struct p4r_blocks){tensor->pieces, NULL, first ? 2 : 1};
}

struct setting {
    struct p4r_slots slots;
    struct p4r_stream stream;
    struct tensor source, target;
    int64_t *next_nonzero;
    uint8_t *exponents;
    int64_t left;
};

static void make_stream(struct setting *setting, uint32_t slots)
{
    static const uint32_t lane_bytes[] = {4, 2, 1};
    struct p4r_stream *stream = &setting->stream;
    int64_t blocks = 1 + draw(30);

    stream->codec = (struct p4r_codec){.numbers = draw(4),
                                       .lane_bytes = lane_bytes[draw(3)],
                                       .inexact = draw(2),
                                       .key = state,
                                       .limit = 31,
                                       .divisor = 31,
                                       .scales = scales,
                                       .scales32 = scales32,
                                       .factors = factors,
                                       .factors32 = factors32};
    if (stream->codec.lane_bytes == 4)
        stream->codec.limit = 536870911;
    static const uint32_t of_floats[] = {0, 2, 4, 8};
    uint32_t size =
        stream->codec.numbers ? of_floats[stream->codec.numbers] : stream->codec.lane_bytes;
    uint64_t block_bytes = (uint64_t)(P4R_PAYLOAD_BYTES / stream->codec.lane_bytes) * size;
    stream->source = make_tensor(&setting->source, blocks, block_bytes);
    stream->target = make_tensor(&setting->target, blocks, block_bytes);
    stream->count = blocks;
    stream->stripes = blocks < slots ? blocks : slots;
    stream->tag = 77;
    stream->format = stream->codec.lane_bytes == 4 ? 0 : stream->codec.lane_bytes == 2 ? 1 : 2;
    int64_t known = blocks + stream->stripes;
    setting->next_nonzero = array((size_t)known, sizeof(int64_t));
    for (int64_t b = 0; b < known; b++)
        setting->next_nonzero[b] = b < blocks ? b : blocks;
    setting->exponents = array((size_t)blocks + 1, 1);
    randomise(setting->exponents, (size_t)blocks + 1);
    stream->next_nonzero = setting->next_nonzero;
    stream->exponents = setting->exponents;
    stream->sequence = draw(3);
    stream->offset = draw(slots);
    stream->slots = slots;
    setting->left = stream->stripes;
    stream->left = &setting->left;
}

static void make_slots(struct setting *setting, uint32_t count)
{
    struct p4r_slots *slots = &setting->slots;

    *slots = (struct p4r_slots){.slots = count,
                                .job = 5,
                                .levels = 1 + draw(3),
                                .turn = draw(3),
                                .tries_a_doubling = 1 + draw(2),
                                .stretch = 1 + 0.25 * draw(2),
                                .everybody = draw(256),
                                .left_elsewhere = draw(8) == 0,
                                .most = MOST,
                                .window = 1 + draw(count),
                                .growth = 1,
                                .latest = INFINITY};
    slots->timeout = (struct p4r_timeout){0.05, 0.01, 0.25, 0.25, 0, 0, 0, -INFINITY};
    slots->opening_timeout = slots->timeout;
    for (int i = 0; i < P4R_COMPARED; i++)
        slots->mask[i] = i == 0 ? 0xff : 0; /* one byte decides whether a frame is for us */
    slots->streams = array(count, sizeof *slots->streams);
    int64_t **longs[] = {&slots->expected,  &slots->block,  &slots->announced, &slots->row,
                         &slots->tries,     &slots->order,  &slots->queued,    &slots->ended,
                         &slots->completed, &slots->sorted, &slots->owner,     &slots->count};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        *longs[i] = array(count, sizeof(int64_t));
    uint8_t **bytes[] = {&slots->exponent, &slots->parts,      &slots->opening,
                         &slots->waiting,  &slots->seen,       &slots->how,
                         &slots->level,    &slots->ended_late, &slots->behind};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        *bytes[i] = array(count, 1);
    slots->next_round = array(count, sizeof *slots->next_round);
    slots->tag = array(count, sizeof *slots->tag);
    slots->format = array(count, sizeof *slots->format);
    slots->awaited = array((size_t)count * P4R_AGG_WORDS, sizeof *slots->awaited);
    slots->heard = array(count, sizeof *slots->heard);
    slots->outgoing = array((size_t)count * P4R_SHAPES, P4R_BUFFER_STRIDE);
    slots->sent_at = array(count, sizeof(double));
    slots->due = array(count, sizeof(double));
    slots->round_trips = array(P4R_ROUND_TRIPS, sizeof(double));
    slots->samples = array(P4R_ROUND_TRIPS, sizeof(double));
    slots->verdicts = array(MOST, 1);
    slots->next = array((size_t)count * 2, sizeof *slots->next);
    for (uint32_t slot = 0; slot < count; slot++) {
        int open = draw(4) != 0;
        slots->streams[slot] = draw(8) ? &setting->stream : NULL;
        slots->expected[slot] = open ? (int64_t)draw(3) : P4R_IDLE;
        slots->block[slot] = draw(2) ? P4R_OPENING : (int64_t)draw((uint32_t)setting->stream.count);
        slots->announced[slot] = draw((uint32_t)setting->stream.count + 1);
        slots->row[slot] = slot * P4R_SHAPES + draw(P4R_SHAPES);
        slots->order[slot] = open ? (int64_t)(count - slot) : INT64_MAX;
        slots->tries[slot] = draw(3);
        slots->due[slot] = draw(2) ? INFINITY : 1.0;
        slots->opening[slot] = (uint8_t)draw(2);
        slots->behind[slot] = draw(3) == 0;
    }
    slots->backed_off = slots->some_open = 1;
}

static void put(uint8_t *frame, int word, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        frame[P4R_AGG_OFFSET + 4 * word + i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Half of them nearly what a slot waits for, the others anything. */
static int64_t make_frame(const struct setting *setting, uint8_t *frame)
{
    static const int64_t lengths[] = {78, 590, 1102};
    static const uint32_t flags[] = {0, 0x41, 0x01, 0x81, 0x11, 0x10, 0x05, 0x20};
    const struct p4r_slots *slots = &setting->slots;
    uint32_t slot = draw(slots->slots), kind = 1 + (draw(8) == 0), flag = flags[draw(8)];
    int64_t length = flag & 0xc0 ? lengths[1] : flag & 1 ? lengths[2] : lengths[0];

    randomise(frame, P4R_BUFFER_STRIDE - P4R_BUFFER_PAD);
    frame[6] = draw(10) ? 0 : 1;
    if (draw(4) == 0)
        return draw(2) ? draw(P4R_BUFFER_STRIDE - P4R_BUFFER_PAD + 1) : lengths[draw(3)];
    put(frame, 0, 0x10000000 | kind << 24 | flag << 16);
    put(frame, 2, slot << 16 | setting->stream.format << 8 | draw(256));
    put(frame, 3, (uint32_t)slots->expected[slot] + (draw(10) == 0));
    put(frame, 4, (uint32_t)slots->block[slot]);
    put(frame, 5, draw(3) ? draw((uint32_t)setting->stream.count + 1) : 0xffffffff);
    put(frame, 6, draw(20) ? 77 : 78);
    return draw(20) ? length : lengths[draw(3)];
}

static void release(struct setting *setting)
{
    struct p4r_slots *slots = &setting->slots;
    void *all[] = {slots->streams,
                   slots->expected,
                   slots->block,
                   slots->announced,
                   slots->row,
                   slots->tries,
                   slots->order,
                   slots->queued,
                   slots->ended,
                   slots->completed,
                   slots->sorted,
                   slots->exponent,
                   slots->parts,
                   slots->opening,
                   slots->waiting,
                   slots->seen,
                   slots->how,
                   slots->ended_late,
                   slots->owner,
                   slots->count,
                   slots->tag,
                   slots->format,
                   slots->behind,
                   slots->next_round,
                   slots->awaited,
                   slots->heard,
                   slots->outgoing,
                   slots->sent_at,
                   slots->due,
                   slots->round_trips,
                   slots->samples,
                   slots->verdicts,
                   slots->level,
                   slots->next,
                   setting->source.bytes,
                   setting->target.bytes,
                   setting->next_nonzero,
                   setting->exponents};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Take frames of which only the headers are in the rows, as of a ring that a peer can write to. The
 * others lie in memory of their own, as long as they are; what is behind headers in rows is not
 * theirs. What is left for Python has to be whole. */
static void receive_from_ring(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths,
                              uint32_t count, double now)
{
    const uint8_t *frames[MOST];
    uint8_t *whole[MOST];

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *row = rows + (size_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
        frames[i] = whole[i] = array((size_t)lengths[i] + 1, 1);
        memcpy(whole[i], row, (size_t)lengths[i]);
        if (lengths[i] > P4R_PAYLOAD_OFFSET)
            memset(row + P4R_PAYLOAD_OFFSET, 0xee, (size_t)lengths[i] - P4R_PAYLOAD_OFFSET);
    }
    p4r_receive_from(slots, rows, lengths, frames, count, now);
    uint32_t found = 0;
    for (uint32_t i = 0; i < count && found < slots->odd_count; i++) {
        const uint8_t *row = rows + (size_t)found * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
        size_t length = (size_t)lengths[found];
        found += slots->verdicts[i] == 0 && !memcmp(row, whole[i], length);
    }
    if (found != slots->odd_count) {
        fprintf(stderr, "%u of %u odd frames are as they came\n", found, slots->odd_count);
        exit(1);
    }
    for (uint32_t i = 0; i < count; i++)
        free(whole[i]);
}

int main(int argc, char **argv)
{
    int64_t regular = 0, opened = 0, over = 0;

    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    make_tables();
    for (long round = 0; round < atol(argv[2]); round++) {
        struct setting setting = {0};
        uint32_t slots = 1 + draw(20);
        make_stream(&setting, slots);
        make_slots(&setting, slots);
        uint8_t *rows = array(MOST, P4R_BUFFER_STRIDE);
        int64_t *lengths = array(MOST, sizeof *lengths), *out = array(slots + MOST, sizeof *out);
        for (int batch = 0; batch < 12; batch++) {
            uint32_t count = 1 + draw(draw(2) ? 4 : MOST);
            for (uint32_t i = 0; i < count; i++)
                lengths[i] =
                    make_frame(&setting, rows + (size_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD);
            double now = 1.0 + batch * 0.01;
            if (draw(2))
                p4r_receive(&setting.slots, rows, lengths, count, now);
            else
                receive_from_ring(&setting.slots, rows, lengths, count, now);
            uint32_t sent =
                p4r_let_out(&setting.slots, setting.slots.queued, setting.slots.queued_count, out);
            p4r_sent(&setting.slots, out, sent, now);
            for (uint32_t i = 0; i < setting.slots.ended_count; i++) {
                int64_t slot = setting.slots.ended[i];
                setting.slots.expected[slot] = P4R_IDLE;
                setting.slots.order[slot] = P4R_LAST;
            }
            /* What is free begins anew. */
            uint64_t free_count = 0;
            for (int64_t stripe = 0; stripe < setting.stream.stripes; stripe++) {
                int64_t slot = (setting.stream.offset + stripe) % slots;
                if (setting.slots.expected[slot] == P4R_IDLE && draw(2))
                    out[free_count++] = slot;
            }
            p4r_open(&setting.slots, &setting.stream, out, free_count);
            opened += (int64_t)free_count;
            over += setting.slots.finished;
            setting.slots.finished = 0;
            setting.left = 1 + draw(3);
        }
        regular += setting.slots.counts.frames_received;
        free(rows);
        free(lengths);
        free(out);
        release(&setting);
    }
    printf("%lld regular frames, %lld stripes opened, %lld times the last one was over\n",
           (long long)regular, (long long)opened, (long long)over);
    return regular == 0 || opened == 0 || over == 0;
}
