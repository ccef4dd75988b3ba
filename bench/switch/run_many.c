/* SPDX-License-Identifier: Apache-2.0 */
/* Many frames through a compiled program, whose copies are counted and dropped. */
#include <stddef.h>

#include "pipeline_abi.h"

typedef void process_function(struct p4r_program *, uint32_t, const uint8_t *, uint32_t, uint64_t,
                              p4r_emit, void *);
typedef uint64_t release_function(struct p4r_program *, uint64_t, p4r_emit, void *, p4r_ready);

static void count_copy(void *context, uint32_t port, const uint8_t *frame, uint32_t length)
{
    (void)port;
    (void)frame;
    (void)length;
    ++*(uint64_t *)context;
}

/* `count` frames of `length` bytes each, one after the other in `frames`; how many copies. `release`
 * is NULL without egress queues. */
uint64_t bench_run_many(process_function *process, release_function *release,
                        struct p4r_program *program, uint32_t count, const uint32_t *ports,
                        const uint8_t *frames, uint32_t length, uint64_t now_ns)
{
    uint64_t copies = 0;
    for (uint32_t i = 0; i < count; i++) {
        process(program, ports[i], frames + (size_t)i * length, length, now_ns, count_copy,
                &copies);
        if (release)
            release(program, now_ns, count_copy, &copies, NULL);
    }
    return copies;
}
