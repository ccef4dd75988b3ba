/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's sender and its receiver, each in a thread: ring_races SEED ROUNDS.
 *
 * Meant to be compiled with -fsanitize=thread, which knows memory by its address. So both ends use one
 * mapping here, and not two as links do. Frames come whole and in order; who sleeps gets a
 * doorbell. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "link/ring.h"

enum { FRAMES = 3000, MOST = 200, BATCH = 64, LOST_MS = 60000 };

struct end {
    struct p4r_ring ring;
    uint64_t state;
    int own_doorbell, other_doorbell; /* eventfds */
};

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

static void fail(const char *what, int value)
{
    fprintf(stderr, "%s: %d\n", what, value);
    exit(1);
}

static uint32_t length_of(uint32_t number) { return 14 + number * 7 % MOST; }

static void ring_doorbell(int doorbell)
{
    if (eventfd_write(doorbell, 1) != 0)
        fail("a doorbell", doorbell);
}

/* As shared.c does. */
static void arm(_Atomic uint32_t *flag)
{
    atomic_store_explicit(flag, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

static void sleep_at(int doorbell)
{
    eventfd_t rung;
    struct pollfd wait = {.fd = doorbell, .events = POLLIN};
    if (poll(&wait, 1, LOST_MS) != 1)
        fail("a doorbell was lost", doorbell);
    if (eventfd_read(doorbell, &rung) != 0)
        fail("a doorbell", doorbell);
}

static void *send_all(void *argument)
{
    struct end *end = argument;
    struct p4r_ring *ring = &end->ring;
    uint8_t bytes[BATCH][14 + MOST];
    struct p4r_frame frames[BATCH];
    for (uint32_t sent = 0; sent < FRAMES;) {
        const int room = p4r_ring_room(ring);
        if (room == 0) {
            arm(&ring->words->sender_sleeps);
            if (!p4r_ring_has_room(ring))
                sleep_at(end->own_doorbell);
            continue;
        }
        uint32_t count = 1 + draw(&end->state, BATCH);
        count = count < (uint32_t)room ? count : (uint32_t)room;
        count = count < FRAMES - sent ? count : FRAMES - sent;
        ring->limit = ring->own + count;
        for (uint32_t i = 0; i < count; i++) {
            memset(bytes[i], (int)(uint8_t)(sent + i), length_of(sent + i));
            frames[i] = (struct p4r_frame){bytes[i], length_of(sent + i)};
        }
        p4r_ring_put(ring, frames, (int)count);
        sent += count;
        if (p4r_ring_receiver_sleeps(ring))
            ring_doorbell(end->other_doorbell);
    }
    return NULL;
}

static void check(const uint8_t *bytes, int64_t length, uint32_t number)
{
    if (length != length_of(number))
        fail("a frame's length", (int)length);
    for (int64_t at = 0; at < length; at++)
        if (bytes[at] != (uint8_t)number)
            fail("a frame's byte", bytes[at]);
}

static void *receive_all(void *argument)
{
    struct end *end = argument;
    struct p4r_ring *ring = &end->ring;
    static uint8_t rows[BATCH][P4R_SLOT_BYTES];
    int64_t lengths[BATCH];
    const uint8_t *places[BATCH];
    struct p4r_frame frames[BATCH];
    for (uint32_t taken = 0; taken < FRAMES;) {
        int ready = p4r_ring_ready(ring);
        if (ready == 0) {
            arm(&ring->words->receiver_sleeps);
            if (p4r_ring_ready(ring) == 0)
                sleep_at(end->own_doorbell);
            continue;
        }
        ready = ready < BATCH ? ready : BATCH;
        switch (draw(&end->state, 3)) {
        case 0:
            p4r_ring_take(ring, rows[0], sizeof rows[0], sizeof rows[0], lengths, ready);
            for (int i = 0; i < ready; i++)
                check(rows[i], lengths[i], taken + (uint32_t)i);
            break;
        case 1:
            p4r_ring_look(ring, rows[0], sizeof rows[0], sizeof rows[0], 20, lengths, places,
                          ready);
            for (int i = 0; i < ready; i++)
                check(places[i], lengths[i], taken + (uint32_t)i);
            p4r_ring_drop(ring, ready);
            break;
        default:
            p4r_ring_peek(ring, frames, sizeof rows[0], ready);
            for (int i = 0; i < ready; i++)
                check(frames[i].bytes, frames[i].length, taken + (uint32_t)i);
            p4r_ring_drop(ring, ready);
        }
        taken += (uint32_t)ready;
        if (p4r_ring_sender_sleeps(ring))
            ring_doorbell(end->other_doorbell);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    uint64_t state = strtoull(arguments[1], NULL, 10) | 1;
    for (int round = atoi(arguments[2]); round > 0; round--) {
        const uint32_t slots = 1u << draw(&state, 8);
        uint8_t *memory = aligned_alloc(64, (p4r_ring_bytes(slots) + 63) & ~(size_t)63);
        memset(memory, 0, p4r_ring_bytes(slots));
        const int doorbells[2] = {eventfd(0, 0), eventfd(0, 0)};
        struct end ends[2];
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            ends[i] = (struct end){.state = draw(&state, UINT32_MAX),
                                   .own_doorbell = doorbells[i],
                                   .other_doorbell = doorbells[1 - i]};
            p4r_ring_attach(&ends[i].ring, memory, slots);
        }
        pthread_create(&threads[0], NULL, send_all, &ends[0]);
        pthread_create(&threads[1], NULL, receive_all, &ends[1]);
        /* The receiver may ring the sender's doorbell after the sender has ended. */
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 2; i++)
            close(doorbells[i]);
        free(memory);
    }
    printf("%s rounds\n", arguments[2]);
    return 0;
}
