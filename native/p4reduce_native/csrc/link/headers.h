/* SPDX-License-Identifier: Apache-2.0 */
/* Frames without the part of their headers that the peer knows already.
 *
 * Most of a frame's first 78 bytes (Ethernet, IPv4, UDP and p4reduce's header) are the same in all
 * frames of a job. So the sender has the peer store such a beginning, a *context*, under a number
 * (header compression, as RFC 2507 and RFC 5795 have it). Once the peer has confirmed it, a frame
 * travels as the context's number, a mask of the words of 4 bytes that differ, these words, and what
 * follows the header. Every frame can be restored by itself, whatever else is lost or overtaken.
 *
 *   context       two zeros, which align the fields behind Ethernet, and 78 bytes of a frame
 *   compressed    number (12 bits) and mask (20), LE; the words, in order; the rest of the frame
 *
 * A number never has a second meaning on a link. The peer stores the last 16, and a frame of an older
 * one is lost. A peer that knows no contexts confirms none, and gets whole frames. */
#ifndef P4R_LINK_HEADERS_H
#define P4R_LINK_HEADERS_H

#include <stddef.h>
#include <stdint.h>

#include "common/frame.h"

#define P4R_CONTEXT_FRAME_BYTES 78 /* of a frame */
#define P4R_CONTEXT_BYTES 80
#define P4R_CONTEXT_WORDS 20
#define P4R_CONTEXTS 16
#define P4R_COMPRESSED_HEAD 4
#define P4R_COMPRESSED_MOST (P4R_COMPRESSED_HEAD + P4R_CONTEXT_BYTES)

struct p4r_context {
    uint16_t number; /* 0: none */
    int confirmed;   /* by the peer; of a sender */
    /* Words that differed in the frames of the present period, and in those of the one before. They
     * are sent in every frame, so that frames are of one length, and leave in runs. */
    uint32_t recent, earlier;
    uint32_t frames; /* in this period */
    uint8_t bytes[P4R_CONTEXT_BYTES];
};

/* Each at its number modulo P4R_CONTEXTS. */
struct p4r_contexts {
    struct p4r_context of[P4R_CONTEXTS];
    uint8_t candidate[P4R_CONTEXT_BYTES]; /* the last header that is like no context */
    uint16_t newest, last_used;           /* numbers */
    uint64_t ask_ns, pause_ns; /* when to ask again whether the peer has the newest one */
};

/* Writes what stands for a frame's first P4R_CONTEXT_FRAME_BYTES bytes, P4R_COMPRESSED_MOST at most.
 * Returns how much that is; 0: the frame goes whole. Then its header becomes
 * the newest context, if the last one that went whole was like it. */
size_t p4r_contexts_compress(struct p4r_contexts *, struct p4r_frame, uint64_t now_ns,
                             uint8_t *compressed);

/* The context for the peer to store now; NULL: none. */
const struct p4r_context *p4r_contexts_to_announce(struct p4r_contexts *, uint64_t now_ns);

void p4r_contexts_confirmed(struct p4r_contexts *, uint16_t number);

/* Of a receiver: stores one. */
void p4r_contexts_store(struct p4r_contexts *, uint16_t number, const uint8_t *bytes);

/* Restores a frame's first P4R_CONTEXT_FRAME_BYTES bytes into `frame`, which has 2 bytes in front of it.
 * Returns how many bytes stand for them; 0: their context is not known. */
size_t p4r_contexts_restore(const struct p4r_contexts *, const uint8_t *compressed, size_t bytes,
                            uint8_t *frame);

#endif
