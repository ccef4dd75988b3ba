/* SPDX-License-Identifier: Apache-2.0 */
/* What a port asks of its loop. */
#ifndef P4R_LOOP_IMPL_H
#define P4R_LOOP_IMPL_H

#include <stdint.h>

struct p4r_loop;
struct p4r_port;

/* 0 or minus an errno. */
int p4r_loop_watch_port(struct p4r_loop *loop, struct p4r_port *port, int operation,
                        uint32_t events);
/* The port is flushed at the end of the iteration. */
void p4r_loop_mark_dirty(struct p4r_loop *loop, struct p4r_port *port);
/* Its frames leave at a time, of p4r_link_retry_ns, which no event reports. */
void p4r_loop_mark_resting(struct p4r_loop *loop, struct p4r_port *port);
/* Python must ask the ports for their events. */
void p4r_loop_has_event(struct p4r_loop *loop);

#endif
