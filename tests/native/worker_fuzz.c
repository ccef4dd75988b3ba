/* SPDX-License-Identifier: Apache-2.0 */
/* Any frames to a worker's slots, and time that passes: nothing beyond an array is touched, whatever
 * comes, and the slots' state stays one that can be.
 *
 *     worker_fuzz SEED ROUNDS
 *
 * Each array has exactly the entries that worker.h asks for, so that the address sanitizer sees a
 * step beyond; built with -fsanitize=address,undefined. Prints how far it got. */
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
    void *made = calloc(count ? count : 1, size);
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
    uint64_t tail = blocks && draw(2) ? 1 + draw((uint32_t)block_bytes - 1) : 0;
    int64_t first = blocks > 2 && draw(2) ? blocks / 2 : 0;
    int64_t full = blocks - first - (tail != 0);
    uint64_t bytes = (uint64_t)full * block_bytes + tail;

    tensor->bytes = array(bytes, 1);
    randomise(tensor->bytes, bytes);
    struct p4r_piece nowhere = {0, first, 0, NULL};
    struct p4r_piece real = {first, full, (int64_t)tail, tensor->bytes};
    tensor->pieces[0] = first ? nowhere : real;
    tensor->pieces[1] = real;
    return (struct p4r_blocks){tensor->pieces, NULL, first ? 2 : 1};
}

#define MOST_STREAMS 6

struct running {
    struct p4r_stream stream;
    struct tensor source, target;
    int64_t *next_nonzero;
    uint8_t *exponents;
    int64_t left[2];
};

struct setting {
    struct p4r_slots slots;
    struct running running[MOST_STREAMS];
    uint32_t begun, given[P4R_CLASSES];
};

static struct setting *visited; /* by p4r_visit */

/* What Python would do: look at all that it is given, and write all that it is asked for. */
static void visit(int64_t sequence, uint32_t what, const int64_t *blocks, uint32_t count,
                  uint8_t *rows)
{
    const struct p4r_stream *stream = &visited->running[sequence].stream;
    uint64_t bytes = (uint64_t)p4r_lanes(&stream->codec) * p4r_number_bytes(&stream->codec) /
                     (what == P4R_FIRST || what == P4R_SECOND ? 2 : 1);

    for (uint32_t i = 0; i < count; i++)
        if (blocks[i] < 0 || blocks[i] >= stream->count)
            exit(3);
    if (what == P4R_READ)
        randomise(rows, bytes * count);
    for (uint64_t i = 0; what >= P4R_FIRST && what <= P4R_WHOLE && i < bytes * count; i++)
        state += rows[i];
}

static void make_stream(struct setting *setting, uint32_t number)
{
    static const uint32_t lane_bits[] = {32, 16, 8, 4}, formats[] = {0, 1, 2, 4};
    uint32_t class = draw(setting->slots.classes), first = setting->slots.starts[class];
    uint32_t above = class + 1;
    uint32_t slots =
        (above < setting->slots.classes ? setting->slots.starts[above] : setting->slots.slots) -
        first;
    struct running *running = &setting->running[number];
    struct p4r_stream *stream = &running->stream;
    int64_t blocks = draw(30);
    uint32_t lanes = draw(4);

    stream->codec = (struct p4r_codec){.numbers = draw(4),
                                       .lane_bits = lane_bits[lanes],
                                       .inexact = draw(2),
                                       .key = state,
                                       .limit = 31,
                                       .divisor = 31,
                                       .scales = scales,
                                       .scales32 = scales32,
                                       .factors = factors,
                                       .factors32 = factors32};
    if (stream->codec.lane_bits == 32)
        stream->codec.limit = 536870911;
    uint64_t block_bytes = (uint64_t)p4r_lanes(&stream->codec) * p4r_number_bytes(&stream->codec);
    stream->source = make_tensor(&running->source, blocks, block_bytes);
    stream->target = make_tensor(&running->target, blocks, block_bytes);
    stream->count = blocks;
    stream->stripes = blocks < slots ? blocks + !blocks : slots;
    stream->tag = 77;
    stream->format = formats[lanes];
    int64_t known = blocks + stream->stripes;
    running->next_nonzero = array((size_t)known, sizeof(int64_t));
    for (int64_t b = 0; b < known; b++)
        running->next_nonzero[b] = b < blocks ? b : blocks;
    running->exponents = array((size_t)blocks + 1, 1);
    randomise(running->exponents, (size_t)blocks + 1);
    stream->next_nonzero = running->next_nonzero;
    stream->exponents = running->exponents;
    stream->sequence = number;
    stream->first = first;
    stream->offset = first + setting->given[class] % slots;
    stream->before = (int64_t)class << 58;
    setting->given[class] += (uint32_t)stream->stripes;
    stream->slots = slots;
    running->left[0] = stream->stripes;
    running->left[1] = P4R_NO_OVERFLOW;
    stream->left = running->left;
    stream->deadline = draw(8) ? INFINITY : 1.5;
    stream->reads = draw(4) != 0;
    stream->writes = draw(4) != 0;
}

