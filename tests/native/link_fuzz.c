/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that write anything anywhere, at links of all kinds: link_fuzz SEED ROUNDS.
 *
 * The honest end must see nothing but frames of allowed lengths and the errors that link.h names,
 * and must leave neither file descriptors nor mappings behind. Meant to be compiled with
 * -fsanitize=address,undefined. Prints what happened; exit code 1 and a line on what was wrong.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link/link.h"

#define SLOT_BYTES 2112
#define RING_HEAD 256
#define ATTEMPTS 1000
#define ROWS 128
#define STRIDE 2048
#define ROOM 2046

static uint64_t seed;
static long taken; /* frames that the honest ends were given */

static void fail(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    exit(1);
}

/* xorshift64*, a state for each thread. */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)((*state * 0x2545F4914F6CDD1DULL) >> 32) % below;
}

struct hostile {
    int fd;
    uint8_t *memory; /* NULL: messages only */
    size_t bytes;
    uint32_t slots;
    uint64_t state;
    _Atomic int stop;
    int is_worker;
    _Atomic int has_begun;
};

/* Places where it hurts most: the index words, and lengths. */
static void scribble(struct hostile *it)
{
    size_t ring = it->bytes / 2 * draw(&it->state, 2);
    uint32_t *word;
    switch (draw(&it->state, 6)) {
    case 0: { /* indices that move on as an honest peer's, so that garbage is taken */
        volatile uint32_t *put = (volatile uint32_t *)(void *)(it->memory + ring);
        volatile uint32_t *gone = (volatile uint32_t *)(void *)(it->memory + ring + 64);
        uint32_t waiting = *put - *gone;
        if ((ring != 0) == it->is_worker && waiting != 0)
            *gone += 1 + draw(&it->state, waiting);
        else if ((ring != 0) != it->is_worker && waiting < it->slots)
            *put += 1 + draw(&it->state, it->slots - waiting);
        break;
    }
    case 1:
        word = (uint32_t *)(void *)(it->memory + ring + 64 * draw(&it->state, 4));
        if (draw(&it->state, 20000) == 0) /* ends the link, as a rule */
            *(volatile uint32_t *)word = draw(&it->state, UINT32_MAX);
        break;
    case 2: /* flags */
        word = (uint32_t *)(void *)(it->memory + ring + 128 + 64 * draw(&it->state, 2));
        *(volatile uint32_t *)word = draw(&it->state, 3);
        break;
    case 3:
    case 4: { /* a length */
        size_t slot = ring + RING_HEAD + (size_t)draw(&it->state, it->slots) * SLOT_BYTES;
        *(volatile uint16_t *)(void *)(it->memory + slot) =
            (uint16_t)draw(&it->state, draw(&it->state, 4) ? 2100 : 65536);
        break;
    }
    default: /* anything behind the indices of either ring */
        ring += RING_HEAD - 128 * (draw(&it->state, 2));
        *(volatile uint8_t *)(it->memory + ring + draw(&it->state, it->slots * SLOT_BYTES)) =
            (uint8_t)draw(&it->state, 256);
    }
}

static void send_anything(struct hostile *it)
{
    static _Thread_local uint8_t message[70000];
    size_t length = draw(&it->state, 4) ? draw(&it->state, 64) : draw(&it->state, sizeof message);
    for (size_t i = 0; i < length && i < 200; i++)
        message[draw(&it->state, (uint32_t)length)] = (uint8_t)draw(&it->state, 256);
    if (length > 4 && draw(&it->state, 2)) { /* a record that could be right */
        uint16_t record = (uint16_t)draw(&it->state, 2200);
        memcpy(message, &record, sizeof record);
    }
    (void)send(it->fd, message, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (draw(&it->state, 4) == 0)
        (void)recv(it->fd, message, sizeof message, MSG_DONTWAIT);
}

static void *be_hostile(void *argument)
{
    struct hostile *it = argument;
    while (!atomic_load(&it->stop)) {
        atomic_store(&it->has_begun, 1);
        if (it->memory != NULL)
            for (uint32_t i = draw(&it->state, 200); i > 0; i--)
                scribble(it);
        if (it->memory == NULL || draw(&it->state, 20) == 0)
            send_anything(it);
        if (draw(&it->state, 3000) == 0)
            shutdown(it->fd, SHUT_RDWR);
    }
    return NULL;
}

static int allowed(int code) { return code == -EPIPE || code == -EPROTO; }

static void begin(pthread_t *thread, struct hostile *it)
{
    pthread_create(thread, NULL, be_hostile, it);
    while (!atomic_load(&it->has_begun))
        sched_yield();
}

/* What a switch does with a link, again and again. */
static void be_switch(struct p4r_link *link, uint64_t *state)
{
    struct p4r_frame in[P4R_LINK_MOST], out[200];
    uint8_t *bytes = malloc(P4R_LINK_MAX_FRAME);
    memset(bytes, 0x5A, P4R_LINK_MAX_FRAME);
    uint64_t sum = 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int most = P4R_LINK_FRAMES + (int)draw(state, P4R_LINK_MOST - P4R_LINK_FRAMES + 1);
        int count = p4r_link_receive(link, in, most);
        if (count > most || (count < 0 && !allowed(count)))
            fail("receive returned %d of %d", count, most);
        taken += count > 0 ? count : 0;
        for (int i = 0; i < count; i++) {
            if (in[i].length < P4R_LINK_MIN_FRAME || in[i].length > P4R_LINK_MAX_FRAME)
                fail("a frame of %u bytes", in[i].length);
            for (uint32_t k = 0; k < in[i].length; k++)
                sum += in[i].bytes[k];
        }
        int wanted = (int)draw(state, 200);
        for (int i = 0; i < wanted; i++)
            out[i] = (struct p4r_frame){bytes, draw(state, P4R_LINK_MAX_FRAME + 2)};
        int sent = p4r_link_send(link, out, wanted);
        if (sent > wanted || (sent < 0 && !allowed(sent)))
            fail("send returned %d of %d", sent, wanted);
        (void)p4r_link_events(link, sent < wanted);
        if (attempt % 16 == 0)
            sched_yield();
        if (count < 0 || sent < 0)
            break;
    }
    free(bytes);
    if (sum == 1) /* keeps the reads */
        puts("");
}

