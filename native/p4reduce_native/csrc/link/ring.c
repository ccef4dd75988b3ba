/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <assert.h>
#include <string.h>

static uint8_t *slot_at(const struct p4r_ring *ring, uint32_t index)
{
    return ring->slots + (size_t)(index & (ring->count - 1)) * P4R_SLOT_BYTES;
}

/* Cache lines that another core has written lately take long to load, so those of the next frame are
 * prefetched before this one is copied. */
enum { LINE = 64, FETCHED = 18 * LINE /* a frame of ours, with its length */ };

static void will_read(const uint8_t *slot)
{
    for (int at = 0; at < FETCHED; at += LINE)
        __builtin_prefetch(slot + at, 0, 3);
}

void p4r_ring_will_write(const struct p4r_ring *ring)
{
    const uint8_t *slot = slot_at(ring, ring->own);

    for (int at = 0; at < FETCHED; at += LINE)
        __builtin_prefetch(slot + at, 1, 3);
}

size_t p4r_ring_bytes(uint32_t count)
{
    return sizeof(struct p4r_ring_words) + (size_t)count * P4R_SLOT_BYTES;
}

void p4r_ring_attach(struct p4r_ring *ring, uint8_t *memory, uint32_t count)
{
    assert(count != 0 && count <= P4R_MAX_SLOTS && (count & (count - 1)) == 0);
    assert((uintptr_t)memory % _Alignof(struct p4r_ring_words) == 0);
    ring->words = (struct p4r_ring_words *)(void *)memory;
    ring->slots = memory + sizeof(struct p4r_ring_words);
    ring->count = count;
    ring->own = ring->announced = ring->limit = 0;
}

int p4r_ring_ready(const struct p4r_ring *ring)
{
    uint32_t put = atomic_load_explicit(&ring->words->put, memory_order_acquire);
    uint32_t ready = put - ring->own;
    return ready <= ring->count ? (int)ready : -1;
}

int p4r_ring_room(const struct p4r_ring *ring)
{
    uint32_t taken = atomic_load_explicit(&ring->words->taken, memory_order_acquire);
    uint32_t used = ring->own - taken;
    return used <= ring->count ? (int)(ring->count - used) : -1;
}

int p4r_ring_has_room(const struct p4r_ring *ring)
{
    int room = p4r_ring_room(ring);
    return room < 0 || (uint32_t)room >= ring->count - ring->count / 2;
}

/* Read once: the peer may change it between a check and a copy. */
static size_t length_in(const uint8_t *slot, size_t room)
{
    size_t length = *(const volatile uint16_t *)(const void *)slot;

    if (room > P4R_SLOT_BYTES - P4R_SLOT_HEAD)
        room = P4R_SLOT_BYTES - P4R_SLOT_HEAD;
    return length < room ? length : room;
}

void p4r_ring_look(const struct p4r_ring *ring, uint8_t *rows, size_t stride, size_t room,
                   size_t head, int64_t *lengths, const uint8_t **frames, int count)
{
    for (int i = 0; i < count; i++) {
        const uint8_t *slot = slot_at(ring, ring->own + (uint32_t)i);
        const uint8_t *ahead = slot_at(ring, ring->own + (uint32_t)i + 4);
        __builtin_prefetch(ahead, 0, 3);
        __builtin_prefetch(ahead + LINE, 0, 3);
        size_t length = length_in(slot, room);
        memcpy(rows + (size_t)i * stride, slot + P4R_SLOT_HEAD, length < head ? length : head);
        lengths[i] = (int64_t)length;
        frames[i] = slot + P4R_SLOT_HEAD;
    }
}

void p4r_ring_peek(const struct p4r_ring *ring, struct p4r_frame *frames, size_t room, int count)
{
    for (int i = 0; i < count; i++)
        __builtin_prefetch(slot_at(ring, ring->own + (uint32_t)i), 0, 3);
    for (int i = 0; i < count; i++) {
        const uint8_t *slot = slot_at(ring, ring->own + (uint32_t)i);
        frames[i] = (struct p4r_frame){slot + P4R_SLOT_HEAD, (uint32_t)length_in(slot, room)};
    }
}

void p4r_ring_drop(struct p4r_ring *ring, int count)
{
    assert(count >= 0 && (uint32_t)count <= ring->count);
    ring->own += (uint32_t)count;
    atomic_store_explicit(&ring->words->taken, ring->own, memory_order_release);
}

void p4r_ring_take(struct p4r_ring *ring, uint8_t *rows, size_t stride, size_t room,
                   int64_t *lengths, int count)
{
    for (int i = 0; i < count; i++) {
        const uint8_t *slot = slot_at(ring, ring->own + (uint32_t)i);
        if (i + 1 < count)
            will_read(slot_at(ring, ring->own + (uint32_t)i + 1));
        size_t length = length_in(slot, room);
        memcpy(rows + (size_t)i * stride, slot + P4R_SLOT_HEAD, length);
        lengths[i] = (int64_t)length;
    }
    p4r_ring_drop(ring, count);
}

void p4r_ring_write(struct p4r_ring *ring, const uint8_t *bytes, uint32_t length)
{
    uint8_t *slot = slot_at(ring, ring->own++);

    *(uint16_t *)(void *)slot = (uint16_t)length;
    memcpy(slot + P4R_SLOT_HEAD, bytes, length);
}

void p4r_ring_tell(struct p4r_ring *ring)
{
    /* Only this end's own indices are asserted, nothing that the peer may have written. */
    assert(ring->limit - ring->own <= ring->count && ring->own - ring->announced <= ring->count);
    ring->announced = ring->own;
    atomic_store_explicit(&ring->words->put, ring->own, memory_order_release);
}

void p4r_ring_put(struct p4r_ring *ring, const struct p4r_frame *frames, int count)
{
    for (int i = 0; i < count; i++) {
        p4r_ring_write(ring, frames[i].bytes, frames[i].length);
        if (i + 1 < count)
            p4r_ring_will_write(ring);
    }
    p4r_ring_tell(ring);
}

/* The one who sleeps writes its flag, then looks at the index; we wrote the index, now look at the
 * flag. The fences between make it impossible that both miss what the other wrote. */
static int take_flag(_Atomic uint32_t *flag)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(flag, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(flag, 0, memory_order_relaxed) != 0;
}

int p4r_ring_receiver_sleeps(struct p4r_ring *ring)
{
    return take_flag(&ring->words->receiver_sleeps);
}

int p4r_ring_sender_sleeps(struct p4r_ring *ring)
{
    int ready = p4r_ring_ready(ring);
    return ready >= 0 && (uint32_t)ready <= ring->count / 2 &&
           take_flag(&ring->words->sender_sleeps);
}
