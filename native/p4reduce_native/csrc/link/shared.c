/* SPDX-License-Identifier: Apache-2.0 */
/* Two rings in memory that both ends map; the socket carries doorbells and shows when a peer has
 * gone.
 *
 * The socket and no eventfd, for two reasons: there is one thing to wait at, and a peer that shares
 * an eventfd's file could turn off O_NONBLOCK and let this end wait forever.
 *
 * Who finds its ring empty takes one doorbell off the socket, sets its flag, and looks again. As
 * long as it takes frames it leaves the doorbell where it is, so that poll and epoll go on telling.
 */
#include "link_impl.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define GONE_VISITS 256
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static size_t ring_pages(uint32_t slots) { return (p4r_ring_bytes(slots) + 4095) & ~(size_t)4095; }

/* The ring up, from worker to switch, is first. */
static int map(struct p4r_link *link, int fd, uint32_t slots, int is_switch)
{
    size_t ring = ring_pages(slots);
    void *memory = mmap(NULL, 2 * ring, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    (void)madvise(memory, 2 * ring, MADV_DONTFORK); /* a forked child has no part in this link */
    link->memory = memory;
    link->memory_bytes = 2 * ring;
    p4r_ring_attach(is_switch ? &link->in : &link->out, link->memory, slots);
    p4r_ring_attach(is_switch ? &link->out : &link->in, link->memory + ring, slots);
    return 0;
}

int p4r_shared_make(struct p4r_link *link, uint32_t slots)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("p4reduce-link", flags | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("p4reduce-link", flags);
    if (fd < 0)
        return -errno;
    if (ftruncate(fd, (off_t)(2 * ring_pages(slots))) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        int code = errno;
        close(fd);
        return -code;
    }
    int error = map(link, fd, slots, 1);
    if (error != 0) {
        close(fd);
        return error;
    }
    /* Both receivers begin asleep: the first frame rings. */
    atomic_store(&link->in.words->receiver_sleeps, P4R_SLEEPS);
    atomic_store(&link->out.words->receiver_sleeps, P4R_SLEEPS);
    return fd;
}

int p4r_shared_map(struct p4r_link *link, int memory_fd, uint32_t slots)
{
    struct stat status;
    int seals = fcntl(memory_fd, F_GET_SEALS);
    /* Memory that could be cut short would end us by SIGBUS. */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(memory_fd, &status) != 0 ||
        (uint64_t)status.st_size < 2 * (uint64_t)ring_pages(slots))
        return -EPROTO;
    return map(link, memory_fd, slots, 0);
}

/* Returns an errno, or 0. */
static int ring_doorbell(int fd)
{
    /* Where the socket is full, the peer has doorbells enough. */
    if (send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && !p4r_is_full(errno))
        return errno;
    return 0;
}

/* Whether the peer has gone; takes one doorbell. */
static int take_doorbell(struct p4r_link *link)
{
    uint8_t doorbell[8];
    ssize_t bytes = recv(link->fd, doorbell, sizeof doorbell, MSG_DONTWAIT);
    return bytes == 0 || (bytes < 0 && !p4r_is_full(errno) && errno != EINTR);
}

