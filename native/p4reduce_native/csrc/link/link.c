/* SPDX-License-Identifier: Apache-2.0 */
/* What all kinds of links have in common. */
#include "link_impl.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

/* As link.h says of what to wait for. */
_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP,
               "poll's values");
/* As link.py has them. */
_Static_assert(sizeof(struct p4r_link_counts) == 7 * sizeof(uint64_t), "LinkCounts");
_Static_assert(sizeof(struct p4r_datagram_counts) == 11 * sizeof(uint64_t), "DatagramCounts");

struct p4r_link *p4r_link_accept(int fd, uint32_t offers, uint32_t slots, int *error)
{
    *error = EINVAL;
    if (slots > P4R_MAX_SLOTS || (slots & (slots - 1)) != 0)
        return NULL;
    *error = ENOMEM;
    struct p4r_link *link = calloc(1, sizeof *link);
    uint8_t *rows = NULL;
    if (link != NULL) {
        size_t bytes = (size_t)P4R_LINK_MOST * P4R_ROW_STRIDE;
        rows = aligned_alloc(64, bytes > P4R_BATCH_BYTES ? bytes : P4R_BATCH_BYTES);
    }
    if (rows == NULL) {
        free(link);
        return NULL;
    }
    link->fd = fd;
    link->rows = rows;
    link->kind = P4R_LINK_SINGLE;
    link->offers = offers;
    link->slots = slots != 0 ? slots : P4R_LINK_SLOTS;
    link->most_per_message = P4R_LINK_FRAMES;
    *error = 0;
    return link;
}

void p4r_link_free(struct p4r_link *link)
{
    if (link == NULL)
        return;
    if (link->memory != NULL)
        munmap(link->memory, link->memory_bytes);
    p4r_datagrams_free(link);
    if (link->fd >= 0)
        close(link->fd);
    p4r_offload_free(link->offload);
    free(link->rows);
    free(link);
}

struct p4r_link *p4r_unmake(struct p4r_link *link)
{
    link->fd = -1;
    p4r_link_free(link);
    return NULL;
}

int p4r_link_kind(const struct p4r_link *link) { return link->kind; }

const struct p4r_link_counts *p4r_link_counts(const struct p4r_link *link) { return &link->counts; }

int p4r_link_fd(const struct p4r_link *link) { return link->fd; }

uint32_t p4r_link_events(const struct p4r_link *link, int frames_wait)
{
    uint32_t events = EPOLLIN | EPOLLRDHUP;
    const int for_room = frames_wait && link->backoff.until_ns == 0;
    /* No event reports what has been read already: waiting for room comes back at once. */
    if (link->kind == P4R_LINK_DATAGRAM || link->kind == P4R_LINK_OFFLOAD)
        return EPOLLIN | (for_room || link->has_more ? EPOLLOUT : 0);
    /* So it is with a socket that carries doorbells alone. A doorbell reports room in a ring. */
    if (link->is_deaf || (link->kind == P4R_LINK_SHARED ? link->uncovered : for_room))
        events |= EPOLLOUT;
    return events;
}

uint64_t p4r_link_retry_ns(const struct p4r_link *link) { return link->backoff.until_ns; }

static int has_left(int code) { return code == EPIPE || code == ECONNRESET || code == ENOTCONN; }

int p4r_break(struct p4r_link *link, int code)
{
    link->broken = has_left(code) ? EPIPE : code;
    return -link->broken;
}

int p4r_reads_on(struct p4r_link *link, int code)
{
    if (code != ECONNRESET || link->is_deaf)
        return code == EINTR;
    link->is_deaf = 1;
    return 1;
}

int p4r_found_nothing(struct p4r_link *link) { return link->is_deaf ? p4r_break(link, EPIPE) : 0; }

int p4r_send_failed(struct p4r_link *link, int code)
{
    if (p4r_is_short(code))
        p4r_backoff_fail(&link->backoff);
    if (p4r_is_full(code))
        return 0;
    if (!has_left(code))
        return p4r_break(link, code);
    link->is_deaf = 1;
    return -EPIPE;
}

int p4r_has_hung_up(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLRDHUP};
    return poll(&poller, 1, 0) == 1 && (poller.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static int receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                        int64_t *lengths, int most)
{
    if (most > P4R_LINK_MOST)
        most = P4R_LINK_MOST;
    if (link->kind == P4R_LINK_SHARED)
        return p4r_shared_receive(link, rows, stride, room, lengths, most);
    return p4r_single_receive(link, rows, stride, room, lengths, most);
}

