/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/port.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "link/link.h"
#include "loop/loop_impl.h"

static struct p4r_link *over_socket(int fd, int *error)
{
    return p4r_link_accept(fd, P4R_LINK_CAN_SHARED, 0, error);
}

/* A link owns its socket, and an interface's stays the caller's. */
static struct p4r_link *over_copy(int fd, struct p4r_link *(*make)(int fd, int *error), int *error)
{
    const int own = dup(fd);
    *error = errno;
    struct p4r_link *link = own >= 0 ? make(own, error) : NULL;
    if (link == NULL && own >= 0)
        close(own);
    return link;
}

static struct p4r_link *over_packets(int fd, int *error)
{
    return over_copy(fd, p4r_link_over_packets, error);
}

static struct p4r_link *make_offload(int fd, int *error)
{
    return p4r_link_over_interface(fd, 0, error);
}

static struct p4r_link *over_interface(int fd, int *error)
{
    return over_copy(fd, make_offload, error);
}

static const struct p4r_port_kind kinds[P4R_PORT_TYPES] = {
    [P4R_UNIX] = {.link_over = over_socket, .ends_by_error = 1, .is_neighbour = 1},
    [P4R_PACKET] = {.link_over = over_packets, .is_interface = 1},
    [P4R_OFFLOAD] = {.link_over = over_interface, .is_interface = 1},
    [P4R_UDP] = {.ends_by_error = 1,
                 .run_bytes = P4R_LINK_RUN_BYTES,
                 .extra_bytes = P4R_LINK_RUN_EXTRA},
};

struct p4r_port *p4r_port_new(struct p4r_loop *loop, enum p4r_port_type type, uint32_t number,
                              uint32_t max_bytes)
{
    struct p4r_port *port = calloc(1, sizeof *port);
    if (port == NULL || p4r_queue_init(&port->queue) != 0) {
        free(port);
        return NULL;
    }
    port->loop = loop;
    port->kind = &kinds[type];
    port->number = number;
    port->max_bytes = max_bytes < P4R_MAX_FRAME_BYTES ? max_bytes : P4R_MAX_FRAME_BYTES;
    port->fd = -1;
    return port;
}

void p4r_port_free(struct p4r_port *port)
{
    p4r_queue_free(&port->queue);
    p4r_capture_free(port->capture);
    p4r_capture_free(port->capture_out);
    p4r_link_free(port->link);
    free(port);
}

static void stop_watching(struct p4r_port *port)
{
    p4r_loop_watch_port(port->loop, port, EPOLL_CTL_DEL, 0);
    port->fd = -1;
}

/* Watching comes first, as it can fail; a link is the port's once nothing can any more. */
static int begin(struct p4r_port *port, int fd, struct p4r_link *link)
{
    assert(port->fd < 0 && port->link == NULL && port->queue.count == 0);
    port->fd = fd;
    port->watched = EPOLLIN;
    int error = p4r_loop_watch_port(port->loop, port, EPOLL_CTL_ADD, port->watched);
    if (error != 0) {
        port->fd = -1;
        return error;
    }
    port->link = link != NULL ? link : port->kind->link_over(fd, &error);
    if (port->link == NULL) {
        stop_watching(port);
        return -error;
    }
    port->lengths = *p4r_link_counts(port->link);
    port->seen = (struct p4r_datagram_counts){0};
    port->event = P4R_EVENT_NONE;
    port->blocked = 0;
    port->put_count = 0;
    p4r_port_watch(port);
    return 0;
}

int p4r_port_attach(struct p4r_port *port, int fd) { return begin(port, fd, NULL); }

int p4r_port_attach_link(struct p4r_port *port, struct p4r_link *link)
{
    return begin(port, p4r_link_fd(link), link);
}

struct p4r_link *p4r_port_link(struct p4r_port *port) { return port->link; }

static void drop_queue(struct p4r_port *port)
{
    port->stats.tx_down += port->queue.count;
    p4r_queue_pop(&port->queue, port->queue.count);
}

