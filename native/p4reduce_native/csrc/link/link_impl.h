/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this directory share; no other file includes it. */
#ifndef P4R_LINK_IMPL_H
#define P4R_LINK_IMPL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sys/socket.h>

#include "common/backoff.h"
#include "link.h"
#include "placement.h"
#include "ring.h"

/* Rows for frames that have been taken. One byte more than a frame may have shows a longer one. */
#define P4R_ROW_ROOM (P4R_LINK_MAX_FRAME + 1)
#define P4R_ROW_STRIDE 2112

_Static_assert(P4R_ROW_STRIDE >= P4R_ROW_ROOM, "a row holds a frame, and the byte that shows more");
_Static_assert(P4R_LINK_MAX_FRAME == P4R_MAX_FRAME_BYTES, "links and ports agree on frames");
_Static_assert(P4R_LINK_MOST >= P4R_LINK_FRAMES, "a call has room for a message");
_Static_assert((P4R_LINK_SLOTS & (P4R_LINK_SLOTS - 1)) == 0, "a ring's slots");

struct p4r_packets;
union p4r_auxdata;
struct p4r_datagrams;

/* What a kind does in its own way. Frames that it gives are not checked yet: any length up to the room
 * that there is. */
struct p4r_link_ops {
    enum p4r_link_kind kind;
    /* Gives frames one by one, into rows, or several in the link's own memory: one of the two is NULL. */
    int (*receive_rows)(struct p4r_link *, uint8_t *rows, size_t stride, size_t room,
                        int64_t *lengths, int most);
    int (*receive)(struct p4r_link *, struct p4r_frame *, int most);
    int (*send)(struct p4r_link *, const struct p4r_frame *, int count);
    /* See link.h. Frames are in memory that the peer can write to, or all of these are NULL. */
    int (*look)(struct p4r_link *, uint8_t *rows, size_t stride, size_t room, size_t head,
                int64_t *lengths, const uint8_t **frames, int most);
    int (*peek)(struct p4r_link *, struct p4r_frame *, int most);
    void (*drop)(struct p4r_link *, int count);
    int (*put)(struct p4r_link *, const uint8_t *bytes, uint32_t length);
    int (*tell)(struct p4r_link *);
    /* Whether a wait may begin; arms the doorbells. NULL: poll knows of all that comes. */
    int (*may_sleep)(struct p4r_link *, int writable);
    /* Binds the thread for a sleep as the peer wants it. NULL: it wants nothing. */
    void (*bind)(struct p4r_link *);
    uint32_t (*events)(const struct p4r_link *, int wait_for_room);
    void (*free)(struct p4r_link *); /* before the socket is closed; NULL: nothing is to be done */
};

extern const struct p4r_link_ops p4r_single, p4r_shared, p4r_packet, p4r_offload, p4r_datagrams;

struct p4r_link {
    int fd;
    const struct p4r_link_ops *ops;
    uint32_t offers; /* of a switch that answers a hello; else 0 */
    int has_heard;   /* a message: none that comes now can be a hello */
    uint32_t slots;  /* of rings to be made */
    int broken;      /* errno that ended the link; 0: none did */
    int is_deaf;     /* the peer takes nothing any more; what it has sent is still to be received */
    int has_more;    /* OFFLOAD, DATAGRAM: the last receive has left frames that it has read */
    int uncovered;   /* SHARED: there is work, and no doorbell will announce it */
    int wants_room;  /* SHARED: frames wait that the last send did not take */
    int has_gone;    /* SHARED: the peer hung up, and `left` frames are still to be taken */
    int left;
    int peeked;             /* SHARED: frames that p4r_link_peek has shown */
    uint32_t placement;     /* SHARED: of the peer, as this end wants it */
    struct p4r_bound bound; /* SHARED: the thread that runs this end */
    unsigned visits;        /* SHARED: calls of receive */
    size_t memory_bytes;    /* SHARED */
    uint8_t *memory;
    struct p4r_backoff backoff; /* of sends that failed for a reason that no event ends */
    struct p4r_ring in, out;
    union p4r_auxdata *auxdata;      /* PACKET, or NULL */
    struct p4r_packets *packets;     /* OFFLOAD, or NULL */
    struct p4r_datagrams *datagrams; /* DATAGRAM, or NULL */
    struct p4r_link_counts counts;
    uint8_t *rows; /* P4R_LINK_MOST of them */
    /* What recvmmsg reads, and for which rows it is prepared; what sendmmsg and sendmsg read. */
    uint8_t *prepared_rows;
    size_t prepared_stride, prepared_room;
    struct iovec in_vectors[P4R_LINK_MOST], out_vectors[2 * P4R_LINK_FRAMES];
    struct mmsghdr in_messages[P4R_LINK_MOST], out_messages[P4R_LINK_FRAMES];
};

/* Events of a kind whose socket has no end, and whose receive may leave frames that it has read. */
uint32_t p4r_events_without_end(const struct p4r_link *, int wait_for_room);

/* Memory with two rings. `make` returns its file descriptor, sealed, for the caller to hand over
 * and close; `map` checks what came from the other end. Both return minus an errno. */
int p4r_shared_make(struct p4r_link *, uint32_t slots);
int p4r_shared_map(struct p4r_link *, int memory_fd, uint32_t slots);

/* The switch's end: return whether these bytes are a hello, and answer one. */
int p4r_is_hello(const uint8_t *bytes, size_t length);
void p4r_answer_hello(struct p4r_link *, const uint8_t *hello, uint32_t offers);

/* Notes what ended the link, and returns minus that. */
int p4r_break(struct p4r_link *, int code);
/* Sends the first frames, up to P4R_LINK_FRAMES, as a message each. Returns how many, or minus an errno. */
int p4r_send_each(struct p4r_link *, const struct p4r_frame *, int count);
/* A receive has failed: whether to try it again at once. A peer that leaves frames unread resets its
 * socket, and that is reported before what it has sent. */
int p4r_reads_on(struct p4r_link *, int code);
/* A receive has found nothing: returns 0, or -EPIPE if nothing will come any more. */
int p4r_found_nothing(struct p4r_link *);
/* A send has failed: returns 0 if frames may be sent later, or minus an errno. */
int p4r_send_failed(struct p4r_link *, int code);
/* Gives the socket back and frees the rest; returns NULL. */
struct p4r_link *p4r_unmake(struct p4r_link *);
int p4r_has_hung_up(int fd);
/* Errors that mean "not now". No event reports the end of the second kind. */
static inline int p4r_is_short(int code) { return code == ENOBUFS || code == ENOMEM; }
static inline int p4r_is_full(int code)
{
    return code == EAGAIN || code == EWOULDBLOCK || p4r_is_short(code);
}

#endif
