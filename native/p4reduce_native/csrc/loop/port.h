/* SPDX-License-Identifier: Apache-2.0 */
/* A port of the switch: a link, and frames that wait to leave by it.
 *
 * Python opens and closes sockets and hands their descriptors over; here frames go through them. A
 * port that has an event for Python (its peer has left, a read has failed) keeps it until it is
 * asked.
 */
#ifndef P4R_LOOP_PORT_H
#define P4R_LOOP_PORT_H

#include <stdint.h>

#include "link/link.h"
#include "loop/capture.h"
#include "loop/queue.h"
#include "loop/stats.h"

enum { P4R_BATCH = 64 }; /* frames per call */

/* `PortKind` of loop.py has their names. */
enum p4r_port_type { P4R_UNIX, P4R_PACKET, P4R_OFFLOAD, P4R_UDP, P4R_PORT_TYPES };

/* What the loop has to know of a type; all else is its link's. */
struct p4r_port_kind {
    /* Makes the link of a descriptor: returns NULL with an errno, and leaves it to the caller. */
    struct p4r_link *(*link_over)(int fd, int *error);
    /* Whether an error ends the use of the descriptor: a Unix peer does not come back by itself, an
     * interface does. */
    int ends_by_error;
    int is_interface; /* frames come by a packet socket */
    int is_neighbour; /* the peer is a process of this machine, which sending wakes */
    /* How many bytes leave by one call, where a frame takes `extra_bytes` beyond its own; 0: any. */
    uint32_t run_bytes, extra_bytes;
};

enum p4r_port_event {
    P4R_EVENT_NONE,
    P4R_EVENT_DOWN,            /* the peer has left; the descriptor is not used any more */
    P4R_EVENT_ERROR,           /* reading has failed; the port continues */
    P4R_EVENT_CONTROL_MESSAGE, /* of a handshake, from the peer's address */
};

struct p4r_port {
    const struct p4r_port_kind *kind;
    struct p4r_loop *loop;
    uint32_t number;
    uint32_t max_bytes;    /* longer frames are not sent */
    int fd;                /* -1: no peer */
    struct p4r_link *link; /* while there is a peer */
    uint32_t watched;      /* the events that epoll waits for */
    uint32_t put_count;    /* frames that are not announced to the peer yet */
    int blocked;           /* the socket is full: epoll reports when it has room, or see retry_ns */
    int is_dirty;          /* in the loop's list of ports that have frames to send */
    int is_resting;        /* in the loop's list of ports that try again at a time */
    int is_served;         /* its frames are in use: it cannot be detached now */
    int failed;            /* an errno, by which it is detached after that */
    struct p4r_port *next_dirty, *next_resting;
    enum p4r_port_event event;
    int event_errno;
    struct p4r_capture *capture;     /* of frames in both directions, or NULL */
    struct p4r_capture *capture_out; /* of those that leave, if these have a file of their own */
    struct p4r_port_stats stats;
    struct p4r_link_counts lengths;  /* of the link's counts, what is in `stats`; */
    struct p4r_datagram_counts seen; /* also where it is over UDP */
    struct p4r_queue queue;
};

/* A port without a descriptor; NULL: no memory. */
struct p4r_port *p4r_port_new(struct p4r_loop *loop, enum p4r_port_type type, uint32_t number,
                              uint32_t max_bytes);
void p4r_port_free(struct p4r_port *port);

/* Start and stop using a descriptor, of a port without one: that of a Unix peer is the port's from now
 * on, that of an interface stays the caller's. What waits to be sent when it is detached is counted as
 * `tx_down`. attach returns 0, or minus an errno: then the descriptor is the caller's as before.
 * Events of a former peer are forgotten. */
int p4r_port_attach(struct p4r_port *port, int fd);
/* The same of a UDP port, with a link. */
int p4r_port_attach_link(struct p4r_port *port, struct p4r_link *link);
void p4r_port_detach(struct p4r_port *port);

/* The link of the present peer, or NULL. It is the port's, and valid until the loop runs. */
struct p4r_link *p4r_port_link(struct p4r_port *port);

/* Takes in up to one batch, drops what has no allowed length, and counts. Returns how many. They are in
 * use until p4r_port_done. With `one_by_one` the caller copies each as of p4r_link_fetch, if this sets
 * it to 1. */
int p4r_port_receive(struct p4r_port *port, struct p4r_frame *frames, int *one_by_one);
void p4r_port_done(struct p4r_port *port, int one_by_one);

/* Copies a frame, to be sent by the next flush at the latest; or drops and counts it. */
void p4r_port_enqueue(struct p4r_port *port, const uint8_t *bytes, uint32_t length);

/* Reports an event to Python, unless a worse one waits there already. */
void p4r_port_tell(struct p4r_port *port, enum p4r_port_event event, int error);

/* Sends what waits, as far as there is room. */
void p4r_port_flush(struct p4r_port *port);

/* Tells epoll what to wait for, if that has changed; after each iteration of the port. */
void p4r_port_watch(struct p4r_port *port);

/* Whether the peer has hung up, even after epoll's last report. */
int p4r_port_has_hung_up(const struct p4r_port *port);

#endif
