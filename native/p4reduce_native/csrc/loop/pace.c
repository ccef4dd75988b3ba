/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/pace.h"

#include "common/clock.h"

enum {
    FRAMES = 16,           /* that a sleep is to bring: then a wake-up is a small part of each */
    SHORTEST_NS = 100000,  /* for less it is not worth while: the kernel adds half of that */
    LONGEST_NS = 400000,   /* between two looks */
    MEASURED = 32,         /* frames, whose time shows how far apart they are */
    PAUSE_NS = 300000,     /* without a frame, which ends a streak */
    ENOUGH = 12,           /* frames that a sleep has to bring */
    PATIENCE = 256,        /* frames in a row before the first sleep */
    MOST_PATIENCE = 65536, /* the same after sleeps that brought too few */
};

void p4r_pace_init(struct p4r_pace *pace) { *pace = (struct p4r_pace){.patience = PATIENCE}; }

void p4r_pace_rest(struct p4r_pace *pace, uint64_t deadline_ns, int wake_fd)
{
    const uint64_t gathering_ns = FRAMES * pace->apart_ns;
    const uint64_t next_ns =
        pace->looked_ns + (gathering_ns < LONGEST_NS ? gathering_ns : LONGEST_NS);
    const uint64_t until_ns = next_ns < deadline_ns ? next_ns : deadline_ns;

    /* A loop that has enough to do for all that time never sleeps. */
    pace->has_slept =
        pace->streak >= pace->patience && gathering_ns >= SHORTEST_NS && p4r_now_ns() < until_ns;
    if (pace->has_slept)
        p4r_sleep_until(until_ns, wake_fd);
}

void p4r_pace_looked(struct p4r_pace *pace, uint64_t began_ns, uint64_t ended_ns)
{
    if (ended_ns - began_ns > PAUSE_NS)
        pace->streak = 0;
    pace->looked_ns = ended_ns;
}

static void measure(struct p4r_pace *pace, uint32_t frames)
{
    pace->counted += frames;
    if (pace->counted < MEASURED)
        return;
    pace->apart_ns = (pace->looked_ns - pace->counted_ns) / pace->counted;
    pace->counted_ns = pace->looked_ns;
    pace->counted = 0;
}

void p4r_pace_took(struct p4r_pace *pace, uint32_t by_interfaces, uint32_t by_others)
{
    if (by_others != 0)
        pace->streak = 0;
    else if (pace->streak < MOST_PATIENCE)
        pace->streak += by_interfaces;
    measure(pace, by_interfaces);
    if (!pace->has_slept)
        return;
    if (by_interfaces >= ENOUGH) {
        pace->patience = pace->patience / 2 > PATIENCE ? pace->patience / 2 : PATIENCE;
    } else {
        pace->streak = 0;
        pace->patience = pace->patience * 2 < MOST_PATIENCE ? pace->patience * 2 : MOST_PATIENCE;
    }
}