void p4r_port_detach(struct p4r_port *port)
{
    if (port->fd < 0)
        return;
    assert(!port->is_served);
    drop_queue(port);
    port->put_count = 0; /* the ring that they are in goes, and so does its reader */
    stop_watching(port);
    p4r_link_free(port->link);
    port->link = NULL;
}

void p4r_port_watch(struct p4r_port *port)
{
    if (port->fd < 0)
        return;
    const uint32_t events = p4r_link_events(port->link, port->blocked);
    if (events != port->watched &&
        p4r_loop_watch_port(port->loop, port, EPOLL_CTL_MOD, events) == 0)
        port->watched = events;
}

int p4r_port_has_hung_up(const struct p4r_port *port)
{
    struct pollfd now = {.fd = port->fd, .events = POLLRDHUP};
    return port->fd >= 0 && poll(&now, 1, 0) == 1 &&
           (now.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

void p4r_port_tell(struct p4r_port *port, enum p4r_port_event event, int error)
{
    if (event == P4R_EVENT_CONTROL_MESSAGE && port->event != P4R_EVENT_NONE)
        return; /* it is taken out of the link when the peer goes, or the next one tells */
    port->event = event;
    port->event_errno = error;
    p4r_loop_has_event(port->loop);
}

static void fail(struct p4r_port *port, int error)
{
    if (port->is_served) {
        port->failed = error;
        port->blocked = 1; /* what else comes up to then waits, and is dropped */
    } else if (port->kind->ends_by_error) {
        p4r_port_detach(port);
        p4r_port_tell(port, P4R_EVENT_DOWN, error);
    } else {
        drop_queue(port);
        port->blocked = 0;
    }
}

/* Notes what the link has counted since. */
static void count_link(struct p4r_port *port)
{
    const struct p4r_link_counts *lengths = p4r_link_counts(port->link);
    struct p4r_port_stats *stats = &port->stats;
    stats->rx_too_short += lengths->rx_too_short - port->lengths.rx_too_short;
    stats->rx_too_long += lengths->rx_too_long - port->lengths.rx_too_long;
    port->lengths = *lengths;
    if (p4r_link_kind(port->link) != P4R_LINK_DATAGRAM)
        return;
    const struct p4r_datagram_counts *now = p4r_link_datagram_counts(port->link);
    struct p4r_datagram_counts *seen = &port->seen;
    stats->rx_stranger += now->strangers - seen->strangers;
    stats->path_narrowed += now->path_narrowed - seen->path_narrowed;
    stats->path_too_narrow += now->path_too_narrow - seen->path_too_narrow;
    stats->tx_runs_refused += now->tx_runs_refused - seen->tx_runs_refused;
    if (now->control_messages != seen->control_messages)
        p4r_port_tell(port, P4R_EVENT_CONTROL_MESSAGE, 0);
    *seen = *now;
}

/* Sends the first frames. Returns how many; 0 or minus an errno: what became of the first. -EPIPE: the
 * peer takes nothing any more, and a receive gives what it has sent, and ends it. */
static int send_some(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    const uint64_t too_long = port->seen.tx_too_long;
    const int sent = p4r_link_send(port->link, frames, count);
    count_link(port);
    return port->seen.tx_too_long == too_long ? sent : -EMSGSIZE; /* it has given up one frame */
}

int p4r_port_receive(struct p4r_port *port, struct p4r_frame *frames, int *one_by_one)
{
    /* Only frames in shared memory have to be copied. A capture has what the program gets, so it takes
     * copies as well. */
    *one_by_one =
        *one_by_one && port->capture == NULL && p4r_link_kind(port->link) == P4R_LINK_SHARED;
    const int count = *one_by_one ? p4r_link_peek(port->link, frames, P4R_BATCH)
                                  : p4r_link_receive(port->link, frames, P4R_BATCH);
    count_link(port);
    if (count < 0) {
        if (port->kind->ends_by_error)
            fail(port, -count);
        else
            p4r_port_tell(port, P4R_EVENT_ERROR, -count);
        return 0;
    }
    port->is_served = 1;
    port->stats.rx_frames += (uint64_t)count;
    for (int i = 0; i < count; i++) {
        port->stats.rx_bytes += frames[i].length;
        if (port->capture != NULL)
            p4r_capture_write(port->capture, frames[i].bytes, frames[i].length);
    }
    return count;
}

void p4r_port_done(struct p4r_port *port, int one_by_one)
{
    if (!port->is_served)
        return;
    port->is_served = 0;
    if (one_by_one)
        p4r_link_done(port->link);
    if (port->failed != 0)
        fail(port, port->failed);
    port->failed = 0;
}

/* Whether the frames that wait are as many as one call takes, if there is another one. */
static int is_run(const struct p4r_port *port, uint32_t length)
{
    const uint32_t count = port->queue.count, extra = port->kind->extra_bytes;
    return port->kind->run_bytes != 0 && count != 0 &&
           port->queue.bytes + length + (count + 1) * extra > port->kind->run_bytes;
}

/* Counts and shows frames that have left. */
static void note_sent(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    struct p4r_capture *capture = port->capture_out != NULL ? port->capture_out : port->capture;
    port->stats.tx_frames += (uint64_t)count;
    for (int i = 0; i < count; i++) {
        port->stats.tx_bytes += frames[i].length;
        if (capture != NULL)
            p4r_capture_write(capture, frames[i].bytes, frames[i].length);
    }
}

void p4r_port_enqueue(struct p4r_port *port, const uint8_t *bytes, uint32_t length)
{
    const struct p4r_frame frame = {bytes, length};
    if (port->fd < 0) {
        port->stats.tx_down++;
        return;
    }
    if (length - 1 >= port->max_bytes) { /* 0 is no length either */
        port->stats.tx_too_long++;
        return;
    }
    if (!port->blocked && is_run(port, length))
        p4r_port_flush(port);
    if (!port->blocked && port->queue.count == 0 && p4r_link_put(port->link, bytes, length)) {
        note_sent(port, &frame, 1);
        port->put_count++;
    } else if (p4r_queue_push(&port->queue, bytes, length) != 0) {
        port->stats.tx_queue_full++;
        return;
    }
    if (port->blocked)
        return; /* epoll will report it */
    if (port->queue.count >= P4R_BATCH)
        p4r_port_flush(port);
    else if (!port->is_dirty)
        p4r_loop_mark_dirty(port->loop, port);
}

static int is_full(int error)
{
    return error == 0 || error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}

void p4r_port_flush(struct p4r_port *port)
{
    struct p4r_frame frames[P4R_BATCH];
    if (port->put_count != 0) {
        port->put_count = 0;
        const int error = p4r_link_tell(port->link);
        if (error != 0 && error != -EPIPE) /* it has left: what it sent comes first */
            fail(port, -error);
    }
    if (port->failed != 0)
        return;
    while (port->fd >= 0 && port->queue.count > 0) {
        const int count = p4r_queue_peek(&port->queue, frames, P4R_BATCH);
        const int sent = send_some(port, frames, count);
        if (sent > 0) {
            note_sent(port, frames, sent);
            p4r_queue_pop(&port->queue, (uint32_t)sent);
        } else if (is_full(-sent)) {
            port->blocked = 1;
            if (p4r_link_retry_ns(port->link) != 0 && !port->is_resting)
                p4r_loop_mark_resting(port->loop, port);
            return;
        } else if (sent == -EPIPE) {
            drop_queue(port);
        } else if (sent == -EMSGSIZE || sent == -EINVAL) {
            port->stats.tx_too_long++;
            p4r_queue_pop(&port->queue, 1);
        } else if (sent == -EINTR) {
            continue;
        } else {
            fail(port, -sent); /* a receive reports an interface's trouble */
            if (port->failed != 0)
                return;
        }
    }
    port->blocked = 0;
}
