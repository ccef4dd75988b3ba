/* SPDX-License-Identifier: Apache-2.0 */
/* One direction through shared memory: a ring with one sender and one receiver.
 *
 * Either end keeps its own index for itself and only tells the other; what it reads of the other
 * is checked. So a peer that writes anything anywhere in the memory can lose, repeat or garble
 * frames of this link, and no more.
 */
#ifndef P4R_RING_H
#define P4R_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "link.h"

/* A frame's length and its bytes. 33 cache lines: an odd number spreads slots over a cache's
 * sets. */
#define P4R_SLOT_BYTES 2112
#define P4R_SLOT_HEAD 2
#define P4R_MAX_SLOTS 4096

/* In shared memory. Words that different processes write have cache lines of their own. */
struct p4r_ring_words {
    _Alignas(64) _Atomic uint32_t put;             /* frames so far, by the sender */
    _Atomic uint32_t placement;                    /* see placement.h; by the sender */
    _Alignas(64) _Atomic uint32_t taken;           /* frames so far, by the receiver */
    _Alignas(64) _Atomic uint32_t receiver_sleeps; /* and wants a doorbell: P4R_SLEEPS, … */
    _Alignas(64) _Atomic uint32_t sender_sleeps;   /* and wants a doorbell when there is room */
};

/* The other end may have been compiled elsewhere: what both map must lie alike. */
_Static_assert(offsetof(struct p4r_ring_words, put) == 0, "as any peer has it");
_Static_assert(offsetof(struct p4r_ring_words, placement) == 4, "as any peer has it");
_Static_assert(offsetof(struct p4r_ring_words, taken) == 64, "as any peer has it");
_Static_assert(offsetof(struct p4r_ring_words, receiver_sleeps) == 128, "as any peer has it");
_Static_assert(offsetof(struct p4r_ring_words, sender_sleeps) == 192, "as any peer has it");
_Static_assert(sizeof(struct p4r_ring_words) == 256, "slots follow there");
_Static_assert(P4R_SLOT_BYTES % 64 == 0 && P4R_SLOT_BYTES / 64 % 2 == 1, "an odd number of lines");
_Static_assert((P4R_MAX_SLOTS & (P4R_MAX_SLOTS - 1)) == 0, "indices wrap by a mask");

struct p4r_ring {
    struct p4r_ring_words *words;
    uint8_t *slots;
    uint32_t count;     /* of slots, a power of two */
    uint32_t own;       /* this end's index */
    uint32_t announced; /* a sender's index as it was last made known */
    uint32_t limit;     /* of a sender's index: there was room up to it when last looked */
};

/* Bytes of memory for a ring of this many slots. */
size_t p4r_ring_bytes(uint32_t count);
/* Lays a ring over memory (zeros: an empty ring). */
void p4r_ring_attach(struct p4r_ring *, uint8_t *memory, uint32_t count);

/* Frames that the receiver may take, slots that the sender may fill; negative: the other end's
 * count is impossible. */
int p4r_ring_ready(const struct p4r_ring *);
int p4r_ring_room(const struct p4r_ring *);

/* For a sender that found the ring full: whether half of it is free by now, or the other end is
 * broken. With less, a full ring would be passed on frame by frame. */
int p4r_ring_has_room(const struct p4r_ring *);

/* Take `count` frames, at most what is ready, into rows; a length above `room` is cut down to it.
 * Put `count` frames, at most the room: the sender sets `limit` to at least its index behind them
 * before. */
void p4r_ring_take(struct p4r_ring *, uint8_t *rows, size_t stride, size_t room, int64_t *lengths,
                   int count);
void p4r_ring_put(struct p4r_ring *, const struct p4r_frame *, int count);

/* Look at `count` frames, at most what is ready: copies of their first `head` bytes into rows,
 * their lengths as of `take`, and where they lie in memory that the peer can write to. They stay
 * there until they are taken by `drop`. */
void p4r_ring_look(const struct p4r_ring *, uint8_t *rows, size_t stride, size_t room, size_t head,
                   int64_t *lengths, const uint8_t **frames, int count);
void p4r_ring_drop(struct p4r_ring *, int count);

/* Where the next `count` frames lie, at most what is ready, and their lengths as of `take`. */
void p4r_ring_peek(const struct p4r_ring *, struct p4r_frame *frames, size_t room, int count);

/* As `put`, in steps: fill the next slot, which `limit` has to allow; tell of all that have been
 * filled. */
void p4r_ring_write(struct p4r_ring *, const uint8_t *bytes, uint32_t length);
void p4r_ring_tell(struct p4r_ring *);
/* A hint that the next slot will be filled soon. */
void p4r_ring_will_write(const struct p4r_ring *);

/* Whether the other end sleeps and needs a doorbell; true once. For room only when half of the ring
 * is free. */
int p4r_ring_receiver_sleeps(struct p4r_ring *);
int p4r_ring_sender_sleeps(struct p4r_ring *);

#endif