/* What a worker does with a link. */
static void be_worker(struct p4r_link *link, uint64_t *state)
{
    uint8_t *rows = malloc((size_t)ROWS * STRIDE);
    int64_t *lengths = calloc(ROWS, sizeof *lengths), indices[ROWS];
    memset(rows, 0x3C, (size_t)ROWS * STRIDE);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int count = p4r_link_receive_rows(link, rows, STRIDE, ROOM, lengths, ROWS);
        if (count > ROWS || (count < 0 && !allowed(count)))
            fail("receive_rows returned %d", count);
        taken += count > 0 ? count : 0;
        for (int i = 0; i < count; i++)
            if (lengths[i] < 0 || lengths[i] > ROOM)
                fail("a row of %lld bytes", (long long)lengths[i]);
        for (int i = 0; i < ROWS; i++) {
            indices[i] = draw(state, ROWS);
            lengths[i] = draw(state, ROOM + 1);
        }
        int sent = p4r_link_send_rows(link, rows, STRIDE, lengths, indices, ROWS);
        if (sent > ROWS || (sent < 0 && !allowed(sent)))
            fail("send_rows returned %d", sent);
        if (p4r_link_wait(link, -1, 0, sent < ROWS ? P4R_LINK_FOR_ROOM : 0) < 0)
            fail("wait failed");
        if (count < 0 || sent < 0)
            break;
    }
    free(lengths);
    free(rows);
}

static void map_memory(struct hostile *it, int memory_fd)
{
    it->bytes = (size_t)lseek(memory_fd, 0, SEEK_END);
    it->memory = mmap(NULL, it->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    if (it->memory == MAP_FAILED)
        fail("mmap: %s", strerror(errno));
}

static int receive_fd(int fd, uint8_t *answer)
{
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec vector = {answer, 12};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    int got = -1;
    if (recvmsg(fd, &message, 0) == 12 && CMSG_FIRSTHDR(&message) != NULL)
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    return got;
}

static void send_fd(int fd, const uint8_t *answer, size_t length, int given)
{
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {(void *)(uintptr_t)answer, length};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    if (given >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &given, sizeof given);
    }
    (void)sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* A hostile worker at an honest switch. */
static int against_the_switch(uint64_t *state)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        fail("socketpair: %s", strerror(errno));
    uint32_t slots = 1u << draw(state, 8);
    int error;
    struct p4r_link *link = p4r_link_accept(ends[0], P4R_LINK_CAN_SHARED, slots, &error);
    struct hostile it = {.fd = ends[1], .slots = slots, .state = *state | 1, .is_worker = 1};
    uint8_t hello[8] = {'P', '4', 'R', 'L', 1, (uint8_t)(draw(state, 4) << 1)}, answer[12];
    struct p4r_frame frames[P4R_LINK_FRAMES];
    (void)send(it.fd, hello, sizeof hello, 0);
    if (p4r_link_receive(link, frames, P4R_LINK_FRAMES) != 0)
        fail("the hello gave frames");
    int memory_fd = receive_fd(it.fd, answer);
    if (memory_fd >= 0) {
        map_memory(&it, memory_fd);
        if (ftruncate(memory_fd, 0) == 0)
            fail("the memory can be cut short");
        close(memory_fd);
    }
    int kind = p4r_link_kind(link);
    pthread_t thread;
    begin(&thread, &it);
    be_switch(link, state);
    atomic_store(&it.stop, 1);
    pthread_join(thread, NULL);
    p4r_link_free(link);
    close(ends[1]);
    if (it.memory != NULL)
        munmap(it.memory, it.bytes);
    return kind;
}

