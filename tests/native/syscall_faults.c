/* SPDX-License-Identifier: Apache-2.0 */
/* A library to preload: it makes system calls of the loop fail, and gives events in any order.
 *
 * It also watches. A socket whose send has failed for a reason that no event ends (no route, no
 * memory in a device) must not be waited for by EPOLLOUT, which comes back at once for ever; and it
 * must be tried again after a pause that doubles from 1 ms. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum { SOCKETS = 4096, LOOKS = 100, NS_PER_MS = 1000000, LEAST_DOUBLINGS = 6 };

struct watched {
    uint32_t events;   /* that epoll waits for */
    uint32_t failures; /* in a row, of sends that no event announces again */
    uint32_t looks;    /* in a row, for EPOLLOUT meanwhile */
    uint64_t failed_ns;
};

static struct watched sockets[SOCKETS];
static _Atomic uint64_t state = 1;
static _Atomic int send_code, send_calls, send_domain; /* the next calls fail so; -1: all */
static _Atomic int wait_code, wait_looks, add_code;
static _Atomic int failures, spins, hurries, shuffles;

static uint32_t draw(uint32_t below)
{
    uint64_t next = state * 6364136223846793005u + 1442695040888963407u;
    state = next;
    return (uint32_t)(next >> 33) % below;
}

/* The compiler's own cast from an object's pointer to a function's is not allowed. */
static void find(void *function, const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    memcpy(function, &found, sizeof found);
}

void faults_begin(uint64_t seed) { state = seed | 1; }
/* The next `calls` to send at sockets of a domain fail with `code`; -1: all, until this is called. */
void faults_send(int domain, int code, int calls)
{
    send_domain = domain;
    send_code = code;
    send_calls = calls;
}
/* A look fails with `code`, after so many others. */
void faults_wait(int code, int looks)
{
    wait_looks = looks;
    wait_code = code;
}
/* The next descriptor that is to be watched is refused with `code`. */
void faults_add(int code) { add_code = code; }
/* How many sends have failed that no event announces again. */
int faults_failures(void) { return failures; }
/* How often a socket was waited for by EPOLLOUT all the same, */
int faults_spins(void) { return spins; }
/* or was tried again too soon. */
int faults_hurries(void) { return hurries; }
/* How often events were given in another order. */
int faults_shuffles(void) { return shuffles; }

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int comes_without_event(int code)
{
    return code == ENOBUFS || code == ENOMEM || code == EHOSTUNREACH || code == ENETUNREACH ||
           code == ENETDOWN || code == EACCES || code == EPERM;
}

static void note_failure(struct watched *socket)
{
    const uint64_t now = now_ns();
    const uint32_t doublings =
        socket->failures < LEAST_DOUBLINGS ? socket->failures : LEAST_DOUBLINGS;
    if (socket->failures != 0 && now - socket->failed_ns < (uint64_t)NS_PER_MS << (doublings - 1))
        hurries++;
    socket->failures++;
    socket->failed_ns = now;
    failures++;
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    static int (*real)(int, struct mmsghdr *, unsigned, int);
    int domain = 0;
    socklen_t size = sizeof domain;
    if (real == NULL)
        find(&real, "sendmmsg");
    struct watched *socket = (size_t)fd < SOCKETS ? &sockets[fd] : &sockets[0];
    (void)getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    if (send_calls != 0 && domain == send_domain) {
        if (send_calls > 0)
            send_calls--;
        if (comes_without_event(send_code))
            note_failure(socket);
        errno = send_code;
        return -1;
    }
    const int sent = real(fd, messages, count, flags);
    const int code = errno;
    if (sent > 0)
        socket->failures = socket->looks = 0;
    else if (comes_without_event(code))
        note_failure(socket);
    errno = code;
    return sent;
}

int epoll_ctl(int epoll_fd, int operation, int fd, struct epoll_event *event)
{
    static int (*real)(int, int, int, struct epoll_event *);
    if (real == NULL)
        find(&real, "epoll_ctl");
    if (operation == EPOLL_CTL_ADD && add_code != 0) {
        errno = add_code;
        add_code = 0;
        return -1;
    }
    if ((size_t)fd < SOCKETS) {
        if (operation != EPOLL_CTL_MOD)
            sockets[fd] = (struct watched){0};
        sockets[fd].events = operation == EPOLL_CTL_DEL ? 0 : event->events;
    }
    return real(epoll_fd, operation, fd, event);
}

int epoll_wait(int epoll_fd, struct epoll_event *events, int most, int timeout_ms)
{
    static int (*real)(int, struct epoll_event *, int, int);
    if (real == NULL)
        find(&real, "epoll_wait");
    for (int fd = 0; fd < SOCKETS; fd++) {
        struct watched *socket = &sockets[fd];
        if (socket->failures != 0 && (socket->events & EPOLLOUT) != 0 && ++socket->looks == LOOKS)
            spins++;
    }
    if (wait_code != 0 && wait_looks-- == 0) {
        errno = wait_code;
        wait_code = 0;
        return -1;
    }
    const int count = real(epoll_fd, events, most, timeout_ms);
    const int code = errno;
    for (int i = count - 1; i > 0; i--) {
        const uint32_t other = draw((uint32_t)i + 1);
        const struct epoll_event event = events[i];
        events[i] = events[other];
        events[other] = event;
        shuffles++;
    }
    errno = code;
    return count;
}
