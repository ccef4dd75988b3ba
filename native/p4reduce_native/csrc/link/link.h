/* SPDX-License-Identifier: Apache-2.0 */
/* A link: one Unix socket between the switch's port and its peer, and the fastest way across it.
 *
 * Every link starts as a connected SOCK_SEQPACKET socket with one frame per message. A peer that
 * knows more says so by its first message, the hello, and the switch answers with its choice:
 *
 *   hello   "P4RL", version, wishes (bits), 0, 0                                 8 bytes
 *   answer  "P4RL", version, kind, log2(slots), 0, 0, 0, 0, 0                   12 bytes
 *           with the memory's file descriptor (SCM_RIGHTS) where the kind is SHARED
 *
 * Only the first message of all can be a hello, so a short frame that begins alike is a frame later
 * on. Both are shorter than an Ethernet header: a switch that knows no hello drops it as a short
 * frame, and never answers. What comes before the answer is one frame per message; what comes after it is as
 * the answer says. A link is used by one thread at a time. Nothing here waits but p4r_link_connect
 * and p4r_link_wait, which have deadlines.
 *
 * The peer is not trusted. Lengths and indices are read once and checked, and what is wrong ends this
 * link alone. A frame, or of p4r_link_look its header, is copied out of shared memory before anybody
 * looks at it; of the rest, nothing that is found there decides what is read or written.
 */
#ifndef P4R_LINK_H
#define P4R_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "common/frame.h"

#define P4R_LINK_MIN_FRAME P4R_MIN_FRAME_BYTES
#define P4R_LINK_MAX_FRAME 2048
#define P4R_LINK_FRAMES 64 /* most of one message; every receive has room for them */
#define P4R_LINK_MOST 128  /* most frames that one call gives */
/* Of a ring, unless asked otherwise: 528 KiB per direction. More than a job has in flight at most
 * times would only be more memory to go round in, most of it in no core's cache. */
#define P4R_LINK_SLOTS 256

enum p4r_link_kind {
    P4R_LINK_SINGLE = 0,   /* one frame per message, as any peer understands */
    P4R_LINK_SHARED = 2,   /* rings in shared memory; the socket carries doorbells, one byte each */
    P4R_LINK_OFFLOAD = 3,  /* a packet socket at one end of a veth pair; see offload.c */
    P4R_LINK_DATAGRAM = 4, /* a connected UDP socket; see datagram.c */
    P4R_LINK_PACKET = 5,   /* a packet socket, one frame per packet; see packet.c */
};

/* What a peer wishes and what a switch offers. */
#define P4R_LINK_CAN_SHARED (1u << P4R_LINK_SHARED)

struct p4r_link;

/* Since the link was made. Frames of bad length that p4r_link_receive, _peek and _send leave out are in
 * no other count. _receive_rows and _look count every frame in rx_frames and rx_bytes, as their caller
 * checks the lengths. */
struct p4r_link_counts {
    uint64_t rx_frames;
    uint64_t rx_bytes;
    uint64_t rx_too_short;
    uint64_t rx_too_long;
    uint64_t tx_frames;
    uint64_t tx_bytes;
    uint64_t tx_bad_length;
};

/* Each function that makes a link takes `fd` over if it succeeds. If it fails, it returns NULL and sets
 * *error to an errno, and `fd` is the caller's as before. */

/* Switch's end of a connected socket, or either end on a packet socket. A hello is answered by
 * p4r_link_receive, with the best kind that both can; `offers` is 0 where none shall be. `slots` of
 * each ring: a power of two up to 4,096; 0: P4R_LINK_SLOTS. */
struct p4r_link *p4r_link_accept(int fd, uint32_t offers, uint32_t slots, int *error);

/* Worker's end of a connected socket. Sends the hello and waits for the answer up to `timeout_ms`;
 * frames that come meanwhile are dropped: nobody knows yet that this worker is there. With no
 * wishes nothing is sent, and the link is SINGLE.
 * Fails with
 *   ETIMEDOUT  no answer: the switch is an older one, or busy. Connect again without wishes.
 *   EPIPE      the switch hung up;
 *   EPROTO     the answer cannot be used, or something on the way has kept its memory back. Connect
 *              again without wishes;
 *   any other  as the system call that failed. */
struct p4r_link *p4r_link_connect(int fd, uint32_t wishes, int timeout_ms, int *error);

/* A bound packet socket of type RAW, with PACKET_AUXDATA: the VLAN tag that the kernel has taken out of
 * a frame is put back in. There is no hang-up: an error ends nothing, and the next call tries again. */
