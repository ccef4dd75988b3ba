/* SPDX-License-Identifier: Apache-2.0 */
/* The hello and its answer; link.h has their bytes. */
#include "link_impl.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define VERSION 1
#define HELLO_BYTES 8
#define ANSWER_BYTES 12
#define HELLO_END 14 /* an Ethernet header: each hello is shorter */
static const uint8_t magic[4] = {'P', '4', 'R', 'L'};

#define MOST_FILES 253 /* SCM_MAX_FD: the kernel passes no more with one message */

union control {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
};

/* Room for all that a message can bring: what is not seen cannot be closed. */
union large_control {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(MOST_FILES * sizeof(int))];
};

int p4r_is_hello(const uint8_t *bytes, size_t length)
{
    /* A later version may have said more, up to what is still too short for a frame. */
    return length >= HELLO_BYTES && length < HELLO_END && memcmp(bytes, magic, sizeof magic) == 0 &&
           bytes[4] >= 1;
}

static int send_answer(struct p4r_link *link, int kind, int memory_fd)
{
    uint8_t answer[ANSWER_BYTES] = {0};
    memcpy(answer, magic, sizeof magic);
    answer[4] = VERSION;
    answer[5] = (uint8_t)kind;
    answer[6] = (uint8_t)__builtin_ctz(link->slots);
    struct iovec vector = {answer, sizeof answer};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    union control control;
    if (memory_fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &memory_fd, sizeof memory_fd);
    }
    return sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == ANSWER_BYTES;
}

void p4r_answer_hello(struct p4r_link *link, const uint8_t *hello, uint32_t offers)
{
    const struct p4r_link_ops *ops = &p4r_single;
    int memory_fd = -1;
    if (hello[5] & offers & P4R_LINK_CAN_SHARED)
        memory_fd = p4r_shared_make(link, link->slots);
    if (memory_fd >= 0)
        ops = &p4r_shared;
    /* Where there is no room for the answer, the peer will come again and wish nothing. */
    if (send_answer(link, (int)ops->kind, memory_fd))
        link->ops = ops;
    if (memory_fd >= 0)
        close(memory_fd);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns the one file descriptor that came with a message, or -1. Closes them all if there are
 * several, or if some did not fit. */
static int only_file(struct msghdr *message)
{
    int files[MOST_FILES];
    size_t count = 0;
    for (struct cmsghdr *each = CMSG_FIRSTHDR(message); each != NULL;
         each = CMSG_NXTHDR(message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t more = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (more <= MOST_FILES - count)
            memcpy(files + count, CMSG_DATA(each), more * sizeof(int));
        count += more <= MOST_FILES - count ? more : 0;
    }
    if (count == 1 && (message->msg_flags & MSG_CTRUNC) == 0)
        return files[0];
    while (count > 0)
        close(files[--count]);
    return -1;
}

/* Waits for the answer until `deadline`; returns 0 and a file descriptor (or -1), or an errno. */
static int receive_answer(int fd, int64_t deadline, uint8_t *answer, int *memory_fd)
{
    for (;;) {
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        int64_t left = deadline - now_ms();
        int ready = left > 0 ? poll(&poller, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready < 0)
            return errno;
        if (ready == 0)
            return ETIMEDOUT;
        struct iovec vector = {answer, ANSWER_BYTES};
        union large_control control;
        struct msghdr message = {.msg_iov = &vector,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof control};
        ssize_t bytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (bytes < 0 && (p4r_is_full(errno) || errno == EINTR))
            continue;
        if (bytes < 0)
            return errno == ECONNRESET ? EPIPE : errno;
        *memory_fd = only_file(&message);
        if (bytes == ANSWER_BYTES && (message.msg_flags & MSG_TRUNC) == 0 &&
            memcmp(answer, magic, sizeof magic) == 0)
            return 0;
        if (*memory_fd >= 0)
            close(*memory_fd);
        if (bytes == 0 && p4r_has_hung_up(fd))
            return EPIPE;
        /* Else a frame for the port's previous peer, or a broadcast. */
    }
}

/* Sets the link up as the answer says; returns 0 or an errno. */
static int follow(struct p4r_link *link, const uint8_t *answer, int memory_fd, uint32_t wishes)
{
    const int kind = answer[5];
    if (answer[4] == VERSION && kind == P4R_LINK_SINGLE)
        return 0;
    if (answer[4] != VERSION || kind != P4R_LINK_SHARED || (wishes & P4R_LINK_CAN_SHARED) == 0)
        return EPROTO;
    const uint32_t slots = answer[6] <= __builtin_ctz(P4R_MAX_SLOTS) ? 1u << answer[6] : 0;
    if (slots == 0 || memory_fd < 0)
        return EPROTO;
    const int error = p4r_shared_map(link, memory_fd, slots);
    if (error != 0)
        return -error;
    link->ops = &p4r_shared;
    return 0;
}

static int negotiate(struct p4r_link *link, uint32_t wishes, int timeout_ms)
{
    uint8_t hello[HELLO_BYTES] = {0};
    memcpy(hello, magic, sizeof magic);
    hello[4] = VERSION;
    hello[5] = (uint8_t)wishes;
    int64_t deadline = now_ms() + timeout_ms;
    if (send(link->fd, hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return errno == ECONNRESET ? EPIPE : errno;
    uint8_t answer[ANSWER_BYTES];
    int memory_fd = -1;
    int error = receive_answer(link->fd, deadline, answer, &memory_fd);
    if (error != 0)
        return error;
    error = follow(link, answer, memory_fd, wishes);
    if (memory_fd >= 0)
        close(memory_fd);
    return error;
}

struct p4r_link *p4r_link_connect(int fd, uint32_t wishes, int timeout_ms, int *error)
{
    struct p4r_link *link = p4r_link_accept(fd, 0, 0, error);
    if (link == NULL)
        return NULL;
    *error = wishes != 0 ? negotiate(link, wishes, timeout_ms) : 0;
    return *error == 0 ? link : p4r_unmake(link);
}
