/* SPDX-License-Identifier: Apache-2.0 */
/* Whose turn it is on a link: the progress thread's, or a caller's that runs its own collective.
 *
 * The thread has it from the beginning, and always while it runs any Python. When nothing is under
 * way it rests: then a caller may borrow the link for one call of p4r_turn_lend. So a caller has it
 * only within C, where no exception and no signal handler can leave it half way. */
#ifndef P4R_WORKER_LINK_OWNER_H
#define P4R_WORKER_LINK_OWNER_H

#include <stdint.h>

enum p4r_holder {
    P4R_THREAD = 0,
    P4R_NOBODY = 1,
    P4R_CALLER = 2,
    P4R_CALLER_AWAITED = 3, /* and the thread waits for it */
    P4R_LEFT = 4,           /* to the thread, which has to go on with what a caller has begun */
};

struct p4r_link_owner {
    uint32_t holder; /* enum p4r_holder */
    uint32_t taken;  /* how often the thread has taken it back */
    uint32_t loans;  /* to callers */
};

/* For the thread, when nothing is under way: let callers have the link until somebody writes to
 * `wake_fd`, the link's peer hangs up, or nobody has borrowed it for `quiet_ms`. Returns whether it
 * is the last. */
int p4r_link_owner_rest(struct p4r_link_owner *owner, int link_fd, int wake_fd, int quiet_ms);

/* For a caller, which never waits for it. Returns whether it has it now; `taken` as it was when the
 * caller looked at what the thread has to do. */
int p4r_link_owner_borrow(struct p4r_link_owner *owner, uint32_t taken);
void p4r_link_owner_give_back(struct p4r_link_owner *owner, int to_thread);

/* Whether the thread waits for the one who has borrowed it. */
int p4r_link_owner_is_awaited(const struct p4r_link_owner *owner);

#endif
