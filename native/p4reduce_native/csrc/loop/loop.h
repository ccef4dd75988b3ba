/* SPDX-License-Identifier: Apache-2.0 */
/* The data plane's loop: frames come in at ports, go through the program, and leave.
 *
 * All of it is called in one thread, the data plane's. p4r_loop_run holds no lock of Python's; it
 * comes back when there is something that only Python does, and Python calls it again.
 */
#ifndef P4R_LOOP_LOOP_H
#define P4R_LOOP_LOOP_H

#include <stdint.h>

#include "loop/port.h"
#include "pipeline_abi.h"

struct p4r_loop;

/* Why p4r_loop_run came back; a bit mask. */
enum p4r_loop_reason {
    P4R_LOOP_WOKEN = 1,      /* Python wrote to the eventfd */
    P4R_LOOP_DEADLINE = 2,   /* nothing else, and the deadline has passed */
    P4R_LOOP_DESCRIPTOR = 4, /* a descriptor that Python watches is ready */
    P4R_LOOP_EVENTS = 8,     /* a port has an event */
    P4R_LOOP_PACKET_IN = 16, /* frames have left by the CPU port */
    P4R_LOOP_PROGRAM = 32,   /* digests or other events of the program wait */
    P4R_LOOP_ERROR = 64,     /* epoll failed */
    P4R_LOOP_ROOM = 128,     /* a port has room again; only while the program runs in Python */
};

/* Frames that come in while the program runs in Python: one call per batch. */
typedef void (*p4r_frames_callback)(uint32_t port, const struct p4r_frame *frames, int count);

/* `wake_fd`: an eventfd. `cpu_port`: P4R_NO_PORT for none. `cpus`: how many this process may
 * use. NULL: *error is an errno. */
#define P4R_NO_PORT 0xffffffffu
struct p4r_loop *p4r_loop_new(int wake_fd, uint32_t cpu_port, uint32_t cpus, int *error);
/* Frees its ports as well. */
void p4r_loop_free(struct p4r_loop *loop);

/* A port that belongs to the loop; `type` is an `enum p4r_port_type`. `max_bytes`: longer frames
 * are not sent, 0: the switch's own limit. `capture_fd`: a file for its capture, which the loop
 * owns from now on, or -1. NULL: no memory, and the file is the caller's. */
struct p4r_port *p4r_loop_add_port(struct p4r_loop *loop, uint32_t type, uint32_t number,
                                   uint32_t max_bytes, int capture_fd);

typedef void (*p4r_process)(struct p4r_program *program, uint32_t ingress_port,
                            const uint8_t *frame, uint32_t length, uint64_t now_ns, p4r_emit emit,
                            void *context);
typedef uint32_t (*p4r_events)(const struct p4r_program *program);
typedef uint64_t (*p4r_release)(struct p4r_program *program, uint64_t now_ns, p4r_emit emit,
                                void *context, p4r_ready ready);
/* Where frames go from now on. `release`: of a program with egress queues, else NULL. */
void p4r_loop_set_program(struct p4r_loop *loop, p4r_process process, p4r_events events,
                          p4r_release release, struct p4r_program *program);
void p4r_loop_set_callback(struct p4r_loop *loop, p4r_frames_callback callback);

/* Serves ports until there is something for Python, or until `deadline_ns` of CLOCK_MONOTONIC.
 * Returns reasons; with P4R_LOOP_ERROR, *error is the errno. */
uint32_t p4r_loop_run(struct p4r_loop *loop, uint64_t deadline_ns, int *error);

/* If a port's peer has hung up, takes in what it has sent, up to the end. */
void p4r_loop_drain(struct p4r_loop *loop, struct p4r_port *port);

/* Runs one frame as if it had come in at `port`. */
void p4r_loop_inject(struct p4r_loop *loop, uint32_t port, const uint8_t *frame, uint32_t length);
/* Sends one frame that the program, in Python, gives out. */
void p4r_loop_emit(struct p4r_loop *loop, uint32_t port, const uint8_t *frame, uint32_t length);
/* Whether nothing waits for room at a port; also for one that does not exist. */
int p4r_loop_has_room(struct p4r_loop *loop, uint32_t port);
/* Sends what inject and emit have left behind; run does so by itself. Returns reasons as run
 * does. */
uint32_t p4r_loop_flush(struct p4r_loop *loop);
/* Writes captures out. */
void p4r_loop_flush_captures(struct p4r_loop *loop);

/* Descriptors that Python serves. `operation`: EPOLL_CTL_ADD, MOD or DEL. 0 or minus an errno. */
int p4r_loop_watch(struct p4r_loop *loop, int operation, int fd, uint32_t events);
/* The next one that is ready: 1, or 0 when there is none. */
int p4r_loop_next_ready(struct p4r_loop *loop, int *fd, uint32_t *events);
/* The next frame for the controller, valid until the loop runs; its length, or -1. */
int64_t p4r_loop_next_packet_in(struct p4r_loop *loop, const uint8_t **bytes);
/* Frames that leave are written to a file of their own, which the port owns from now on. 0, or -1:
 * no memory, and the file is the caller's. */
int p4r_port_capture_out(struct p4r_port *port, int fd);
/* A port's event, once: an enum p4r_port_event. */
int p4r_port_take_event(struct p4r_port *port, int *error);

struct p4r_port_stats *p4r_port_stats(struct p4r_port *port);
struct p4r_loop_stats *p4r_loop_stats(struct p4r_loop *loop);

#endif
