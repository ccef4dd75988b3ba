/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/clock.h"
#include "link/placement.h"
#include "loop/loop_impl.h"
#include "loop/poll_backoff.h"
#include "loop/packet_in.h"

enum {
    PORTS = 512, /* 9 bits in v1model */
    EVENTS = 64, /* of one iteration */
    AHEAD = 2,   /* frames that are asked for while one is worked on */
    UNSEEN = 8,  /* frames that wait at a port before `has_room` sends them, to see if it can */
    HELD = 2048, /* the most frames that come in while others are held back: up to 1 ms */
    NS_PER_MS = 1000000,
    HELD_NS = 4 * NS_PER_MS, /* and the longest time for which others are held back */
    WORTH_WAKING = 64,       /* frames for a peer on another CPU: with fewer it sleeps more often */
};

/* What an epoll event belongs to, in the upper half of its data; the lower half says which. */
enum { OF_WAKE_FD, OF_PORT, OF_PYTHON };

_Static_assert((int)P4R_BATCH >= (int)P4R_LINK_FRAMES, "a link's receive has room");

struct p4r_loop {
    int epoll_fd, wake_fd;
    uint32_t cpu_port;
    uint32_t reasons; /* to come back to Python, of this iteration */
    p4r_process process;
    p4r_events events;
    p4r_release release;
    uint64_t next_release_ns; /* when something leaves an egress queue next */
    struct p4r_program *program;
    p4r_frames_callback callback;
    uint64_t now_ns; /* of this batch */
    struct p4r_port *dirty, *resting;
    uint32_t held; /* frames that have come, and iterations, since all was flushed */
    uint64_t held_since_ns;
    uint32_t cpus;
    struct p4r_port *neighbours[PORTS];   /* whose peers run on this machine, and are there */
    uint32_t neighbour_count, port_count; /* of ports that are there, of all kinds */
    int are_told;                         /* where they wake up, since one came or went */
    int is_placed;                        /* whether that is anything */
    struct p4r_packet_ins packet_ins;
    struct p4r_loop_stats stats;
    struct p4r_poll_backoff backoff;
    uint32_t taken, taken_elsewhere; /* frames of this iteration: by interfaces, by other ports */
    int ready_count;
    struct epoll_event ready[EVENTS]; /* for Python */
    struct p4r_port *ports[PORTS];
    _Alignas(64) uint8_t row[P4R_ROW_PAD + P4R_ROW_BYTES]; /* of the frame that is worked on */
};

/* -- A frame's way -------------------------------------------------------------------------------*/

static void emit(void *context, uint32_t port_number, const uint8_t *frame, uint32_t length)
{
    struct p4r_loop *loop = context;
    struct p4r_port *port = port_number < PORTS ? loop->ports[port_number] : NULL;
    if (port != NULL) {
        p4r_port_enqueue(port, frame, length);
    } else if (port_number == loop->cpu_port) {
        if (p4r_packet_in_push(&loop->packet_ins, frame, length) != 0)
            loop->stats.packet_ins_lost++;
        loop->reasons |= P4R_LOOP_PACKET_IN;
    } else {
        loop->stats.no_such_port++;
    }
}

static int has_room(void *context, uint32_t port_number)
{
    const struct p4r_loop *loop = context;
    struct p4r_port *port = port_number < PORTS ? loop->ports[port_number] : NULL;
    if (port == NULL || port->fd < 0)
        return 1;
    if (!port->blocked && port->queue.count >= UNSEEN)
        p4r_port_flush(port);
    return !port->blocked;
}

/* What is due leaves its egress queue, as far as its port takes it. */
static void release(struct p4r_loop *loop)
{
    loop->next_release_ns = loop->release(loop->program, loop->now_ns, emit, loop, has_room);
}

static void run(struct p4r_loop *loop, uint32_t port, struct p4r_frame frame)
{
    loop->process(loop->program, port, frame.bytes, frame.length, loop->now_ns, emit, loop);
    if (loop->release != NULL)
        release(loop);
}

static void process(struct p4r_loop *loop, uint32_t port, const struct p4r_frame *frames, int count)
{
    if (loop->process != NULL) {
        loop->now_ns = p4r_now_ns();
        for (int i = 0; i < count; i++)
            run(loop, port, frames[i]);
    } else if (loop->callback != NULL) {
        loop->callback(port, frames, count);
    } else {
        loop->stats.no_pipeline += (uint64_t)count;
    }
}