static void make_slots(struct setting *setting, uint32_t count)
{
    struct p4r_slots *slots = &setting->slots;

    *slots = (struct p4r_slots){.slots = count,
                                .job = 5,
                                .levels = 1 + draw(3),
                                .deferral = draw(2),
                                .tries_a_doubling = 1 + draw(2),
                                .classes = 1 + draw(count < P4R_CLASSES ? count : P4R_CLASSES),
                                .asks_for_all = draw(2),
                                .stretch = 1 + 0.25 * draw(2),
                                .everybody = draw(256),
                                .visit = visit,
                                .room = MOST_STREAMS,
                                .window = 1 + draw(count),
                                .growth = 1,
                                .floor = 1,
                                .heard_switch_at = -INFINITY,
                                .latest = INFINITY};
    for (uint32_t class = 1; class < slots->classes; class++)
        slots->starts[class] = count - slots->classes + class;
    slots->timeout = (struct p4r_timeout){.seconds = 0.05,
                                          .floor = 0.01,
                                          .least_ceiling = 0.25,
                                          .ceiling = 0.25,
                                          .window_ends = -INFINITY,
                                          .answered_up_to = -INFINITY,
                                          .answered_at = -INFINITY};
    slots->opening_timeout = slots->timeout;
    for (int i = 0; i < P4R_COMPARED; i++)
        slots->mask[i] = i == 0 ? 0xff : 0; /* one byte decides whether a frame is for us */
    slots->live = array(MOST_STREAMS, sizeof *slots->live);
    slots->over = array(MOST_STREAMS, sizeof *slots->over);
    slots->streams = array(count, sizeof *slots->streams);
    int64_t **longs[] = {&slots->expected, &slots->block,     &slots->announced, &slots->row,
                         &slots->owner,    &slots->tries,     &slots->order,     &slots->queued,
                         &slots->sorted,   &slots->completed, &slots->visiting};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++)
        *longs[i] = array(count, sizeof(int64_t));
    uint8_t **bytes[] = {&slots->exponent, &slots->parts, &slots->opening,
                         &slots->waiting,  &slots->how,   &slots->level};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        *bytes[i] = array(count, 1);
    slots->next_round = array(count, sizeof *slots->next_round);
    slots->heard = array(count, sizeof *slots->heard);
    slots->left = array(slots->levels, sizeof *slots->left);
    slots->left[draw(slots->levels)] = draw(16) ? 0 : draw(256);
    slots->outgoing = array((size_t)count * P4R_SHAPES, P4R_BUFFER_STRIDE);
    slots->kept = array(count, P4R_BUFFER_STRIDE);
    slots->lengths = array((size_t)count * P4R_SHAPES, sizeof *slots->lengths);
    slots->sent_at = array(count, sizeof(double));
    slots->due = array(count, sizeof(double));
    slots->round_trips = array(P4R_ROUND_TRIPS, sizeof(double));
    slots->samples = array(P4R_ROUND_TRIPS, sizeof(double));
    slots->next = array((size_t)count * 2, sizeof *slots->next);
    slots->numbers = array(count, 2 * P4R_MOST_NUMBER_BYTES);
    slots->visited = array((size_t)count * 3, sizeof(int64_t));
    for (uint32_t slot = 0; slot < count; slot++) {
        slots->next_round[slot] = draw(2) ? 0xfffffffe : 0;
        slots->expected[slot] = P4R_IDLE;
        slots->order[slot] = P4R_LAST;
        slots->due[slot] = INFINITY;
    }
}

