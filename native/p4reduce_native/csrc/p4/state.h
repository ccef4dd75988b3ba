/* SPDX-License-Identifier: Apache-2.0 */
/* What every compiled program has, at the start of its `struct p4r_program`. */
#ifndef P4R_P4_STATE_H
#define P4R_P4_STATE_H

#include "../pipeline_abi.h"
#include "copies.h"
#include "events.h"
#include "random.h"
#include "table.h"

/* BMv2 keeps this much room in front of a packet and dies if more headers are added. */
enum { P4R_MAX_GROWTH = 512 };
/* So many times at most is ingress or egress run again for one frame (replay.py). */
enum { P4R_MAX_REPLAYS = 256 };

/* What became of the frames; pipeline.PipelineStats says what each means. */
struct p4r_stats {
    uint64_t frames_in;
    uint64_t frames_out;
    uint64_t dropped_ingress;
    uint64_t dropped_egress;
    uint64_t dropped_no_replica;
    uint64_t dropped_growth;
    uint64_t dropped_replay;
    uint64_t dropped_assertion;
    uint64_t dropped_loop;
};

struct p4r_common {
    struct p4r_stats stats;
    uint64_t drop_port;
    uint64_t start_ns; /* when it was loaded */
    struct p4r_events events;
    struct p4r_random random;
    struct p4r_copies *groups[P4R_GROUPS];
    struct p4r_copies *sessions[P4R_SESSIONS];
    uint8_t out[P4R_MAX_FRAME + P4R_MAX_GROWTH]; /* the frame on its way out */
    /* The run in hand. */
    uint64_t now_ns;
    p4r_emit emit;
    void *emit_context;
    /* Copies that Python waits for (control.c). */
    uint8_t *collected;
    size_t collected_used, collected_room;
};

P4R_INLINE void p4r_send(struct p4r_common *common, uint32_t port, uint32_t length, uint64_t most)
{
    common->stats.frames_out++;
    common->emit(common->emit_context, port, common->out, length < most ? length : (uint32_t)most);
}

/* Microseconds since the program was loaded. */
P4R_INLINE uint64_t p4r_now(const struct p4r_common *common)
{
    return common->now_ns > common->start_ns ? (common->now_ns - common->start_ns) / 1000 : 0;
}

bool p4r_common_init(struct p4r_common *common, uint32_t drop_port);
void p4r_common_free(struct p4r_common *common);

#endif