/* Frames in memory that another core has written: while the program runs with one, those behind it
 * are on their way. */
static void process_one_by_one(struct p4r_loop *loop, uint32_t port, const struct p4r_frame *frames,
                               int count)
{
    loop->now_ns = p4r_now_ns();
    for (int i = 0; i < AHEAD && i < count; i++)
        p4r_link_will_fetch(frames[i]);
    for (int i = 0; i < count; i++) {
        if (i + AHEAD < count)
            p4r_link_will_fetch(frames[i + AHEAD]);
        run(loop, port, p4r_link_fetch(frames[i], loop->row + P4R_ROW_PAD));
    }
}

static void try_again(struct p4r_loop *loop, struct p4r_port *port)
{
    p4r_port_flush(port);
    if (!port->blocked && loop->callback != NULL)
        loop->reasons |= P4R_LOOP_ROOM;
}

/* First what waits to leave, then what came: so no wake-up of a link is lost. */
static void serve(struct p4r_loop *loop, struct p4r_port *port)
{
    struct p4r_frame frames[P4R_BATCH];
    if (port->blocked)
        try_again(loop, port);
    if (port->fd < 0)
        return;
    int one_by_one = loop->process != NULL;
    const int count = p4r_port_receive(port, frames, &one_by_one);
    *(port->kind->is_interface ? &loop->taken : &loop->taken_elsewhere) += (uint32_t)count;
    if (count > 0 && one_by_one)
        process_one_by_one(loop, port->number, frames, count);
    else if (count > 0)
        process(loop, port->number, frames, count);
    p4r_port_done(port, one_by_one);
    p4r_port_watch(port);
}

/* -- The loop ------------------------------------------------------------------------------------*/

/* Whether a port's frames are held back while others come in. Two kinds of ports do that. Over UDP one
 * call sends a run of frames, and long runs are cheaper. A neighbour that is woken takes this thread's
 * core, if there are as many neighbours as cores; it would take only the few frames that are there.
 * One that wakes up on another core begins once there is enough for it. There, one that is awake gets
 * frames at once, without a doorbell, and sleeps less often. */
static int waits_for_more(const struct p4r_loop *loop, const struct p4r_port *port)
{
    if (port->blocked || port->link == NULL) /* its peer may have left since it was sent to */
        return 0;
    if (!port->kind->is_neighbour)
        return port->kind->run_bytes != 0;
    const uint32_t sleeps = p4r_link_peer_sleeps(port->link);
    if (sleeps == P4R_SLEEPS_ELSEWHERE)
        return port->put_count + port->queue.count < WORTH_WAKING;
    if (sleeps == P4R_AWAKE && loop->is_placed)
        return 0;
    return loop->neighbour_count >= loop->cpus;
}

/* Says who is to wake up on which CPU, after a neighbour has come or gone. */
static void place_neighbours(struct p4r_loop *loop)
{
    if (loop->are_told)
        return;
    loop->are_told = 1;
    loop->is_placed = p4r_is_placed(loop->neighbour_count, loop->cpus);
    const uint32_t together = p4r_placed_together(loop->neighbour_count, loop->cpus);
    for (uint32_t i = 0; i < loop->neighbour_count; i++)
        p4r_link_place(loop->neighbours[i]->link, !loop->is_placed ? P4R_ANYWHERE
                                                  : i < together   ? P4R_TOGETHER
                                                                   : P4R_ELSEWHERE);
}

/* With `hold`, ports keep for the next iteration what waits for more. */
static void flush_or_hold(struct p4r_loop *loop, int hold)
{
    struct p4r_port *dirty = loop->dirty;
    place_neighbours(loop);
    loop->dirty = NULL;
    while (dirty != NULL) {
        struct p4r_port *port = dirty;
        dirty = port->next_dirty;
        if (hold && waits_for_more(loop, port)) {
            port->next_dirty = loop->dirty;
            loop->dirty = port;
            continue;
        }
        port->is_dirty = 0;
        if (!port->blocked)
            p4r_port_flush(port);
        p4r_port_watch(port);
    }
}

static void flush(struct p4r_loop *loop) { flush_or_hold(loop, 0); }

