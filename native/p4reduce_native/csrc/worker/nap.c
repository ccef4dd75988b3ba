/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/nap.h"

#include <math.h>

#define PART 16         /* of the frames under way: as long as one such part takes to come */
#define LEAST_FRAMES 2  /* that have to come meanwhile */
#define SHORTEST 0.0001 /* seconds; the kernel adds half of that */
#define LONGEST 0.001
#define MEASURED 32 /* frames, whose time shows how far apart they are */

void p4r_nap_received(struct p4r_nap *nap, uint32_t count, double now)
{
    nap->received_at = now;
    nap->counted += count;
    if (nap->counted < MEASURED)
        return;
    nap->apart = (now - nap->counted_at) / nap->counted;
    nap->counted_at = now;
    nap->counted = 0;
}

double p4r_nap_until(const struct p4r_nap *nap, uint32_t under_way)
{
    double seconds = fmin(nap->apart * under_way / PART, LONGEST);

    if (!nap->allowed || seconds < SHORTEST || seconds < LEAST_FRAMES * nap->apart)
        return 0.0;
    return nap->received_at + seconds;
}
