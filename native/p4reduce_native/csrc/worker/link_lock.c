/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "worker/link_lock.h"

#include <assert.h>
#include <poll.h>
#include <stddef.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void wait_for(uint32_t *state)
{
    syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, P4R_AWAITED, NULL, NULL, 0);
}

static void tell(uint32_t *state)
{
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else /* Only links have a lock, and only Linux has those: to compile, never called. */
#define POLLRDHUP 0

static void wait_for(uint32_t *state) { (void)state; }
static void tell(uint32_t *state) { (void)state; }
#endif

static int change(uint32_t *state, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Returns whether something is unfinished. */
static int take(struct p4r_link_lock *lock)
{
    while (!change(&lock->state, P4R_FREE, P4R_TAKEN)) {
        /* The holder reads this in every iteration, and whatever woke us wakes the holder too. */
        (void)change(&lock->state, P4R_TAKEN, P4R_AWAITED);
        wait_for(&lock->state);
    }
    int is_unfinished = lock->unfinished != NULL;
    lock->unfinished = NULL;
    lock->iterations++;
    return is_unfinished;
}

void p4r_link_lock_release(struct p4r_link_lock *lock)
{
    assert(__atomic_load_n(&lock->state, __ATOMIC_RELAXED) != P4R_FREE);
    if (__atomic_exchange_n(&lock->state, P4R_FREE, __ATOMIC_ACQ_REL) == P4R_AWAITED)
        tell(&lock->state);
}

int p4r_link_lock_lend(struct p4r_link_lock *lock, int wake_fd, int quiet_ms)
{
    /* Frames are no reason to wake: they are for the caller that drives. */
    struct pollfd waits[2] = {
        {.fd = lock->fd, .events = POLLRDHUP},
        {.fd = wake_fd, .events = POLLIN},
    };
    uint32_t calls = __atomic_load_n(&lock->calls, __ATOMIC_RELAXED), before;
    int events;

    p4r_link_lock_release(lock);
    do {
        before = calls;
        events = poll(waits, 2, quiet_ms);
        calls = __atomic_load_n(&lock->calls, __ATOMIC_RELAXED);
    } while (events == 0 && calls != before);
    /* Requests are read after this. */
    return take(lock) || waits[1].revents != 0;
}

int p4r_link_lock_try(struct p4r_link_lock *lock, uint32_t iterations, const void *iteration)
{
    if (!change(&lock->state, P4R_FREE, P4R_TAKEN))
        return 0;
    if (lock->iterations != iterations ||
        (lock->unfinished != NULL && lock->unfinished != iteration)) {
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