/* Sends what rests, where its time has come. Returns when to do so next. */
static uint64_t flush_resting(struct p4r_loop *loop)
{
    uint64_t next_ns = UINT64_MAX;
    struct p4r_port *resting = loop->resting;
    loop->resting = NULL;
    while (resting != NULL) {
        struct p4r_port *port = resting;
        resting = port->next_resting;
        port->is_resting = 0;
        if (port->fd < 0 || !port->blocked)
            continue;
        const uint64_t due_ns = p4r_link_retry_ns(port->link);
        if (due_ns <= p4r_now_ns()) {
            /* It rests again unless it has sent all, or waits for an event. */
            try_again(loop, port);
            p4r_port_watch(port);
        } else {
            p4r_loop_mark_resting(loop, port);
        }
        if (port->is_resting && p4r_link_retry_ns(port->link) < next_ns)
            next_ns = p4r_link_retry_ns(port->link);
    }
    return next_ns;
}

/* The same, and lets egress queues go on at ports that have room again: no event reports that. */
static uint64_t wake_resting(struct p4r_loop *loop)
{
    if (loop->resting == NULL)
        return UINT64_MAX;
    const uint64_t next_ns = flush_resting(loop);
    if (loop->release != NULL) {
        loop->now_ns = p4r_now_ns();
        release(loop);
    }
    return next_ns;
}

static int wait_ms(uint64_t deadline_ns)
{
    const uint64_t now = p4r_now_ns();
    const uint64_t ms = now < deadline_ns ? (deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return ms < 3600000 ? (int)ms : 3600000;
}

/* Lets egress queues go on, and sends what does not wait for more. `came`: whether anything has. */
static void finish_iteration(struct p4r_loop *loop, int came)
{
    if (loop->release != NULL) {
        loop->now_ns = p4r_now_ns();
        release(loop);
    }
    loop->held += 1 + loop->taken + loop->taken_elsewhere;
    const int hold = came && loop->held < HELD && loop->dirty != NULL &&
                     p4r_now_ns() < loop->held_since_ns + HELD_NS;
    if (!hold)
        loop->held = 0;
    flush_or_hold(loop, hold);
    p4r_poll_backoff_received(&loop->backoff, loop->taken, loop->taken_elsewhere);
}

/* One batch from each neighbour that has frames in shared memory, without a call of the kernel. So a
 * ring that is empty for a moment asks for no doorbell. Returns whether there were any. */
static int serve_neighbours(struct p4r_loop *loop)
{
    loop->taken = loop->taken_elsewhere = 0;
    for (uint32_t i = 0; i < loop->neighbour_count; i++) {
        struct p4r_port *port = loop->neighbours[i];
        if (p4r_link_has_frames(port->link))
            serve(loop, port);
    }
    return loop->taken_elsewhere != 0;
}

/* One batch from each port that has frames, so no port starves. Where all are neighbours, and while
 * frames are held back, for `HELD_NS` at most, the kernel is not asked. Returns 0, or an errno of
 * epoll's. */
static int iteration(struct p4r_loop *loop, uint64_t deadline_ns)
{
    struct epoll_event events[EVENTS];
    const uint64_t retry_ns = wake_resting(loop);
    if (retry_ns < deadline_ns)
        deadline_ns = retry_ns;
    if (loop->release != NULL && loop->next_release_ns < deadline_ns)
        deadline_ns = loop->next_release_ns;
    if (loop->reasons != 0)
        deadline_ns = 0; /* what an end of a port says to Python */
    const int holds = loop->dirty != NULL;
    if (holds && loop->port_count == loop->neighbour_count && serve_neighbours(loop)) {
        finish_iteration(loop, 1);
        return 0;
    }
    if (!holds)
        p4r_poll_backoff_sleep(&loop->backoff, deadline_ns, loop->wake_fd);
    const uint64_t began_ns = p4r_now_ns();
    const int count = epoll_wait(loop->epoll_fd, events, EVENTS, holds ? 0 : wait_ms(deadline_ns));
    const int error = count < 0 && errno != EINTR ? errno : 0;
    const uint64_t looked_ns = p4r_now_ns();
    p4r_poll_backoff_polled(&loop->backoff, began_ns, looked_ns);
    if (!holds)
        loop->held_since_ns = looked_ns;
    loop->taken = loop->taken_elsewhere = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t which = (uint32_t)events[i].data.u64;
        uint64_t wakes;
        switch (events[i].data.u64 >> 32) {
        case OF_WAKE_FD:
            if (read(loop->wake_fd, &wakes, sizeof wakes) == sizeof wakes)
                loop->reasons |= P4R_LOOP_WOKEN;
            break;
        case OF_PORT:
            serve(loop, loop->ports[which]);
            break;
        default:
            loop->ready[loop->ready_count++] = events[i];
            loop->reasons |= P4R_LOOP_DESCRIPTOR;
        }
    }
    finish_iteration(loop, count > 0);
    return error;
}

