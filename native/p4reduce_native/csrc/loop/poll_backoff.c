/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/poll_backoff.h"

#include "common/clock.h"

enum {
    FRAMES = 16,            /* a sleep is as long as these take: a wake-up costs little for each */
    SHORTEST_NS = 100000,   /* for less it is not worth while: the kernel adds half of that */
    LONGEST_NS = 400000,    /* between two looks */
    MEASURED = 32,          /* frames, whose time shows how far apart they are */
    PAUSE_NS = 300000,      /* without a frame, which ends a streak */
    ENOUGH = 12,            /* a sleep that brings fewer frames was too early */
    THRESHOLD = 256,        /* frames in a row before the first sleep */
    MOST_THRESHOLD = 65536, /* the same after sleeps that brought too few */
};

void p4r_poll_backoff_init(struct p4r_poll_backoff *backoff)
{
    *backoff = (struct p4r_poll_backoff){.threshold = THRESHOLD};
}

void p4r_poll_backoff_sleep(struct p4r_poll_backoff *backoff, uint64_t deadline_ns, int wake_fd)
{
    const uint64_t gathering_ns = FRAMES * backoff->apart_ns;
    const uint64_t next_ns =
        backoff->looked_ns + (gathering_ns < LONGEST_NS ? gathering_ns : LONGEST_NS);
    const uint64_t until_ns = next_ns < deadline_ns ? next_ns : deadline_ns;

    /* A loop that has enough to do for all that time never sleeps. */
    backoff->has_slept = backoff->streak >= backoff->threshold && gathering_ns >= SHORTEST_NS &&
                         p4r_now_ns() < until_ns;
    if (backoff->has_slept)
        p4r_sleep_until(until_ns, wake_fd);
}

void p4r_poll_backoff_polled(struct p4r_poll_backoff *backoff, uint64_t began_ns, uint64_t ended_ns)
{
    if (ended_ns - began_ns > PAUSE_NS)
        backoff->streak = 0;
    backoff->looked_ns = ended_ns;
}

static void measure(struct p4r_poll_backoff *backoff, uint32_t frames)
{
    backoff->counted += frames;
    if (backoff->counted < MEASURED)
        return;
    backoff->apart_ns = (backoff->looked_ns - backoff->counted_ns) / backoff->counted;
    backoff->counted_ns = backoff->looked_ns;
    backoff->counted = 0;
}

void p4r_poll_backoff_received(struct p4r_poll_backoff *backoff, uint32_t by_interfaces,
                               uint32_t by_others)
{
    if (by_others != 0)
        backoff->streak = 0;
    else if (backoff->streak < MOST_THRESHOLD)
        backoff->streak += by_interfaces;
    measure(backoff, by_interfaces);
    if (!backoff->has_slept)
        return;
    if (by_interfaces >= ENOUGH) {
        backoff->threshold =
            backoff->threshold / 2 > THRESHOLD ? backoff->threshold / 2 : THRESHOLD;
    } else {
        backoff->streak = 0;
        backoff->threshold =
            backoff->threshold * 2 < MOST_THRESHOLD ? backoff->threshold * 2 : MOST_THRESHOLD;
    }
}
