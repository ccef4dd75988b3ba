/* SPDX-License-Identifier: Apache-2.0 */
/* On which CPU a rank wakes up, where ranks and switch are more than the CPUs of their machine.
 *
 * A rank that is woken on the switch's CPU mostly takes that CPU at once, and the kernel leaves it
 * there. So the switch says on which CPU it runs, and the rank is bound to other CPUs or to this one
 * before it sleeps. It stays bound until it leaves the loop in C, which starts nothing that could
 * inherit it: to bind and to unbind it for each sleep takes 5 % of its time.
 */
#ifndef P4R_PLACEMENT_H
#define P4R_PLACEMENT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdint.h>

#include "link.h"

/* Whether a switch says where the peers on its machine wake up, and how many of them wake up on its own
 * CPU. */
int p4r_is_placed(uint32_t peers, uint32_t cpus);
uint32_t p4r_placed_together(uint32_t peers, uint32_t cpus);

/* A wish and the CPU that it is about, as one word in shared memory; 0 is `P4R_ANYWHERE`. */
uint32_t p4r_placement_word(uint32_t placement);

struct p4r_bound {
    cpu_set_t before, since;
    uint32_t word; /* that has been followed */
    int is_bound;
};

/* Bind this thread as a peer's word says, unless it is already. A word without sense, or with a CPU
 * that leaves no choice, binds nothing. Returns whether it is bound to other CPUs than the word's. */
int p4r_placement_bind(struct p4r_bound *bound, uint32_t word);
/* Unbind it, unless somebody else has bound it since. */
void p4r_placement_unbind(struct p4r_bound *bound);

#endif
