/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

enum {
    TRIES = 3,
    PROBE_TIMEOUT_MS = 300,
    CONFIRM = 7, /* the time between two trials, as a multiple of probe_timeout_ns */
    WIDEN = 32,  /* the time before a larger size is tried again, likewise */
    NS_PER_MS = 1000000,
    IPV4_AND_UDP = 28,
    IPV6_AND_UDP = 48,
};

/* As the handshake tries them: loopback; jumbo, plain and tunnelled Ethernet; the least. */
static const uint32_t sizes[] = {65507, 8972, 1472, 1452, P4R_PATH_LEAST};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

void p4r_path_init(struct p4r_path *path, uint32_t agreed, uint32_t probe_timeout_ms)
{
    memset(path, 0, sizeof *path);
    path->bytes = path->agreed = agreed;
    path->probe_timeout_ns =
        (uint64_t)(probe_timeout_ms != 0 ? probe_timeout_ms : PROBE_TIMEOUT_MS) * NS_PER_MS;
}

static uint32_t least(const struct p4r_path *path)
{
    return path->agreed < P4R_PATH_LEAST ? path->agreed : P4R_PATH_LEAST;
}

/* What the kernel has heard of this path; 0: nothing of use. */
static uint32_t hint(int fd)
{
    int mtu = 0;
    socklen_t size = sizeof mtu;
    if (getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size) == 0 && mtu > IPV4_AND_UDP)
        return (uint32_t)mtu - IPV4_AND_UDP;
    size = sizeof mtu;
    if (getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &size) == 0 && mtu > IPV6_AND_UDP)
        return (uint32_t)mtu - IPV6_AND_UDP;
    return 0;
}

static uint32_t smaller(const struct p4r_path *path, int fd)
{
    const uint32_t said = hint(fd);
    if (said >= least(path) && said < path->bytes)
        return said;
    for (int i = 0; i < SIZES; i++)
        if (sizes[i] < path->bytes && sizes[i] > least(path))
            return sizes[i];
    return least(path);
}

static uint32_t larger(const struct p4r_path *path)
{
    for (int i = SIZES - 1; i >= 0; i--)
        if (sizes[i] > path->bytes && sizes[i] < path->agreed)
            return sizes[i];
    return path->agreed;
}

static void end_trial(struct p4r_path *path, uint64_t now_ns)
{
    path->trial = 0;
    path->due_ns = now_ns + CONFIRM * path->probe_timeout_ns;
}

static int narrow(struct p4r_path *path, int fd, uint64_t now_ns)
{
    if (path->bytes <= least(path)) {
        path->too_narrow++;
        return 0;
    }
    path->bytes = smaller(path, fd);
    path->narrowed++;
    path->widen_ns = now_ns + WIDEN * path->probe_timeout_ns;
    path->due_ns = now_ns; /* does this size pass? */
    return 1;
}

static void fail(struct p4r_path *path, int fd, uint64_t now_ns)
{
    const uint32_t trial = path->trial;
    end_trial(path, now_ns);
    if (trial > path->bytes)
        path->widen_ns = now_ns + WIDEN * path->probe_timeout_ns;
    else if (path->heard) /* else nothing passes at all, whatever its size */
        narrow(path, fd, now_ns);
}

uint32_t p4r_path_question(struct p4r_path *path, int fd, uint64_t now_ns)
{
    if (path->due_ns == 0) { /* the first of all: the handshake has just shown that it passes */
        path->due_ns = now_ns + CONFIRM * path->probe_timeout_ns;
        return 0;
    }
    if (now_ns < path->due_ns)
        return 0;
    if (path->trial != 0 && path->tries == TRIES) {
        fail(path, fd, now_ns);
        return 0;
    }
    if (path->trial == 0) {
        const int widens = path->bytes < path->agreed && now_ns >= path->widen_ns;
        path->trial = widens ? larger(path) : path->bytes;
        path->tries = path->heard = 0;
        if (getrandom(path->nonce, sizeof path->nonce, GRND_NONBLOCK) != sizeof path->nonce)
            memcpy(path->nonce, &now_ns, sizeof path->nonce);
    }
    path->tries++;
    path->due_ns = now_ns + path->probe_timeout_ns;
    return path->trial;
}

void p4r_path_answered(struct p4r_path *path, const uint8_t *nonce, uint64_t now_ns)
{
    if (nonce != NULL)
        path->echoes = 1;
    if (path->trial == 0 || (nonce == NULL && path->echoes) ||
        (nonce != NULL && memcmp(nonce, path->nonce, sizeof path->nonce) != 0))
        return;
    const int widens = path->trial > path->bytes;
    if (widens) {
        path->bytes = path->trial;
        path->widened++;
    }
    end_trial(path, now_ns);
    if (widens && path->bytes < path->agreed)
        path->due_ns = now_ns; /* the next larger one at once */
}

void p4r_path_suspect(struct p4r_path *path, uint64_t now_ns)
{
    /* Not during a trial, nor within one probe_timeout_ns after it, so that a flood of forged messages
     * does not start one trial after the other. */
    if (path->trial == 0 && path->due_ns > now_ns &&
        path->due_ns - now_ns < (CONFIRM - 1) * path->probe_timeout_ns)
        path->due_ns = now_ns;
}

int p4r_path_refused(struct p4r_path *path, int fd, uint64_t now_ns)
{
    path->trial = 0;
    return narrow(path, fd, now_ns);
}