/* Some file, which may be memory such as a switch would hand over. */
static int any_file(uint64_t *state, uint32_t slots, int *usable)
{
    size_t bytes = 2 * ((RING_HEAD + (size_t)slots * SLOT_BYTES + 4095) & ~(size_t)4095);
    int sealed = draw(state, 5) != 0, whole = draw(state, 5) != 0;
    *usable = 0;
    if (draw(state, 6) == 0)
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    if (draw(state, 6) == 0)
        return -1;
    int fd = memfd_create("link_fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)(whole ? bytes : bytes - 1)) != 0)
        fail("memfd: %s", strerror(errno));
    if (sealed && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        fail("seals: %s", strerror(errno));
    *usable = sealed && whole;
    return fd;
}

struct answering {
    int fd, given, garbage;
    uint8_t answer[14];
    size_t length;
};

static void *answer_once(void *argument)
{
    struct answering *it = argument;
    uint8_t hello[64];
    (void)recv(it->fd, hello, sizeof hello, 0);
    if (it->garbage)
        (void)send(it->fd, "not an answer, but long enough", 30, MSG_NOSIGNAL);
    send_fd(it->fd, it->answer, it->length, it->given);
    return NULL;
}

/* A hostile switch at an honest worker. */
static int against_the_worker(uint64_t *state)
{
    int ends[2], usable, error;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
        fail("socketpair: %s", strerror(errno));
    uint32_t order = draw(state, 8);
    struct answering answering = {.fd = ends[1],
                                  .garbage = draw(state, 2) != 0,
                                  .length = 12,
                                  .answer = {'P', '4', 'R', 'L', 1}};
    answering.given = any_file(state, 1u << order, &usable);
    answering.answer[5] = (uint8_t)(draw(state, 3) ? 2 : draw(state, 256));
    answering.answer[6] = (uint8_t)order;
    if (draw(state, 4) == 0)
        answering.answer[draw(state, 12)] = (uint8_t)draw(state, 256);
    if (draw(state, 10) == 0)
        answering.length = draw(state, 15);
    pthread_t thread;
    pthread_create(&thread, NULL, answer_once, &answering);
    struct p4r_link *link = p4r_link_connect(ends[0], P4R_LINK_CAN_SHARED, 20, &error);
    pthread_join(thread, NULL);
    struct hostile it = {.fd = ends[1], .slots = 1u << order, .state = *state | 1};
    if (link == NULL) {
        close(ends[0]); /* it is still ours */
        if (error != ETIMEDOUT && error != EPROTO && error != EPIPE)
            fail("connect: %s", strerror(error));
    } else {
        if (p4r_link_kind(link) == P4R_LINK_SHARED) {
            if (!usable)
                fail("memory was taken that could be cut short");
            if (answering.answer[6] != order) /* a smaller ring than was made */
                it.slots = 1u << answering.answer[6];
            map_memory(&it, answering.given);
            if (it.slots > 1u << order)
                fail("a larger ring than there is memory");
            if (it.slots != 1u << order)
                it.bytes = 2 * ((RING_HEAD + (size_t)it.slots * SLOT_BYTES + 4095) & ~(size_t)4095);
        }
        begin(&thread, &it);
        be_worker(link, state);
        atomic_store(&it.stop, 1);
        pthread_join(thread, NULL);
        p4r_link_free(link);
    }
    if (it.memory != NULL)
        munmap(it.memory, (size_t)lseek(answering.given, 0, SEEK_END));
    if (answering.given >= 0)
        close(answering.given);
    close(ends[1]);
    return link != NULL;
}

static int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

static int links_mapped(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return count;
}

int main(int argument_count, char **arguments)
{
    if (argument_count != 3)
        return 2;
    seed = strtoull(arguments[1], NULL, 10);
    uint64_t state = seed * 2654435761u + 88172645463325252ULL;
    int before = open_files(), kinds[3] = {0}, connected = 0, rounds = atoi(arguments[2]);
    for (int round = 0; round < rounds; round++) {
        kinds[against_the_switch(&state)]++;
        connected += against_the_worker(&state);
    }
    if (open_files() != before)
        fail("%d files open, %d before", open_files(), before);
    if (links_mapped() != 0)
        fail("%d mappings are left", links_mapped());
    printf("seed %llu: %d single, %d shared, %d workers connected, %ld frames taken\n",
           (unsigned long long)seed, kinds[P4R_LINK_SINGLE], kinds[P4R_LINK_SHARED], connected,
           taken);
    return 0;
}
