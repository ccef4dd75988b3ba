/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of cost.py: sends or receives many frames, and returns the thread's CPU time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>
#include <time.h>

#include "link/link.h"

#define STRIDE 2048
#define FRAMES 512 /* in the sender's memory, so that not all comes from the first-level cache */

static uint8_t memory[FRAMES * STRIDE];

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Sends `count` frames, `batch` per call. Returns CPU nanoseconds, or minus an errno. */
double bench_send(struct p4r_link *link, int count, int batch, int length)
{
    struct p4r_frame frames[P4R_LINK_MOST];
    double began = cpu_ns();
    for (int done = 0; done < count;) {
        int turn = count - done < batch ? count - done : batch;
        for (int i = 0; i < turn; i++)
            frames[i] = (struct p4r_frame){memory + (size_t)((done + i) % FRAMES) * STRIDE,
                                           (uint32_t)length};
        int sent = p4r_link_send(link, frames, turn);
        if (sent < 0)
            return sent;
        if (sent < turn) {
            struct p4r_frame none[P4R_LINK_MOST];
            if (p4r_link_wait(link, -1, 10000, P4R_LINK_FOR_ROOM) == 0 ||
                p4r_link_receive(link, none, P4R_LINK_MOST) < 0)
                return -1;
        }
        done += sent;
    }
    return cpu_ns() - began;
}

/* Receives `count` frames. Returns CPU nanoseconds, or minus an errno. */
double bench_receive(struct p4r_link *link, int count)
{
    struct p4r_frame frames[P4R_LINK_MOST];
    double began = cpu_ns();
    for (int done = 0; done < count;) {
        int came = p4r_link_receive(link, frames, P4R_LINK_FRAMES);
        if (came < 0)
            return came;
        if (came == 0 && p4r_link_wait(link, -1, 10000, 0) == 0)
            return -1;
        done += came;
    }
    return cpu_ns() - began;
}
