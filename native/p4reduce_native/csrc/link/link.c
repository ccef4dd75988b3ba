/* SPDX-License-Identifier: Apache-2.0 */
/* What all kinds of links have in common. */
#include "link_impl.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

/* link.h promises that poll and epoll have the same values. */
_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP,
               "poll's values");

struct p4r_link *p4r_link_accept(int fd, uint32_t offers, uint32_t slots, int *error)
{
    *error = EINVAL;
    if (slots > P4R_MAX_SLOTS || (slots & (slots - 1)) != 0)
        return NULL;
    *error = ENOMEM;
    struct p4r_link *link = calloc(1, sizeof *link);
    uint8_t *rows = NULL;
    if (link != NULL)
        rows = aligned_alloc(64, (size_t)P4R_LINK_MOST * P4R_ROW_STRIDE);
    if (rows == NULL) {
        free(link);
        return NULL;
    }
    link->fd = fd;
    link->rows = rows;
    link->ops = &p4r_single;
    link->offers = offers;
    link->slots = slots != 0 ? slots : P4R_LINK_SLOTS;
    *error = 0;
    return link;
}

void p4r_link_free(struct p4r_link *link)
{
    if (link == NULL)
        return;
    if (link->memory != NULL)
        munmap(link->memory, link->memory_bytes);
    if (link->ops->free != NULL)
        link->ops->free(link);
    if (link->fd >= 0)
        close(link->fd);
    free(link->rows);
    free(link);
}

struct p4r_link *p4r_unmake(struct p4r_link *link)
{
    link->fd = -1;
    p4r_link_free(link);
    return NULL;
}

int p4r_link_kind(const struct p4r_link *link) { return (int)link->ops->kind; }

const struct p4r_link_counts *p4r_link_counts(const struct p4r_link *link) { return &link->counts; }

int p4r_link_fd(const struct p4r_link *link) { return link->fd; }

uint32_t p4r_link_events(const struct p4r_link *link, int frames_wait)
{
    return link->ops->events(link, frames_wait && link->backoff.until_ns == 0);
}

uint32_t p4r_events_without_end(const struct p4r_link *link, int wait_for_room)
{
    /* No event reports what has been read already: waiting for room comes back at once. */
    return EPOLLIN | (wait_for_room || link->has_more ? EPOLLOUT : 0);
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

static int at_most(int most) { return most < P4R_LINK_MOST ? most : P4R_LINK_MOST; }

int p4r_link_receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    if (most < P4R_LINK_FRAMES)
        return -EINVAL;
    if (link->broken)
        return -link->broken;
    int count;
    if (link->ops->receive != NULL) {
        count = link->ops->receive(link, frames, at_most(most));
    } else {
        int64_t lengths[P4R_LINK_MOST];
        count = link->ops->receive_rows(link, link->rows, P4R_ROW_STRIDE, P4R_ROW_ROOM, lengths,
                                        at_most(most));
        for (int i = 0; i < count; i++)
            frames[i] =
                (struct p4r_frame){link->rows + (size_t)i * P4R_ROW_STRIDE, (uint32_t)lengths[i]};
    }
    return count < 0 ? count : sift(link, frames, count);
}

/* Counts frames that the caller checks. */
static int counted(struct p4r_link *link, const int64_t *lengths, int count)
{
    for (int i = 0; i < count; i++)
        link->counts.rx_bytes += (uint64_t)lengths[i];
    if (count > 0)
        link->counts.rx_frames += (uint64_t)count;
    return count;
}

/* Receives, and copies the first `head` bytes of each frame into its row, or all of it. */
static int receive_heads(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                         size_t head, int64_t *lengths, const uint8_t **frames, int most)
{
    if (link->ops->receive == NULL) {
        const int count = link->ops->receive_rows(link, rows, stride, room, lengths, at_most(most));
        for (int i = 0; i < count; i++)
            frames[i] = rows + (size_t)i * stride;
        return count;
    }
    struct p4r_frame found[P4R_LINK_MOST];
    const int count = link->ops->receive(link, found, at_most(most));
    for (int i = 0; i < count; i++) {
        const size_t length = found[i].length < room ? found[i].length : room;
        __builtin_memcpy(rows + (size_t)i * stride, found[i].bytes, length < head ? length : head);
        lengths[i] = (int64_t)length;
        frames[i] = found[i].bytes;
    }
    return count;
}

