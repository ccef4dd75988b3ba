/* SPDX-License-Identifier: Apache-2.0 */
/* Who drives the engines of a link: the progress thread, or a caller that runs its own collective.
 *
 * The lock is held through each call of iteration.h, and by the progress thread while it runs any
 * Python as well. The thread lets go of it when nothing is under way; then a caller may drive. So a
 * caller has it only within C, where no exception of a signal handler can leave it taken. */
#ifndef P4R_WORKER_LINK_LOCK_H
#define P4R_WORKER_LINK_LOCK_H

#include <stdint.h>

enum p4r_link_lock_state {
    P4R_FREE = 0,
    P4R_TAKEN = 1,
    P4R_AWAITED = 2, /* taken, and the progress thread waits for it */
};

struct p4r_link_lock {
    uint32_t state;         /* enum p4r_link_lock_state */
    uint32_t iterations;    /* how often the progress thread has taken it */
    uint32_t calls;         /* how often callers have */
    int32_t fd;             /* of the link, to see its peer hang up */
    const void *unfinished; /* the p4r_iteration that a caller has left with something under way */
};

/* For the progress thread: let callers drive until somebody writes to `wake_fd`, the link's peer hangs
 * up, or none has driven for `quiet_ms`. Returns whether there is something else to do than to
 * listen. */
int p4r_link_lock_lend(struct p4r_link_lock *lock, int wake_fd, int quiet_ms);
void p4r_link_lock_release(struct p4r_link_lock *lock);

/* For a caller, which never waits for it. Returns whether it has it now: only if the progress thread
 * has not had it since `iterations` were counted, and nothing is unfinished but what `iteration`
 * has. */
int p4r_link_lock_try(struct p4r_link_lock *lock, uint32_t iterations, const void *iteration);

/* Whether the progress thread waits for it. */
int p4r_link_lock_is_awaited(const struct p4r_link_lock *lock);

#endif
