/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "worker/link_owner.h"

#include <linux/futex.h>
#include <poll.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static int change(uint32_t *holder, uint32_t from, uint32_t to)
{
    return __atomic_compare_exchange_n(holder, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void take(struct p4r_link_owner *owner)
{
    while (!change(&owner->holder, P4R_NOBODY, P4R_THREAD) &&
           !change(&owner->holder, P4R_LEFT, P4R_THREAD)) {
        /* Who has borrowed it looks at this in every turn, and is woken by what has woken us. */
        (void)change(&owner->holder, P4R_CALLER, P4R_CALLER_AWAITED);
        syscall(SYS_futex, &owner->holder, FUTEX_WAIT_PRIVATE, P4R_CALLER_AWAITED, NULL, NULL, 0);
    }
    __atomic_add_fetch(&owner->taken, 1, __ATOMIC_RELEASE);
}

int p4r_link_owner_rest(struct p4r_link_owner *owner, int link_fd, int wake_fd, int quiet_ms)
{
    /* Frames are no reason to wake: they are for who has borrowed the link. */
    struct pollfd waits[2] = {
        {.fd = link_fd, .events = POLLRDHUP},
        {.fd = wake_fd, .events = POLLIN},
    };
    uint32_t loans = __atomic_load_n(&owner->loans, __ATOMIC_RELAXED), before;
    int events;
    uint64_t wakes;

    __atomic_store_n(&owner->holder, P4R_NOBODY, __ATOMIC_RELEASE);
    do {
        before = loans;
        events = poll(waits, 2, quiet_ms);
        loans = __atomic_load_n(&owner->loans, __ATOMIC_RELAXED);
    } while (events == 0 && loans != before);
    take(owner);
    /* What is asked for is looked at after this. */
    if (waits[1].revents != 0 && read(wake_fd, &wakes, sizeof wakes) < 0)
        return 0; /* somebody else has read it */
    return events == 0;
}

int p4r_link_owner_borrow(struct p4r_link_owner *owner, uint32_t taken)
{
    if (!change(&owner->holder, P4R_NOBODY, P4R_CALLER))
        return 0;
    if (__atomic_load_n(&owner->taken, __ATOMIC_ACQUIRE) != taken) {
        p4r_link_owner_give_back(owner, 0);
        return 0;
    }
    __atomic_add_fetch(&owner->loans, 1, __ATOMIC_RELAXED);
    return 1;
}

void p4r_link_owner_give_back(struct p4r_link_owner *owner, int to_thread)
{
    uint32_t after = to_thread ? P4R_LEFT : P4R_NOBODY;
    uint32_t before = __atomic_exchange_n(&owner->holder, after, __ATOMIC_ACQ_REL);

    if (before == P4R_CALLER_AWAITED)
        syscall(SYS_futex, &owner->holder, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int p4r_link_owner_is_awaited(const struct p4r_link_owner *owner)
{
    return __atomic_load_n(&owner->holder, __ATOMIC_RELAXED) == P4R_CALLER_AWAITED;
}