static uint32_t take_reasons(struct p4r_loop *loop)
{
    uint32_t reasons = loop->reasons;
    loop->reasons = 0;
    if (loop->program != NULL && loop->events(loop->program) != 0)
        reasons |= P4R_LOOP_PROGRAM;
    return reasons;
}

uint32_t p4r_loop_run(struct p4r_loop *loop, uint64_t deadline_ns, int *error)
{
    uint32_t reasons = take_reasons(loop); /* left by what Python called in between */
    loop->ready_count = 0;
    *error = 0;
    while (reasons == 0) {
        *error = iteration(loop, deadline_ns);
        reasons = take_reasons(loop);
        if (*error != 0)
            reasons |= P4R_LOOP_ERROR;
        if (p4r_now_ns() >= deadline_ns)
            reasons |= P4R_LOOP_DEADLINE;
    }
    flush(loop); /* nothing is held for the time that Python takes */
    return reasons;
}

/* -- What Python asks for ------------------------------------------------------------------------*/

void p4r_loop_drain(struct p4r_loop *loop, struct p4r_port *port)
{
    while (p4r_port_has_hung_up(port))
        serve(loop, port);
    flush(loop);
}

uint32_t p4r_loop_flush(struct p4r_loop *loop)
{
    flush(loop);
    return take_reasons(loop);
}

void p4r_loop_inject(struct p4r_loop *loop, uint32_t port, const uint8_t *bytes, uint32_t length)
{
    const struct p4r_frame frame = {.bytes = bytes, .length = length};
    process(loop, port, &frame, 1);
}

void p4r_loop_emit(struct p4r_loop *loop, uint32_t port, const uint8_t *frame, uint32_t length)
{
    emit(loop, port, frame, length);
}

int p4r_loop_has_room(struct p4r_loop *loop, uint32_t port) { return has_room(loop, port); }

void p4r_loop_flush_captures(struct p4r_loop *loop)
{
    for (int i = 0; i < PORTS; i++) {
        const struct p4r_port *port = loop->ports[i];
        if (port != NULL && port->capture != NULL)
            p4r_capture_flush(port->capture);
        if (port != NULL && port->capture_out != NULL)
            p4r_capture_flush(port->capture_out);
    }
}

void p4r_loop_set_program(struct p4r_loop *loop, p4r_process process, p4r_events events,
                          p4r_release release, struct p4r_program *program)
{
    loop->process = process;
    loop->events = events;
    loop->release = release;
    loop->next_release_ns = UINT64_MAX;
    loop->program = program;
    loop->callback = NULL;
}

void p4r_loop_set_callback(struct p4r_loop *loop, p4r_frames_callback callback)
{
    loop->process = NULL;
    loop->release = NULL;
    loop->program = NULL;
    loop->callback = callback;
}

int p4r_loop_next_ready(struct p4r_loop *loop, int *fd, uint32_t *events)
{
    if (loop->ready_count == 0)
        return 0;
    const struct epoll_event *ready = &loop->ready[--loop->ready_count];
    *fd = (int)(uint32_t)ready->data.u64;
    *events = ready->events;
    return 1;
}

int64_t p4r_loop_next_packet_in(struct p4r_loop *loop, const uint8_t **bytes)
{
    return p4r_packet_in_next(&loop->packet_ins, bytes);
}

int p4r_port_capture_out(struct p4r_port *port, int fd)
{
    port->capture_out = p4r_capture_new(fd, P4R_MAX_FRAME_BYTES);
    return port->capture_out != NULL ? 0 : -1;
}

int p4r_port_take_event(struct p4r_port *port, int *error)
{
    const enum p4r_port_event event = port->event;
    *error = port->event_errno;
    port->event = P4R_EVENT_NONE;
    return (int)event;
}

