/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of frames from the switch: which of them are regular, and what these lead to.
 *
 * First each frame is judged by the state before the batch, without changing anything; then what is
 * regular is done. A slot of which one frame is odd is left to Python with all its frames, so that
 * what is done here and what is done there have nothing to do with each other. If one may end
 * everything, Python has the whole batch: what else is in it counts only if it does not. */
#include "worker/worker.h"

#include <string.h>

enum verdict { ODD, ENDS_ALL, RESULT, STALE, STATUS };

#define KIND_RESULT 1
#define KIND_STATUS 2
#define FLAG_PAYLOAD 0x01u
#define FLAG_MISMATCH 0x08u
#define FLAG_RETRANSMISSION 0x10u
#define FLAG_PADDED 0x20u
#define FLAG_FIRST_HALF 0x40u
#define FLAG_SECOND_HALF 0x80u
#define NO_BLOCK 0xffffffffu

#define EMPTY_FRAME P4R_PAYLOAD_OFFSET
#define HALF_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES / 2)
#define WHOLE_FRAME (P4R_PAYLOAD_OFFSET + P4R_PAYLOAD_BYTES)

/* In `seen`, beside the parts of a result that there are in the batch. */
#define SEEN_ODD 4
#define SEEN_ROOMLESS 8 /* a status that asks for room */

/* Words of the aggregation header. */
enum { KIND_FLAGS_RANK, JOB, SLOT_FORMAT_EXPONENT, ROUND, BLOCK, NEXT_BLOCK, TAG, CONTRIBUTORS };

