/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "worker/link_lock.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static int change(uint32_t *state, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

int p4r_link_lock_take(struct p4r_link_lock *lock)
{
    while (!change(&lock->state, P4R_FREE, P4R_TAKEN)) {
        /* Who has it looks at this in every turn, and is woken by what has woken us. */
        (void)change(&lock->state, P4R_TAKEN, P4R_AWAITED);
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, P4R_AWAITED, NULL, NULL, 0);
    }
    int is_unfinished = lock->unfinished != NULL;
    lock->unfinished = NULL;
    lock->turns++;
    return is_unfinished;
}

void p4r_link_lock_release(struct p4r_link_lock *lock)
{
    if (__atomic_exchange_n(&lock->state, P4R_FREE, __ATOMIC_ACQ_REL) == P4R_AWAITED)
        syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int p4r_link_lock_try(struct p4r_link_lock *lock, uint32_t turns, const void *turn)
{
    if (!change(&lock->state, P4R_FREE, P4R_TAKEN))
        return 0;
    if (lock->turns != turns || (lock->unfinished != NULL && lock->unfinished != turn)) {
        p4r_link_lock_release(lock);
        return 0;
    }
    __atomic_add_fetch(&lock->calls, 1, __ATOMIC_RELAXED);
    return 1;
}

int p4r_link_lock_is_awaited(const struct p4r_link_lock *lock)
{
    return __atomic_load_n(&lock->state, __ATOMIC_RELAXED) == P4R_AWAITED;
}
