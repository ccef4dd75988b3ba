/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/receive_backoff.h"

#include <math.h>

#define PART 16         /* of the frames under way: as long as one such part takes to come */
#define LEAST_FRAMES 2  /* that have to come meanwhile */
#define SHORTEST 0.0001 /* seconds; the kernel adds half of that */
#define LONGEST 0.001
#define MEASURED 32 /* frames, whose time shows how far apart they are */

void p4r_receive_backoff_received(struct p4r_receive_backoff *backoff, uint32_t count, double now)
{
    backoff->received_at = now;
    backoff->counted += count;
    if (backoff->counted < MEASURED)
        return;
    backoff->apart = (now - backoff->counted_at) / backoff->counted;
    backoff->counted_at = now;
    backoff->counted = 0;
}

double p4r_receive_backoff_until(const struct p4r_receive_backoff *backoff, uint32_t in_flight)
{
    double seconds = fmin(backoff->apart * in_flight / PART, LONGEST);

    if (!backoff->allowed || seconds < SHORTEST || seconds < LEAST_FRAMES * backoff->apart)
        return 0.0;
    return backoff->received_at + seconds;
}