struct p4r_link *p4r_link_over_packets(int fd, int *error);

/* One end of a veth pair: a bound packet socket of type RAW, with PACKET_AUXDATA. Frames of UDP over
 * IPv4 with equal headers go together in one packet of up to 64 KB, if the peer is known to
 * understand it, or has sent such a packet within the last 2 s. There is no hang-up: an error ends
 * nothing, and the next call tries again. */
struct p4r_link *p4r_link_over_interface(int fd, int peer_understands, int *error);

/* One end of a UDP socket that is connected, whose peer knows `token` (8 bytes). A datagram has up to
 * `bytes`, a frame's length and 14 at least, as long as the path takes so many; see path.h, also for
 * `probe_timeout_ms`. Whoever sends `greeting` again gets `answer` again (both up to 128 bytes; 0:
 * no greeting). -EPIPE of a receive: the peer has said goodbye, or nobody listens there any more;
 * of a send: it seems so, and the next receive decides. */
struct p4r_link *p4r_link_over_datagrams(int fd, const uint8_t *token, uint32_t bytes,
                                         const uint8_t *greeting, uint32_t greeting_bytes,
                                         const uint8_t *answer, uint32_t answer_bytes,
                                         uint32_t probe_timeout_ms, int *error);

/* The most bytes of frames that one call takes over UDP, and the bytes that each frame adds. */
#define P4R_LINK_RUN_BYTES 65507
#define P4R_LINK_RUN_EXTRA 14

/* Of a link over UDP. */
struct p4r_datagram_counts {
    uint64_t strangers;        /* datagrams from the peer's address without its token */
    uint64_t path_bytes;       /* what a datagram may have now */
    uint64_t path_narrowed;    /* how often that became less, */
    uint64_t path_widened;     /* or more; */
    uint64_t path_too_narrow;  /* and not even the least size had an answer */
    uint64_t control_messages; /* see p4r_link_control_message */
    uint64_t rx_calls, rx_datagrams;
    uint64_t tx_calls;
    uint64_t tx_too_long;     /* frames that this host does not let out, for their length */
    uint64_t tx_runs_refused; /* the kernel or the device took no run of datagrams in one piece */
};
/* Zeros for other kinds. What the fields have changes with the next call. */
const struct p4r_datagram_counts *p4r_link_datagram_counts(const struct p4r_link *link);
/* To be called at even times: returns how often it was called since the peer of a UDP socket was
 * heard, and asks it for a word if that is not for the first time. */
int p4r_link_keepalive(struct p4r_link *link);
/* Whether a message of a handshake has come from the peer's address: returns its length, and the
 * first 128 bytes of it (zeros where it has fewer); 0: there is none. To one that has a greeting. */
#define P4R_CONTROL_MESSAGE_BYTES 128
size_t p4r_link_control_message(struct p4r_link *link, uint8_t *control_message);

/* Closes the socket, unmaps the memory. NULL is allowed. */
void p4r_link_free(struct p4r_link *link);

int p4r_link_kind(const struct p4r_link *link);
const struct p4r_link_counts *p4r_link_counts(const struct p4r_link *link);

/* The file descriptor to wait at, in every kind, and what to wait for (EPOLLIN, EPOLLOUT,
 * EPOLLRDHUP; poll's have the same values). `frames_wait`: the caller has frames that
 * p4r_link_send did not take. On any event send what waits and receive, in this order, and then
 * ask again what to wait for; it seldom changes. In this order no wake-up is lost. */
int p4r_link_fd(const struct p4r_link *link);
uint32_t p4r_link_events(const struct p4r_link *link, int frames_wait);
/* When to send again frames that the last send did not take, in nanoseconds of CLOCK_MONOTONIC. 0:
 * when an event reports room. No event reports that a device has memory again, or a host a route. */
uint64_t p4r_link_retry_ns(const struct p4r_link *link);

/* Takes what is there, without waiting: up to `most` frames, which has to be P4R_LINK_FRAMES at
 * least. They stay until the next receive. Frames shorter than P4R_LINK_MIN_FRAME or longer than
 * P4R_LINK_MAX_FRAME are counted and left out, so 0 frames of a readable link are no error.
 * Returns their number, or
 *   -EPIPE   the peer has gone, and everything that it sent has been taken;
 *   -EPROTO  the peer broke the rules of the ring;
 *   or minus another errno. After any of these only p4r_link_free is of use (but for PACKET and
 *   OFFLOAD). */