/* Most of them nearly what a slot waits for, the others anything. */
static int64_t make_frame(const struct setting *setting, uint8_t *frame)
{
    static const int64_t lengths[] = {P4R_EMPTY_FRAME, P4R_HALF_FRAME, P4R_WHOLE_FRAME};
    static const uint32_t flags[] = {0x41, 0x01, 0x01, 0x81, 0x11, 0x05, 0x03, 0x20};
    const struct p4r_slots *slots = &setting->slots;
    uint32_t slot = draw(slots->slots), kind = 1 + (draw(8) == 0), flag = flags[draw(8)];
    uint32_t format = 0, blocks = 8;

    if (slots->expected[slot] != P4R_IDLE) {
        format = slots->streams[slot]->format;
        blocks = (uint32_t)slots->streams[slot]->count + 1;
        flag = slots->block[slot] == P4R_OPENING && draw(8) ? 0 : flag;
    }
    flag |= draw(200) == 0 ? 0x08 : 0;
    int64_t length = flag & 0xc0 ? lengths[1] : flag & 1 ? lengths[2] : lengths[0];

    randomise(frame, P4R_BUFFER_STRIDE - P4R_BUFFER_PAD);
    frame[6] = draw(10) ? 0 : 1;
    if (draw(8) == 0)
        return draw(2) ? draw(P4R_BUFFER_STRIDE - P4R_BUFFER_PAD + 1) : lengths[draw(3)];
    const struct p4r_header header = {
        .version = P4R_VERSION,
        .kind = (uint8_t)kind,
        .flags = (uint8_t)flag,
        .job = p4r_get_job(frame),
        .slot = (uint16_t)slot,
        .format = (uint8_t)format,
        .next_exponent = (uint8_t)draw(256),
        .round = (uint32_t)slots->expected[slot] + (draw(10) == 0),
        .block = (uint32_t)slots->block[slot],
        .next_block = draw(3) ? draw(blocks) : P4R_NO_BLOCK,
        .tag = draw(20) ? 77 : 78,
        .contributors = p4r_get_contributors(frame),
    };
    p4r_put_header(frame, &header);
    return draw(20) ? kind == 2 ? lengths[0] : length : lengths[draw(3)];
}