static void arm(_Atomic uint32_t *flag)
{
    atomic_store_explicit(flag, P4R_SLEEPS, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Frames to take now, or minus an errno. */
static int look(struct p4r_link *link)
{
    int ready = p4r_ring_ready(&link->in);
    /* Memory can be written to without the socket. A ring that is never empty must not keep the
     * port for a peer that has gone, so that is asked from time to time. */
    int gone = link->is_deaf ||
               (ready > 0 && ++link->visits % GONE_VISITS == 0 && p4r_has_hung_up(link->fd));
    if (ready == 0 && !gone) {
        gone = take_doorbell(link);
        if (!gone)
            arm(&link->in.words->receiver_sleeps);
        ready = p4r_ring_ready(&link->in);
        /* The doorbell that was taken may stand for frames that came just now, or for room. */
        link->uncovered = ready > 0 || (link->wants_room && p4r_ring_has_room(&link->out));
    }
    if (ready < 0)
        return -EPROTO;
    link->has_gone = gone;
    link->left = ready;
    return ready == 0 && gone ? -EPIPE : ready;
}

/* Frames to take in this call, or minus an errno. */
static int count_of(struct p4r_link *link, int most)
{
    int count = link->has_gone ? link->left : look(link);
    if (count == 0 && link->has_gone)
        count = -EPIPE;
    if (count < 0)
        return p4r_break(link, -count);
    if (count > most)
        count = most;
    link->left -= count;
    return count;
}

static void tell_of_room(struct p4r_link *link)
{
    /* One that has gone needs no doorbell. */
    if (p4r_ring_sender_sleeps(&link->in))
        (void)ring_doorbell(link->fd);
}

static int receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                        int64_t *lengths, int most)
{
    int count = count_of(link, most);

    if (count > 0) {
        p4r_ring_take(&link->in, rows, stride, room, lengths, count);
        tell_of_room(link);
    }
    return count;
}

static int look_at(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room, size_t head,
                   int64_t *lengths, const uint8_t **frames, int most)
{
    const int count = count_of(link, most);

    if (count > 0)
        p4r_ring_look(&link->in, rows, stride, room, head, lengths, frames, count);
    return count;
}

static int peek(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    const int count = count_of(link, most);

    if (count > 0)
        p4r_ring_peek(&link->in, frames, P4R_ROW_ROOM, count);
    return count;
}

static void drop(struct p4r_link *link, int count)
{
    p4r_ring_drop(&link->in, count);
    tell_of_room(link);
}

static int send_frames(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        int room = p4r_ring_room(&link->out);
        if (room < 0)
            return p4r_break(link, EPROTO);
        if (room == 0) {
            arm(&link->out.words->sender_sleeps);
            if (!p4r_ring_has_room(&link->out))
                break;
            continue;
        }
        int part = count - done < room ? count - done : room;
        link->out.limit = link->out.own + (uint32_t)part; /* the rest must be checked again */
        p4r_ring_put(&link->out, frames + done, part);
        done += part;
        int error = p4r_ring_receiver_sleeps(&link->out) ? ring_doorbell(link->fd) : 0;
        if (error != 0)
            return p4r_send_failed(link, error);
    }
    link->wants_room = done < count;
    return done;
}

/* Whether there was room, and the frame is in the ring. */
static int put(struct p4r_link *link, const uint8_t *bytes, uint32_t length)
{
    struct p4r_ring *ring = &link->out;

    if (ring->own == ring->limit) {
        int room = link->wants_room ? 0 : p4r_ring_room(ring);
        if (room <= 0)
            return 0; /* `send` finds the same, and handles it */
        ring->limit = ring->own + (uint32_t)room;
    }
    p4r_ring_write(ring, bytes, length);
    if (ring->own != ring->limit)
        p4r_ring_will_write(ring);
    return 1;
}

/* Returns 0 or minus an errno. */
static int tell(struct p4r_link *link)
{
    if (link->out.announced == link->out.own)
        return 0;
    atomic_store_explicit(&link->out.words->placement, p4r_placement_word(link->placement),
                          memory_order_relaxed);
    p4r_ring_tell(&link->out);
    int error = p4r_ring_receiver_sleeps(&link->out) ? ring_doorbell(link->fd) : 0;
    return error != 0 ? p4r_send_failed(link, error) : 0;
}

static int may_sleep(struct p4r_link *link, int writable)
{
    if (link->broken || link->is_deaf || link->uncovered)
        return 0;
    if (writable) {
        arm(&link->out.words->sender_sleeps);
        if (p4r_ring_has_room(&link->out))
            return 0;
    }
    return 1;
}

static void bind_as_wanted(struct p4r_link *link)
{
    struct p4r_ring_words *words = link->in.words;
    uint32_t armed = P4R_SLEEPS;

    if (p4r_placement_bind(&link->bound,
                           atomic_load_explicit(&words->placement, memory_order_relaxed)))
        atomic_compare_exchange_strong_explicit(&words->receiver_sleeps, &armed,
                                                P4R_SLEEPS_ELSEWHERE, memory_order_relaxed,
                                                memory_order_relaxed);
}

uint32_t p4r_link_peer_sleeps(const struct p4r_link *link)
{
    return link->ops->kind != P4R_LINK_SHARED
               ? P4R_SLEEPS
               : atomic_load_explicit(&link->out.words->receiver_sleeps, memory_order_relaxed);
}

int p4r_link_has_frames(const struct p4r_link *link)
{
    return link->ops->kind == P4R_LINK_SHARED && p4r_ring_ready(&link->in) > 0;
}

/* Room is a doorbell too, so nothing is to be waited for but that, or what is there already. */
static uint32_t events(const struct p4r_link *link, int wait_for_room)
{
    (void)wait_for_room;
    return EPOLLIN | EPOLLRDHUP | (link->is_deaf || link->uncovered ? EPOLLOUT : 0);
}

const struct p4r_link_ops p4r_shared = {
    .kind = P4R_LINK_SHARED,
    .receive_rows = receive_rows,
    .send = send_frames,
    .look = look_at,
    .peek = peek,
    .drop = drop,
    .put = put,
    .tell = tell,
    .may_sleep = may_sleep,
    .bind = bind_as_wanted,
    .events = events,
};
