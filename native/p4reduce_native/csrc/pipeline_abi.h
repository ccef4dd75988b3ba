/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a P4 program that is compiled to machine code.
 *
 * A compiled program is one shared object: the generated text and the pieces of csrc/p4 that it
 * needs. It keeps all of its state in a `struct p4r_program`; two of them do not share anything.
 * None of these functions may run at the same time as another one on the same state.
 */
#ifndef P4R_PIPELINE_ABI_H
#define P4R_PIPELINE_ABI_H

#include <stdint.h>

#define P4R_PIPELINE_ABI 1
/* The longest frame that `p4r_program_process` takes, in bytes. */
#define P4R_MAX_FRAME 65535

#ifdef __cplusplus
extern "C" {
#endif

struct p4r_program; /* the state of one loaded program */

/* Called once for each copy that leaves; the bytes are valid only during the call. */
typedef void (*p4r_emit)(void *context, uint32_t port, const uint8_t *frame, uint32_t length);

/* Whether a port takes a frame now; one that does not exist does. */
typedef int (*p4r_ready)(void *context, uint32_t port);

/* P4R_PIPELINE_ABI as the program was compiled with it. */
uint32_t p4r_program_abi(void);

/* A program with empty tables; `drop_port` is what `mark_to_drop` sends to. NULL: no memory. */
struct p4r_program *p4r_program_new(uint32_t drop_port);
void p4r_program_free(struct p4r_program *program);

/* Run one frame: any bytes, 0 to P4R_MAX_FRAME of them (a longer one is dropped). `now_ns` is
 * CLOCK_MONOTONIC. Never fails, whatever the bytes are. */
void p4r_program_process(struct p4r_program *program, uint32_t ingress_port, const uint8_t *frame,
                         uint32_t length, uint64_t now_ns, p4r_emit emit, void *context);

/* Only in programs with egress queues: process has only queued frames, and this runs egress for
 * those that are due, of ports that are ready (NULL: all are). Returns when the next is due, on the
 * same clock, or UINT64_MAX if none waits but for a port. */
uint64_t p4r_program_release(struct p4r_program *program, uint64_t now_ns, p4r_emit emit,
                             void *context, p4r_ready ready);

/* How many things wait for Python: samples of digests, log messages, failed assertions. The loop
 * returns to Python when it is not 0. */
uint32_t p4r_program_events(const struct p4r_program *program);

#ifdef __cplusplus
}
#endif

#endif