/* Counts frames, and moves those of allowed length to the front; returns how many these are. */
static int sift(struct p4r_link *link, struct p4r_frame *frames, int count)
{
    int good = 0;
    for (int i = 0; i < count; i++) {
        uint32_t length = frames[i].length;
        if (length < P4R_LINK_MIN_FRAME)
            link->counts.rx_too_short++;
        else if (length > P4R_LINK_MAX_FRAME)
            link->counts.rx_too_long++;
        else {
            link->counts.rx_bytes += length;
            frames[good++] = frames[i];
        }
    }
    link->counts.rx_frames += (uint64_t)good;
    return good;
}

/* Into the link's own memory; of the kinds that have frames by message. */
static int receive_some(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    if (link->kind == P4R_LINK_BATCH)
        return p4r_batch_receive(link, frames, most);
    if (link->kind == P4R_LINK_DATAGRAM)
        return p4r_datagrams_receive(link, frames, most);
    return p4r_offload_receive(link, frames, most);
}

static int has_many_per_message(const struct p4r_link *link)
{
    return link->kind == P4R_LINK_BATCH || link->kind == P4R_LINK_OFFLOAD ||
           link->kind == P4R_LINK_DATAGRAM;
}

int p4r_link_receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    if (most < P4R_LINK_FRAMES)
        return -EINVAL;
    if (link->broken)
        return -link->broken;
    int count;
    if (has_many_per_message(link)) {
        count = receive_some(link, frames, most);
    } else {
        int64_t lengths[P4R_LINK_MOST];
        count = receive_rows(link, link->rows, P4R_ROW_STRIDE, P4R_ROW_ROOM, lengths, most);
        for (int i = 0; i < count; i++)
            frames[i] =
                (struct p4r_frame){link->rows + (size_t)i * P4R_ROW_STRIDE, (uint32_t)lengths[i]};
    }
    return count < 0 ? count : sift(link, frames, count);
}

int p4r_link_receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                          int64_t *lengths, int most)
{
    if (most < P4R_LINK_FRAMES)
        return -EINVAL;
    if (link->broken)
        return -link->broken;
    int count;
    if (has_many_per_message(link)) {
        struct p4r_frame frames[P4R_LINK_MOST];
        count = receive_some(link, frames, most > P4R_LINK_MOST ? P4R_LINK_MOST : most);
        for (int i = 0; i < count; i++) {
            lengths[i] = frames[i].length < room ? frames[i].length : (int64_t)room;
            __builtin_memcpy(rows + (size_t)i * stride, frames[i].bytes, (size_t)lengths[i]);
        }
    } else {
        count = receive_rows(link, rows, stride, room, lengths, most);
    }
    for (int i = 0; i < count; i++)
        link->counts.rx_bytes += (uint64_t)lengths[i];
    if (count > 0)
        link->counts.rx_frames += (uint64_t)count;
    return count;
}

int p4r_link_peek(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    if (link->kind != P4R_LINK_SHARED)
        return p4r_link_receive(link, frames, most);
    if (link->broken)
        return -link->broken;
    const int count = p4r_shared_peek(link, frames, most);
    link->peeked = count > 0 ? count : 0;
    return count < 0 ? count : sift(link, frames, count);
}

void p4r_link_done(struct p4r_link *link)
{
    if (link->peeked > 0)
        p4r_link_drop(link, link->peeked);
    link->peeked = 0;
}

int p4r_link_look(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room, size_t head,
                  int64_t *lengths, const uint8_t **frames, int most)
{
    int count;
    if (link->broken)
        return -link->broken;
    if (most > P4R_LINK_MOST)
        most = P4R_LINK_MOST;
    if (link->kind == P4R_LINK_SINGLE) {
        count = p4r_link_receive_rows(link, rows, stride, room, lengths, most);
        for (int i = 0; i < count; i++)
            frames[i] = rows + (size_t)i * stride;
        return count;
    }
    if (link->kind == P4R_LINK_SHARED) {
        count = p4r_shared_look(link, rows, stride, room, head, lengths, frames, most);
    } else {
        struct p4r_frame found[P4R_LINK_MOST];
        count = receive_some(link, found, most);
        for (int i = 0; i < count; i++) {
            const size_t length = found[i].length < room ? found[i].length : room;
            __builtin_memcpy(rows + (size_t)i * stride, found[i].bytes,
                             length < head ? length : head);
            lengths[i] = (int64_t)length;
            frames[i] = found[i].bytes;
        }
    }
    for (int i = 0; i < count; i++)
        link->counts.rx_bytes += (uint64_t)lengths[i];
    if (count > 0)
        link->counts.rx_frames += (uint64_t)count;
    return count;
}

