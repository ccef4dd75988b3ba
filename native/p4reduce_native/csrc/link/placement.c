/* SPDX-License-Identifier: Apache-2.0 */
#include "link/placement.h"

int p4r_is_placed(uint32_t peers, uint32_t cpus)
{
    /* With fewer, or with many more, the kernel places them well by itself
     * (docs/contributing/profile.md). */
    return cpus > 1 && peers >= 2 * cpus && peers <= 3 * cpus;
}

uint32_t p4r_placed_together(uint32_t peers, uint32_t cpus)
{
    /* A sum takes the switch half of the time of all its ranks. So on two CPUs the work is even with
     * every fourth rank beside the switch, and on more with none. */
    return cpus == 2 ? (peers + 2) / 4 : 0;
}

uint32_t p4r_placement_word(uint32_t placement)
{
    int cpu = placement == P4R_ANYWHERE ? -1 : sched_getcpu();
    return cpu < 0 ? P4R_ANYWHERE : (uint32_t)cpu * P4R_PLACEMENTS + placement;
}

int p4r_placement_bind(struct p4r_bound *bound, uint32_t word)
{
    uint32_t placement = word % P4R_PLACEMENTS, cpu = word / P4R_PLACEMENTS;

    if (word == bound->word)
        return bound->is_bound && placement == P4R_ELSEWHERE;
    p4r_placement_unbind(bound);
    bound->word = word;
    if (placement == P4R_ANYWHERE ||
        sched_getaffinity(0, sizeof bound->before, &bound->before) != 0 ||
        !CPU_ISSET(cpu, &bound->before) || /* which is false for any number that is too large */
        (placement == P4R_TOGETHER && CPU_COUNT(&bound->before) > 2))
        return 0;
    bound->since = bound->before;
    if (placement == P4R_ELSEWHERE) {
        CPU_CLR(cpu, &bound->since);
    } else {
        CPU_ZERO(&bound->since);
        CPU_SET(cpu, &bound->since);
    }
    /* A worker that may use the switch's CPU only has none left, and the kernel refuses that. */
    bound->is_bound = sched_setaffinity(0, sizeof bound->since, &bound->since) == 0;
    return bound->is_bound && placement == P4R_ELSEWHERE;
}

void p4r_placement_unbind(struct p4r_bound *bound)
{
    cpu_set_t now;

    if (bound->is_bound && sched_getaffinity(0, sizeof now, &now) == 0 &&
        CPU_EQUAL(&now, &bound->since))
        (void)sched_setaffinity(0, sizeof bound->before, &bound->before);
    bound->is_bound = 0;
    bound->word = P4R_ANYWHERE;
}
