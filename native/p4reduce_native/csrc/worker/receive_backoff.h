/* SPDX-License-Identifier: Apache-2.0 */
/* When the loop sleeps for a moment although frames may have come.
 *
 * By a network frames come one by one. To wake for each, and to answer it, costs several times what
 * is done with it, and makes the switch do the same. So while many are under way the loop sleeps as
 * long as it takes a small part of them to come, and then takes these in one batch and answers them in
 * one. The others keep the link busy meanwhile. Where few are under way nobody sleeps: they are all
 * that there is to wait for.
 */
#ifndef P4R_WORKER_RECEIVE_BACKOFF_H
#define P4R_WORKER_RECEIVE_BACKOFF_H

#include <stdint.h>

struct p4r_receive_backoff {
    uint32_t allowed;   /* by Python: whether frames come by a network */
    uint32_t counted;   /* frames since `counted_at` */
    double counted_at;  /* in seconds, as all here */
    double apart;       /* two frames in a row, as last measured; 0: not yet */
    double received_at; /* the latest ones */
};

/* Frames were received. */
void p4r_receive_backoff_received(struct p4r_receive_backoff *backoff, uint32_t count, double now);

/* When to wake up, with this many frames in flight, for the next look; it may be in the past. */
double p4r_receive_backoff_until(const struct p4r_receive_backoff *backoff, uint32_t in_flight);

#endif