int p4r_link_receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                          int64_t *lengths, int most)
{
    const uint8_t *frames[P4R_LINK_MOST];
    if (most < P4R_LINK_FRAMES)
        return -EINVAL;
    if (link->broken)
        return -link->broken;
    return counted(link, lengths,
                   receive_heads(link, rows, stride, room, room, lengths, frames, most));
}

int p4r_link_peek(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    if (link->ops->peek == NULL)
        return p4r_link_receive(link, frames, most);
    if (link->broken)
        return -link->broken;
    const int count = link->ops->peek(link, frames, most);
    link->peeked = count > 0 ? count : 0;
    return count < 0 ? count : sift(link, frames, count);
}

void p4r_link_done(struct p4r_link *link)
{
    if (link->peeked > 0)
        p4r_link_drop(link, link->peeked);
    link->peeked = 0;
}

void p4r_link_drop(struct p4r_link *link, int count)
{
    if (link->ops->drop != NULL)
        link->ops->drop(link, count);
}

int p4r_link_look(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room, size_t head,
                  int64_t *lengths, const uint8_t **frames, int most)
{
    if (link->broken)
        return -link->broken;
    return counted(
        link, lengths,
        link->ops->look != NULL
            ? link->ops->look(link, rows, stride, room, head, lengths, frames, at_most(most))
            : receive_heads(link, rows, stride, room, head, lengths, frames, most));
}

/* Sends frames of good lengths. */
static int send_some(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    if (link->broken || link->is_deaf)
        return link->broken ? -link->broken : -EPIPE;
    if (p4r_backoff_holds(&link->backoff))
        return 0;
    const int sent = link->ops->send(link, frames, count);
    for (int i = 0; i < sent; i++)
        link->counts.tx_bytes += frames[i].length;
    if (sent > 0) {
        link->counts.tx_frames += (uint64_t)sent;
        link->backoff.pause_ns = 0;
    }
    return sent;
}

static int is_good(uint32_t length) { return length != 0 && length <= P4R_LINK_MAX_FRAME; }

int p4r_link_send(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        int run = 0;
        while (done + run < count && is_good(frames[done + run].length))
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
    if (link->ops->put == NULL || link->broken || link->is_deaf || !is_good(length) ||
        !link->ops->put(link, bytes, length))
        return 0;
    link->counts.tx_bytes += length;
    link->counts.tx_frames++;
    return 1;
}

int p4r_link_tell(struct p4r_link *link)
{
    if (link->ops->tell == NULL)
        return 0;
    if (link->broken || link->is_deaf)
        return link->broken ? -link->broken : -EPIPE;
    return link->ops->tell(link);
}

void p4r_link_place(struct p4r_link *link, uint32_t placement) { link->placement = placement; }

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

void p4r_link_unbind(struct p4r_link *link) { p4r_placement_unbind(&link->bound); }

int p4r_link_wait(struct p4r_link *link, int wake_fd, int timeout_ms, int how)
{
    const int writable = how & P4R_LINK_FOR_ROOM;
    struct pollfd waits[2] = {
        {.fd = link->fd, .events = POLLIN | POLLRDHUP},
        {.fd = wake_fd, .events = POLLIN},
    };
    if (link->ops->may_sleep != NULL) {
        if (!link->ops->may_sleep(link, writable))
            return P4R_LINK_READY;
    } else if (link->has_more || link->is_deaf) {
        return P4R_LINK_READY;
    } else if (writable && link->backoff.until_ns != 0) {
        timeout_ms = until_retry_ms(link, timeout_ms);
    } else if (writable) {
        waits[0].events |= POLLOUT;
    }
    if (how & P4R_LINK_PLACED && link->ops->bind != NULL)
        link->ops->bind(link);
    else
        p4r_link_unbind(link);
    const int count = poll(waits, 2, timeout_ms), error = errno;
    if (count < 0)
        return error == EINTR ? 0 : -error;
    return (waits[0].revents != 0 ? P4R_LINK_READY : 0) |
           (waits[1].revents != 0 ? P4R_LINK_WOKEN : 0);
}