int p4r_link_receive(struct p4r_link *link, struct p4r_frame *frames, int most);

/* The same into rows `stride` bytes apart. A frame longer than `room` is cut off there, and short
 * ones are delivered: the caller checks every length. */
int p4r_link_receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                          int64_t *lengths, int most);

/* The same, but only the first `head` bytes of each frame are copied into its row: `frames` says where
 * all of it lies. Of a SHARED link that is memory that the peer can write to at any moment, where it
 * stays until p4r_link_drop of as many, before the next call; else it stays until the next call. (Of a
 * SINGLE link all of it is in the row.) */
int p4r_link_look(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room, size_t head,
                  int64_t *lengths, const uint8_t **frames, int most);
void p4r_link_drop(struct p4r_link *link, int count);

/* As p4r_link_receive, but frames of a SHARED link stay in memory that the peer can write to: each is
 * copied by p4r_link_fetch before anybody looks at it. p4r_link_done has to follow, before the next
 * call, for the peer to have the memory back. */
int p4r_link_peek(struct p4r_link *link, struct p4r_frame *frames, int most);
void p4r_link_done(struct p4r_link *link);

/* Copies a frame of p4r_link_peek into a row. */
static inline struct p4r_frame p4r_link_fetch(struct p4r_frame frame, uint8_t *row)
{
    __builtin_memcpy(row, frame.bytes, frame.length);
    return (struct p4r_frame){row, frame.length};
}

/* A hint that this comes soon: another core has written the frame. */
static inline void p4r_link_will_fetch(struct p4r_frame frame)
{
    for (uint32_t at = 0; at < frame.length; at += 64)
        __builtin_prefetch(frame.bytes + at, 0, 3);
}

/* Sends the first frames, as many as there is room for, and returns their number; the bytes are
 * free again. The others have to be sent again when p4r_link_fd tells, or at p4r_link_retry_ns. Frames
 * of bad length (0, or above P4R_LINK_MAX_FRAME) are counted and left out. Errors as above, but for
 * one: after -EPIPE the link still gives what the peer has sent. These frames are lost then, and
 * p4r_link_receive ends the link behind the last frame that came. */
int p4r_link_send(struct p4r_link *link, const struct p4r_frame *frames, int count);

/* The same from rows: frame i begins at base + rows[i] * stride and has lengths[rows[i]] bytes. */
int p4r_link_send_rows(struct p4r_link *link, const uint8_t *base, size_t stride,
                       const int64_t *lengths, const int64_t *rows, int count);

/* Put one frame where the peer will find it after the next `tell`, if there is room for it right
 * away; returns whether there was. Else, and on all kinds but SHARED, it is to be sent by `send`,
 * which tells of those before as well. `tell` returns 0 or minus an errno. */
int p4r_link_put(struct p4r_link *link, const uint8_t *bytes, uint32_t length);
int p4r_link_tell(struct p4r_link *link);
/* Where the peer of a link through shared memory should wake up, from the next `tell` on: on any CPU,
 * on one that is not the caller's, or on the caller's. `placement`: an enum p4r_placement. */
enum p4r_placement { P4R_ANYWHERE, P4R_ELSEWHERE, P4R_TOGETHER, P4R_PLACEMENTS };
void p4r_link_place(struct p4r_link *link, uint32_t placement);
/* What the peer of a link through shared memory does: it is awake, or sleeps until a doorbell, and
 * wakes up perhaps on another CPU than it was told of. On all other kinds it may sleep. */
enum { P4R_AWAKE, P4R_SLEEPS, P4R_SLEEPS_ELSEWHERE };
uint32_t p4r_link_peer_sleeps(const struct p4r_link *link);
/* Whether frames are in memory, which is seen without a call of the kernel; SHARED only. */
int p4r_link_has_frames(const struct p4r_link *link);

/* Returns when frames may be there, `wake_fd` (or -1) is readable, `timeout_ms` (-1: never) are
 * over, or, with P4R_LINK_FOR_ROOM, there may be room. With P4R_LINK_PLACED this thread is bound to
 * where the peer wants it, until a wait without or p4r_link_unbind, which it has to call in the end.
 * Returns a bit mask, or minus an errno. */
#define P4R_LINK_FOR_ROOM 1
#define P4R_LINK_PLACED 2
#define P4R_LINK_READY 1
#define P4R_LINK_WOKEN 2
int p4r_link_wait(struct p4r_link *link, int wake_fd, int timeout_ms, int how);
void p4r_link_unbind(struct p4r_link *link);

#endif