struct p4r_port_stats *p4r_port_stats(struct p4r_port *port) { return &port->stats; }

struct p4r_loop_stats *p4r_loop_stats(struct p4r_loop *loop) { return &loop->stats; }

/* -- What ports ask for --------------------------------------------------------------------------*/

static int watch(struct p4r_loop *loop, int operation, int fd, uint32_t events, uint32_t of,
                 uint32_t which)
{
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)of << 32 | which};
    return epoll_ctl(loop->epoll_fd, operation, fd, &event) == 0 ? 0 : -errno;
}

int p4r_loop_watch(struct p4r_loop *loop, int operation, int fd, uint32_t events)
{
    return watch(loop, operation, fd, events, OF_PYTHON, (uint32_t)fd);
}

static void note_port(struct p4r_loop *loop, struct p4r_port *port, int comes)
{
    uint32_t at = 0;
    loop->port_count += comes ? 1 : -1;
    if (!port->kind->is_neighbour)
        return;
    loop->are_told = 0;
    if (comes) {
        loop->neighbours[loop->neighbour_count++] = port;
        return;
    }
    while (loop->neighbours[at] != port)
        at++;
    loop->neighbours[at] = loop->neighbours[--loop->neighbour_count];
}

int p4r_loop_watch_port(struct p4r_loop *loop, struct p4r_port *port, int operation,
                        uint32_t events)
{
    const int error = watch(loop, operation, port->fd, events, OF_PORT, port->number);
    const int comes = operation == EPOLL_CTL_ADD && error == 0;
    if (comes || operation == EPOLL_CTL_DEL)
        note_port(loop, port, comes);
    return error;
}

void p4r_loop_mark_dirty(struct p4r_loop *loop, struct p4r_port *port)
{
    port->is_dirty = 1;
    port->next_dirty = loop->dirty;
    loop->dirty = port;
}

void p4r_loop_mark_resting(struct p4r_loop *loop, struct p4r_port *port)
{
    port->is_resting = 1;
    port->next_resting = loop->resting;
    loop->resting = port;
}

void p4r_loop_has_event(struct p4r_loop *loop) { loop->reasons |= P4R_LOOP_EVENTS; }

/* -- Its life ------------------------------------------------------------------------------------*/

struct p4r_loop *p4r_loop_new(int wake_fd, uint32_t cpu_port, uint32_t cpus, int *error)
{
    struct p4r_loop *loop = aligned_alloc(_Alignof(struct p4r_loop), sizeof *loop);
    *error = ENOMEM;
    if (loop == NULL)
        return NULL;
    memset(loop, 0, sizeof *loop);
    loop->wake_fd = wake_fd;
    loop->cpu_port = cpu_port;
    loop->cpus = cpus;
    p4r_poll_backoff_init(&loop->backoff);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0)
        *error = errno;
    else
        *error = -watch(loop, EPOLL_CTL_ADD, wake_fd, EPOLLIN, OF_WAKE_FD, 0);
    if (*error == 0)
        return loop;
    p4r_loop_free(loop);
    return NULL;
}

void p4r_loop_free(struct p4r_loop *loop)
{
    for (int i = 0; i < PORTS; i++)
        if (loop->ports[i] != NULL)
            p4r_port_free(loop->ports[i]);
    p4r_packet_ins_free(&loop->packet_ins);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    free(loop);
}

static struct p4r_port *add(struct p4r_loop *loop, struct p4r_port *port, int capture_fd)
{
    struct p4r_capture *capture =
        capture_fd >= 0 ? p4r_capture_new(capture_fd, P4R_MAX_FRAME_BYTES) : NULL;
    if (port == NULL || (capture_fd >= 0 && capture == NULL)) {
        p4r_capture_free(capture);
        if (port != NULL)
            p4r_port_free(port);
        return NULL;
    }
    port->capture = capture;
    loop->ports[port->number] = port;
    return port;
}

struct p4r_port *p4r_loop_add_port(struct p4r_loop *loop, uint32_t type, uint32_t number,
                                   uint32_t max_bytes, int capture_fd)
{
    const uint32_t most = max_bytes ? max_bytes : P4R_MAX_FRAME_BYTES;
    return add(loop, p4r_port_new(loop, type, number, most), capture_fd);
}