static inline uint32_t word(const uint8_t *frame, int number)
{
    const uint8_t *at = frame + P4R_AGG_OFFSET + 4 * number;
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint32_t kind_of(const uint8_t *frame) { return frame[P4R_AGG_OFFSET] & 0xf; }

static inline uint32_t flags_of(const uint8_t *frame) { return frame[P4R_AGG_OFFSET + 1]; }

static inline uint32_t slot_of(const uint8_t *frame)
{
    return word(frame, SLOT_FORMAT_EXPONENT) >> 16;
}

/* In a status: how many switches above the own one it is from. */
static inline uint8_t level_of(const struct p4r_slots *slots, const uint8_t *frame)
{
    uint32_t level = word(frame, SLOT_FORMAT_EXPONENT) & 0xff;
    return (uint8_t)(level < slots->levels ? level : slots->levels - 1);
}

static inline uint64_t contributors(const uint8_t *frame)
{
    return (uint64_t)word(frame, CONTRIBUTORS) << 32 | word(frame, CONTRIBUTORS + 1);
}

static inline uint32_t part_of(uint32_t flags)
{
    return flags & FLAG_FIRST_HALF ? P4R_FIRST : flags & FLAG_SECOND_HALF ? P4R_SECOND : P4R_WHOLE;
}

static int is_to_us(const struct p4r_slots *slots, const uint8_t *frame)
{
    uint64_t different = 0, words[P4R_COMPARED];
    memcpy(words, frame + 6, sizeof words);
    for (int i = 0; i < P4R_COMPARED; i++)
        different |= (words[i] & slots->mask[i]) ^ slots->wanted[i];
    return !different;
}

/* A result of the round that its slot waits for: whether it is as awaited. */
static enum verdict judge_result(const struct p4r_slots *slots, const uint8_t *frame,
                                 int64_t length, uint32_t slot)
{
    const struct p4r_stream *stream = slots->streams[slot];
    uint32_t flags = flags_of(frame) & ~FLAG_RETRANSMISSION;
    uint32_t block = word(frame, BLOCK), next = word(frame, NEXT_BLOCK);

    if (slots->block[slot] == P4R_OPENING) {
        if (flags || length != EMPTY_FRAME)
            return ODD;
    } else if (flags == FLAG_PAYLOAD) {
        if (length != WHOLE_FRAME)
            return ODD;
    } else if (flags == (FLAG_PAYLOAD | FLAG_FIRST_HALF) ||
               flags == (FLAG_PAYLOAD | FLAG_SECOND_HALF)) {
        if (length != HALF_FRAME)
            return ODD;
    } else {
        return ODD;
    }
    if (block != (uint32_t)slots->block[slot] || word(frame, TAG) != stream->tag ||
        (word(frame, SLOT_FORMAT_EXPONENT) >> 8 & 0xff) != stream->format)
        return ODD;
    if (next != NO_BLOCK && (int64_t)next >= stream->count)
        return ODD;
    return RESULT;
}

/* An answer about the round under way: whether the ranks may not agree on it, or somebody who was not
 * heard may have left. */
static int may_end_all(const struct p4r_slots *slots, const uint8_t *frame, uint32_t kind)
{
    if (kind == KIND_RESULT)
        return (flags_of(frame) & FLAG_MISMATCH) != 0;
    if (kind != KIND_STATUS || flags_of(frame) & FLAG_PADDED)
        return 0;
    if (level_of(slots, frame))
        return slots->left_elsewhere != 0;
    return (slots->left & ~contributors(frame)) != 0;
}

static enum verdict judge(const struct p4r_slots *slots, const uint8_t *frame, int64_t length)
{
    if (length < EMPTY_FRAME || !is_to_us(slots, frame))
        return ODD;
    uint32_t slot = slot_of(frame), kind = kind_of(frame);
    if (slot >= slots->slots || slots->expected[slot] == P4R_IDLE)
        return ODD;
    int awaited = slots->expected[slot] == (int64_t)word(frame, ROUND);
    if (awaited && may_end_all(slots, frame, kind))
        return ENDS_ALL;
    if (!slots->streams[slot])
        return ODD;
    if (kind == KIND_STATUS) {
        if (length != EMPTY_FRAME)
            return ODD;
    } else if (kind != KIND_RESULT) {
        return ODD;
    }
    if (!awaited) {
        /* The plainest only: of a result that has come already, or of a slow answer. */
        uint32_t flags = flags_of(frame) & ~FLAG_RETRANSMISSION;
        if (kind == KIND_STATUS || (flags == FLAG_PAYLOAD && length == WHOLE_FRAME))
            return STALE;
        return ODD;
    }
    return kind == KIND_STATUS ? STATUS : judge_result(slots, frame, length, slot);
}

static inline uint8_t *frame_at(uint8_t *rows, uint32_t row)
{
    return rows + (uint64_t)row * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD;
}

/* Judge all, and find the slots with something odd. */
static void judge_all(struct p4r_slots *slots, uint8_t *rows, const int64_t *lengths,
                      uint32_t count)
{
    int ends_all = 0;

    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *frame = frame_at(rows, i);
        enum verdict verdict = judge(slots, frame, lengths[i]);
        ends_all |= verdict == ENDS_ALL;
        slots->verdicts[i] = (uint8_t)verdict;
        uint32_t slot = slot_of(frame);
        if (slot >= slots->slots)
            continue;
        if (verdict == ODD) {
            slots->seen[slot] |= SEEN_ODD;
        } else if (verdict == RESULT) {
            uint32_t part = part_of(flags_of(frame));
            if ((slots->seen[slot] | slots->parts[slot]) & part)
                slots->seen[slot] |= SEEN_ODD; /* twice */
            slots->seen[slot] |= (uint8_t)part;
        } else if (verdict == STATUS && flags_of(frame) & FLAG_PADDED) {
            slots->seen[slot] |= SEEN_ROOMLESS;
        }
        /* It depends on the result whether there is still something to repeat. */
        if (slots->seen[slot] & SEEN_ROOMLESS && slots->seen[slot] & P4R_WHOLE)
            slots->seen[slot] |= SEEN_ODD;
    }
    /* Those of a slot with something odd are odd themselves. */
    for (uint32_t i = 0; i < count; i++)
        if (ends_all ||
            (slots->verdicts[i] != ODD && slots->seen[slot_of(frame_at(rows, i))] & SEEN_ODD))
            slots->verdicts[i] = ODD;
    for (uint32_t i = 0; i < count; i++)
        if (slot_of(frame_at(rows, i)) < slots->slots)
            slots->seen[slot_of(frame_at(rows, i))] = 0;
}

