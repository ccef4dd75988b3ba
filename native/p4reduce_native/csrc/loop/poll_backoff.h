/* SPDX-License-Identifier: Apache-2.0 */
/* How often the loop looks at ports that are interfaces, while frames come in a steady stream.
 *
 * There frames come one by one, and to wake for each of them costs more than all that is done with
 * it. So while many come in a row, the loop looks only once in a while and takes them in batches.
 * It does not where a few go to and fro: each of those is waited for, and its sender would send
 * nothing else meanwhile.
 */
#ifndef P4R_LOOP_POLL_BACKOFF_H
#define P4R_LOOP_POLL_BACKOFF_H

#include <stdint.h>

struct p4r_poll_backoff {
    uint64_t looked_ns;  /* when frames were last looked for */
    uint64_t apart_ns;   /* from one frame to the next, as measured last */
    uint64_t counted_ns; /* when what is measured now began */
    uint32_t counted;    /* frames since */
    uint32_t streak;     /* frames that have come in a row */
    uint32_t threshold;  /* how many there have to be before the loop sleeps */
    int has_slept;       /* before this look */
};

void p4r_poll_backoff_init(struct p4r_poll_backoff *);

/* Before a look: sleeps if that is worth it; not beyond `deadline_ns`, nor when there is something to
 * read from `wake_fd`. */
void p4r_poll_backoff_sleep(struct p4r_poll_backoff *, uint64_t deadline_ns, int wake_fd);

/* After a look: when its wait for frames began and ended. */
void p4r_poll_backoff_polled(struct p4r_poll_backoff *, uint64_t began_ns, uint64_t ended_ns);

/* How many frames it has brought by interfaces, and by other ports. */
void p4r_poll_backoff_received(struct p4r_poll_backoff *, uint32_t by_interfaces,
                               uint32_t by_others);

#endif
