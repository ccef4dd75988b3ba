/* SPDX-License-Identifier: Apache-2.0 */
/* The far ends of a switch's ports, as fast as possible: a closed loop with a fixed number of
 * frames under way. Both functions run for `duration_ns` and return how many frames the switch took in
 * meanwhile, or minus an errno; -ETIME: nothing came back for ten seconds. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "common/byte_order.h"
#include "common/clock.h"
#include "link/link.h"

enum { MOST_LINKS = 8, WAIT_MS = 10000, KIND_RESULT = 1 };

/* Where the fields of an aggregation frame are, in bytes from its start. */
struct layout {
    uint32_t kind, slot, round, payload;
};

static int send_all(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    while (count > 0) {
        const int sent = p4r_link_send(link, frames, count);
        if (sent < 0)
            return sent;
        frames += sent;
        count -= sent;
        if (count > 0 && p4r_link_wait(link, -1, WAIT_MS, P4R_LINK_FOR_ROOM) <= 0)
            return -ETIME;
    }
    return 0;
}

/* Receives from the next link after *which that has frames, and waits until one has; *which becomes its
 * number. */
static int receive_next(struct p4r_link **links, int count, int *which, struct p4r_frame *frames)
{
    struct pollfd polls[MOST_LINKS];
    for (;;) {
        for (int i = 0; i < count; i++) {
            const int link = (*which + 1 + i) % count;
            const int came = p4r_link_receive(links[link], frames, P4R_LINK_FRAMES);
            if (came != 0) {
                *which = link;
                return came;
            }
        }
        for (int i = 0; i < count; i++) {
            polls[i].fd = p4r_link_fd(links[i]);
            polls[i].events = (short)p4r_link_events(links[i], 0);
        }
        if (poll(polls, (nfds_t)count, WAIT_MS) == 0)
            return -ETIME;
    }
}

/* Sends each frame of links[1] again by links[0]. */
int64_t bench_forward(struct p4r_link **links, const uint8_t *frame, uint32_t length,
                      uint64_t duration_ns)
{
    struct p4r_frame again[P4R_LINK_FRAMES], came[P4R_LINK_FRAMES];
    for (int i = 0; i < P4R_LINK_FRAMES; i++)
        again[i] = (struct p4r_frame){frame, length};
    const uint64_t end = p4r_now_ns() + duration_ns;
    int64_t total = 0;
    int which = 0;
    do {
        const int count = receive_next(links + 1, 1, &which, came);
        const int error = count < 0 ? count : send_all(links[0], again, count);
        if (error < 0)
            return error;
        total += count;
    } while (p4r_now_ns() < end);
    return total;
}

/* Each rank answers each result by its contribution to the slot's next round. `rows` has the
 * contributions of `length` bytes, one per rank and slot; `sum` is the payload of each result. */
int64_t bench_contribute(struct p4r_link **links, int ranks, uint8_t *rows, uint32_t length,
                         uint32_t slots, const struct layout *layout, const uint8_t *sum,
                         uint64_t duration_ns)
{
    struct p4r_frame results[P4R_LINK_FRAMES], following[P4R_LINK_FRAMES];
    const uint64_t end = p4r_now_ns() + duration_ns;
    int64_t total = 0;
    int rank = 0;
    do {
        const int count = receive_next(links, ranks, &rank, results);
        for (int i = 0; i < count; i++) {
            const uint8_t *result = results[i].bytes;
            uint16_t slot;
            uint32_t round;
            if (results[i].length != length || (result[layout->kind] & 0xf) != KIND_RESULT ||
                memcmp(result + layout->payload, sum, length - layout->payload) != 0)
                return -EBADMSG;
            memcpy(&slot, result + layout->slot, sizeof slot);
            memcpy(&round, result + layout->round, sizeof round);
            slot = P4R_BIG16(slot);
            round = P4R_BIG32(P4R_BIG32(round) + 1);
            if (slot >= slots)
                return -EBADMSG;
            uint8_t *own = rows + ((size_t)rank * slots + slot) * length;
            memcpy(own + layout->round, &round, sizeof round);
            following[i] = (struct p4r_frame){own, length};
        }
        const int error = count < 0 ? count : send_all(links[rank], following, count);
        if (error < 0)
            return error;
        total += count;
    } while (p4r_now_ns() < end);
    return total;
}