/* Move a frame to the front, where Python finds it. Its header stays as it was judged. */
static void give_back(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths, const uint8_t *from,
                      uint32_t row)
{
    uint32_t to = slots->odd_count++;
    size_t length = (size_t)lengths[row];
    uint8_t *frame = frame_at(rows, to);

    if (to != row)
        memcpy(frame, frame_at(rows, row), length < EMPTY_FRAME ? length : EMPTY_FRAME);
    if (from != frame && length > EMPTY_FRAME)
        memcpy(frame + EMPTY_FRAME, from + EMPTY_FRAME, length - EMPTY_FRAME);
    lengths[to] = lengths[row];
}

/* A frame that another core has written is asked for while the one before it is read. */
static void will_read(const uint8_t *frame)
{
    for (int at = EMPTY_FRAME; at < WHOLE_FRAME; at += 64)
        __builtin_prefetch(frame + at, 0, 3);
}

/* Write sums where they belong. Returns whether that completes the round. */
static int deliver(struct p4r_slots *slots, const uint8_t *frame, const uint8_t *lanes,
                   uint32_t slot)
{
    uint32_t part = part_of(flags_of(frame));

    if (slots->block[slot] == P4R_OPENING)
        return 1;
    p4r_block_decode(&slots->streams[slot]->codec, &slots->streams[slot]->target,
                     slots->block[slot], slots->exponent[slot], lanes, part);
    slots->counts.blocks_received += part != P4R_FIRST;
    if (part == P4R_WHOLE)
        return 1;
    slots->parts[slot] |= (uint8_t)part;
    slots->some_halves = 1;
    return slots->parts[slot] == P4R_WHOLE;
}

static void note_completed(struct p4r_slots *slots, const uint8_t *frame, uint32_t slot,
                           uint32_t at)
{
    uint8_t how = 0;

    if (flags_of(frame) & FLAG_RETRANSMISSION)
        how = slots->tries[slot] ? P4R_LATE | P4R_TRIED : P4R_LATE;
    slots->completed[at] = slot;
    slots->how[at] = how;
    slots->next[2 * at] = word(frame, NEXT_BLOCK);
    slots->next[2 * at + 1] = word(frame, SLOT_FORMAT_EXPONENT) & 0xff;
}

/* Go on after rounds that are complete: slots.SlotMachine._complete. */
static void complete(struct p4r_slots *slots, uint32_t count, double now)
{
    int64_t troubled;

    for (uint32_t i = 0; i < count; i++) {
        slots->how[i] |= slots->heard[slots->completed[i]] ? P4R_TOLD : 0;
        slots->heard[slots->completed[i]] = 0;
    }
    int64_t rounds = p4r_timers_completed(slots, count, now, &troubled);

    p4r_window_completed(slots, rounds, troubled);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = (uint32_t)slots->completed[i], next = slots->next[2 * i];
        if (slots->some_halves)
            slots->parts[slot] = 0;
        /* What follows a repeated result is late by this rank's timer, for the others too. */
        int late = (slots->how[i] & P4R_TRIED) != 0;
        struct p4r_course *course = slots->streams[slot]->course;
        if (course)
            p4r_course_answered(course, slots->block[slot] == P4R_OPENING, now);
        if (next == NO_BLOCK && !slots->behind[slot]) {
            p4r_end_stripe(slots, slot);
            continue;
        }
        if (next == NO_BLOCK) {
            slots->ended_late[slots->ended_count] = (uint8_t)late;
            slots->ended[slots->ended_count++] = slot;
            continue;
        }
        p4r_contribute(slots, slot, next, (uint8_t)slots->next[2 * i + 1]);
        if (course && slots->row[slot] % P4R_SHAPES)
            course->last_made = now;
        if (late)
            slots->outgoing[(uint64_t)slots->row[slot] * P4R_BUFFER_STRIDE + P4R_BUFFER_PAD +
                            P4R_AGG_OFFSET + 1] |= FLAG_RETRANSMISSION;
        slots->queued[slots->queued_count++] = slots->row[slot];
    }
}