static void release(struct setting *setting)
{
    struct p4r_slots *slots = &setting->slots;
    void *all[] = {
        slots->live,      slots->over,       slots->streams,   slots->expected,    slots->block,
        slots->announced, slots->row,        slots->owner,     slots->tries,       slots->order,
        slots->queued,    slots->sorted,     slots->completed, slots->visited,     slots->visiting,
        slots->exponent,  slots->parts,      slots->opening,   slots->waiting,     slots->how,
        slots->level,     slots->next_round, slots->heard,     slots->left,        slots->outgoing,
        slots->lengths,   slots->sent_at,    slots->due,       slots->round_trips, slots->samples,
        slots->next,      slots->numbers,    slots->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (uint32_t i = 0; i < setting->begun; i++) {
        free(setting->running[i].source.bytes);
        free(setting->running[i].target.bytes);
        free(setting->running[i].next_nonzero);
        free(setting->running[i].exponents);
    }
}

/* Take frames of which only the headers are in the rows, as of a ring that a peer can write to. The
 * others lie in memory of their own, as long as they are; what is behind headers in rows is not
 * theirs. */
static void receive_from_ring(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths,
                              uint32_t count, double now)
{
    const uint8_t *frames[MOST];
    uint8_t *whole[MOST];

    for (uint32_t i = 0; i < count; i++) {
        uint8_t *row = rows + (size_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
        frames[i] = whole[i] = array((size_t)lengths[i], 1);
        memcpy(whole[i], row, (size_t)lengths[i]);
        if (lengths[i] > P4R_PAYLOAD_OFFSET)
            memset(row + P4R_PAYLOAD_OFFSET, 0xee, (size_t)lengths[i] - P4R_PAYLOAD_OFFSET);
    }
    /* All, or as from a link of several jobs those of one, and then those of another. */
    uint32_t which[2][MOST], some[2] = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t job = rows[P4R_BUFFER_PAD + (size_t)i * P4R_BUFFER_STRIDE] & 1;
        which[job][some[job]++] = i;
    }
    if (count && lengths[0] & 1) {
        p4r_receive_from(slots, rows, lengths, frames, NULL, count, now);
    } else {
        p4r_receive_from(slots, rows, lengths, frames, which[0], some[0], now);
        p4r_receive_from(slots, rows, lengths, frames, which[1], some[1], now);
    }
    for (uint32_t i = 0; i < count; i++)
        free(whole[i]);
}

/* Each slot is idle, or has a stream that runs; what has ended is said once. */
static void check(const struct setting *setting)
{
    const struct p4r_slots *slots = &setting->slots;
    int64_t open = 0, left = 0;

    for (uint32_t slot = 0; slot < slots->slots; slot++) {
        if (slots->expected[slot] == P4R_IDLE) {
            if (slots->due[slot] != INFINITY || slots->order[slot] != P4R_LAST)
                exit(4);
            continue;
        }
        uint32_t at = 0;
        while (at < slots->live_count && slots->live[at] != slots->streams[slot])
            at++;
        if (at == slots->live_count || slots->block[slot] >= slots->streams[slot]->count)
            exit(5);
        open++;
    }
    for (uint32_t i = 0; i < slots->live_count; i++)
        left += slots->live[i]->left[0];
    if (left < open || slots->live_count + slots->over_count > MOST_STREAMS)
        exit(6);
}

int main(int argc, char **argv)
{
    int64_t received = 0, sums = 0, over = 0, troubles = 0;

    if (argc != 3)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    make_tables();
    for (long round = 0; round < atol(argv[2]); round++) {
        struct setting setting = {0};
        uint32_t count = 1 + draw(20);
        struct p4r_slots *slots = &setting.slots;
        make_slots(&setting, count);
        visited = &setting;
        uint8_t *rows = array(MOST, P4R_BUFFER_STRIDE);
        int64_t *lengths = array(MOST, sizeof *lengths), *out = array(count, sizeof *out);
        for (int batch = 0; batch < 60 && !slots->trouble; batch++) {
            double now = 1.0 + batch * 0.01;
            if (setting.begun < MOST_STREAMS && draw(4) == 0) {
                make_stream(&setting, setting.begun);
                p4r_submit(slots, &setting.running[setting.begun++].stream, now);
            }
            uint32_t frames = 1 + draw(draw(2) ? 4 : MOST);
            for (uint32_t i = 0; i < frames; i++)
                lengths[i] =
                    make_frame(&setting, rows + (size_t)i * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD);
            if (draw(2))
                p4r_receive(slots, rows, lengths, frames, now);
            else
                receive_from_ring(slots, rows, lengths, frames, now);
            p4r_sent(slots, out, p4r_release(slots, out), now);
            if (draw(4) == 0)
                p4r_expire_timers(slots, (int)draw(2), now);
            p4r_expire(slots, now);
            check(&setting);
            over += slots->over_count;
            slots->over_count = 0;
        }
        troubles += slots->trouble != P4R_FINE;
        received += slots->counts.frames_received;
        sums += slots->counts.blocks_received;
        p4r_stop(slots);
        check(&setting);
        free(rows);
        free(lengths);
        free(out);
        release(&setting);
    }
    printf("%lld frames, %lld sums, %lld streams over, %lld ends of everything\n",
           (long long)received, (long long)sums, (long long)over, (long long)troubles);
    return sums == 0 || over == 0 || troubles == 0;
}