/* Sends frames of good lengths. */
static int send_some(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int sent;
    if (link->broken || link->is_deaf)
        return link->broken ? -link->broken : -EPIPE;
    if (p4r_backoff_holds(&link->backoff))
        return 0;
    if (link->kind == P4R_LINK_SHARED)
        sent = p4r_shared_send(link, frames, count);
    else if (link->kind == P4R_LINK_BATCH)
        sent = p4r_batch_send(link, frames, count);
    else if (link->kind == P4R_LINK_DATAGRAM)
        sent = p4r_datagrams_send(link, frames, count);
    else if (link->kind == P4R_LINK_OFFLOAD)
        sent = p4r_offload_send(link, frames, count);
    else
        sent = p4r_single_send(link, frames, count);
    for (int i = 0; i < sent; i++)
        link->counts.tx_bytes += frames[i].length;
    if (sent > 0) {
        link->counts.tx_frames += (uint64_t)sent;
        link->backoff.pause_ns = 0;
    }
    return sent;
}

static int is_good(const struct p4r_frame *frame)
{
    return frame->length != 0 && frame->length <= P4R_LINK_MAX_FRAME;
}

int p4r_link_send(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        int run = 0;
        while (done + run < count && is_good(&frames[done + run]))
            run++;
        if (run == 0) {
            link->counts.tx_bad_length++;
            done++;
            continue;
        }
        int sent = send_some(link, frames + done, run);
        if (sent < 0)
            return sent;
        done += sent;
        if (sent < run)
            break;
    }
    return done;
}

int p4r_link_put(struct p4r_link *link, const uint8_t *bytes, uint32_t length)
{
    if (link->kind != P4R_LINK_SHARED || link->broken || link->is_deaf ||
        length - 1 >= P4R_LINK_MAX_FRAME || !p4r_shared_put(link, bytes, length))
        return 0;
    link->counts.tx_bytes += length;
    link->counts.tx_frames++;
    return 1;
}

int p4r_link_tell(struct p4r_link *link)
{
    if (link->kind != P4R_LINK_SHARED)
        return 0;
    if (link->broken || link->is_deaf)
        return link->broken ? -link->broken : -EPIPE;
    return p4r_shared_tell(link);
}

int p4r_link_send_rows(struct p4r_link *link, const uint8_t *base, size_t stride,
                       const int64_t *lengths, const int64_t *rows, int count)
{
    int done = 0;
    while (done < count) {
        struct p4r_frame frames[P4R_LINK_MOST];
        int part = count - done < P4R_LINK_MOST ? count - done : P4R_LINK_MOST;
        for (int i = 0; i < part; i++) {
            int64_t row = rows[done + i];
            frames[i] = (struct p4r_frame){base + (size_t)row * stride, (uint32_t)lengths[row]};
        }
        int sent = p4r_link_send(link, frames, part);
        if (sent < 0)
            return sent;
        done += sent;
        if (sent < part)
            break;
    }
    return done;
}

/* `timeout_ms` (-1: none), or less, up to the next try to send. */
static int until_retry_ms(const struct p4r_link *link, int timeout_ms)
{
    const uint64_t now = p4r_now_ns(), then = link->backoff.until_ns;
    const int ms = now < then ? (int)((then - now + 999999) / 1000000) : 0;
    return timeout_ms < 0 || ms < timeout_ms ? ms : timeout_ms;
}

int p4r_link_wait(struct p4r_link *link, int wake_fd, int timeout_ms, int writable)
{
    struct pollfd waits[2] = {
        {.fd = link->fd, .events = POLLIN | POLLRDHUP},
        {.fd = wake_fd, .events = POLLIN},
    };
    if (link->kind == P4R_LINK_SHARED) {
        if (!p4r_shared_may_sleep(link, writable))
            return P4R_LINK_READY;
    } else if (link->has_more || link->is_deaf) {
        return P4R_LINK_READY;
    } else if (writable && link->backoff.until_ns != 0) {
        timeout_ms = until_retry_ms(link, timeout_ms);
    } else if (writable) {
        waits[0].events |= POLLOUT;
    }
    int count = poll(waits, 2, timeout_ms);
    if (count < 0)
        return errno == EINTR ? 0 : -errno;
    return (waits[0].revents != 0 ? P4R_LINK_READY : 0) |
           (waits[1].revents != 0 ? P4R_LINK_WOKEN : 0);
}