/* Let timers know who was heard: slots.SlotMachine._tell_timers. */
static void tell_timers(struct p4r_slots *slots, const uint8_t *frame, int quiet, double now)
{
    uint32_t slot = slot_of(frame);
    uint32_t ahead = word(frame, ROUND) - (uint32_t)slots->expected[slot];
    int level = level_of(slots, frame);
    int mine = level || contributors(frame) & slots->own_bit;

    if (flags_of(frame) & FLAG_PADDED)
        return;
    if (ahead == 0)
        p4r_told(slots, slot, mine, quiet, now);
    else if (ahead == 1 && !mine)
        p4r_missed(slots, slot, now); /* the others are in the next round: this one has a result */
}

static const uint8_t *place_of(const uint8_t *const *frames, uint8_t *rows, uint32_t row)
{
    return frames ? frames[row] : frame_at(rows, row);
}

void p4r_receive(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths, uint32_t count,
                 double now)
{
    p4r_receive_from(slots, rows, lengths, NULL, count, now);
}

void p4r_receive_from(struct p4r_slots *slots, uint8_t *rows, int64_t *lengths,
                      const uint8_t *const *frames, uint32_t count, double now)
{
    uint32_t complete_count = 0, regular = 0;
    int heard = 0, quiet = p4r_quiet(slots, now);

    slots->odd_count = slots->queued_count = slots->ended_count = 0;
    judge_all(slots, rows, lengths, count);
    for (uint32_t i = 0; i < count; i++)
        if (slots->verdicts[i] != ODD && kind_of(frame_at(rows, i)) == KIND_STATUS)
            tell_timers(slots, frame_at(rows, i), quiet, now);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *frame = frame_at(rows, i);
        if (slots->verdicts[i] == ODD) {
            give_back(slots, rows, lengths, place_of(frames, rows, i), i);
            continue;
        }
        if (frames && i + 1 < count)
            will_read(frames[i + 1]);
        uint32_t slot = slot_of(frame), again = flags_of(frame) & FLAG_RETRANSMISSION;
        regular++;
        /* What comes for all ranks of a tree's switch says nothing of this rank's frames. */
        heard |= kind_of(frame) != KIND_STATUS || !level_of(slots, frame);
        slots->counts.bytes_received += lengths[i];
        if (slots->verdicts[i] == RESULT) {
            const uint8_t *lanes = place_of(frames, rows, i) + P4R_PAYLOAD_OFFSET;
            if (deliver(slots, frame, lanes, slot))
                note_completed(slots, frame, slot, complete_count++);
            continue;
        }
        /* The switch had the contribution before it was repeated, and we its result or no reason
         * to wait for one yet. In a tree others may be meant. */
        slots->counts.spurious += again && slots->levels == 1;
        if (slots->verdicts[i] == STALE) {
            slots->counts.stale++;
            continue;
        }
        slots->counts.statuses++;
        if (flags_of(frame) & FLAG_PADDED) {
            if (p4r_repeat_with_room(slots, slot))
                slots->queued[slots->queued_count++] = slots->row[slot];
        } else if (level_of(slots, frame) || slots->everybody & ~contributors(frame)) {
            slots->heard[slot] = contributors(frame);
            slots->level[slot] = level_of(slots, frame);
            /* Bits are ranks where there is one switch. */
            if (slots->levels == 1 && slots->streams[slot]->course)
                p4r_course_told(slots->streams[slot]->course, contributors(frame), now);
        }
    }
    if (!regular)
        return;
    slots->counts.frames_received += regular;
    if (heard) {
        slots->heard_switch_at = now;
        p4r_window_heard(slots, now);
    }
    if (complete_count)
        complete(slots, complete_count, now);
}
