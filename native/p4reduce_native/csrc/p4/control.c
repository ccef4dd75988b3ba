/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

bool p4r_common_init(struct p4r_common *common, uint32_t drop_port)
{
    common->drop_port = drop_port;
    common->random.state[0] = 1; /* anything but zeros, until Python seeds it */
    common->events.words = malloc(P4R_EVENT_WORDS * sizeof(uint64_t));
    return common->events.words;
}

void p4r_common_free(struct p4r_common *common)
{
    for (uint32_t number = 0; number < P4R_GROUPS; number++)
        free(common->groups[number]);
    for (uint32_t number = 0; number < P4R_SESSIONS; number++)
        free(common->sessions[number]);
    p4r_queues_free(common->queues);
    free(common->events.words);
    free(common->collected);
}

/* -- Queues --------------------------------------------------------------------------------------- */

bool p4r_set_queues(struct p4r_common *common, uint32_t priorities, uint32_t depth,
                    uint64_t interval_ns)
{
    struct p4r_queues *queues = p4r_queues_new(priorities, depth, interval_ns);
    if (!queues)
        return false;
    p4r_queues_free(common->queues);
    common->queues = queues;
    return true;
}

void p4r_set_queue(struct p4r_common *common, uint32_t port, uint32_t depth, uint64_t interval_ns)
{
    common->queues->depth[port] = depth;
    common->queues->interval_ns[port] = interval_ns;
}

/* -- Copies --------------------------------------------------------------------------------------- */

static bool set_copies(struct p4r_copies **place, uint32_t count, const uint32_t *copies,
                       uint64_t most, bool exists)
{
    struct p4r_copies *made = NULL;
    if (exists) {
        made = malloc(sizeof *made + count * sizeof made->copy[0]);
        if (!made)
            return false;
        made->most = most;
        made->count = count;
        for (uint32_t i = 0; i < count; i++)
            made->copy[i] = (struct p4r_copy){copies[2 * i], copies[2 * i + 1]};
    }
    free(*place);
    *place = made;
    return true;
}

bool p4r_set_group(struct p4r_common *common, uint32_t group, uint32_t count,
                   const uint32_t *copies, bool exists)
{
    return set_copies(&common->groups[group], count, copies, P4R_UNLIMITED, exists);
}

bool p4r_set_session(struct p4r_common *common, uint32_t session, uint32_t count,
                     const uint32_t *copies, uint64_t most, bool exists)
{
    return set_copies(&common->sessions[session], count, copies, most, exists);
}

/* -- Everything else ------------------------------------------------------------------------------ */

uint64_t p4r_meter_color(struct p4r_meter *meter, uint32_t size, uint64_t now_ns)
{
    return p4r_meter_execute(meter, size, now_ns);
}

void p4r_seed(struct p4r_common *common, const uint64_t *seed)
{
    memcpy(common->random.state, seed, sizeof common->random.state);
    common->random.state[0] |= 1;
}

void p4r_set_start(struct p4r_common *common, uint64_t start_ns) { common->start_ns = start_ns; }

const uint64_t *p4r_take_events(struct p4r_common *common, uint32_t *words, uint64_t *lost)
{
    struct p4r_events *events = &common->events;
    *words = events->used;
    *lost = events->lost;
    events->used = events->count = 0;
    events->lost = 0;
    return events->words;
}

/* -- Frames, one at a time from Python -------------------------------------------------------------- */

static void collect(void *context, uint32_t port, const uint8_t *frame, uint32_t length)
{
    struct p4r_common *common = context;
    const size_t needed = common->collected_used + 2 * sizeof port + length;
    if (needed > common->collected_room) {
        const size_t room = 2 * needed;
        uint8_t *bytes = realloc(common->collected, room);
        if (!bytes)
            return;
        common->collected = bytes;
        common->collected_room = room;
    }
    const uint32_t head[2] = {port, length};
    memcpy(common->collected + common->collected_used, head, sizeof head);
    memcpy(common->collected + common->collected_used + sizeof head, frame, length);
    common->collected_used = needed;
}

const uint8_t *p4r_run(struct p4r_program *program, uint32_t port, const uint8_t *frame,
                       uint32_t length, uint64_t now_ns, uint64_t *used)
{
    struct p4r_common *common = p4r_program_object(program, P4R_COMMON);
    common->collected_used = 0;
    p4r_program_process(program, port, frame, length, now_ns, collect, common);
    if (common->release)
        common->release(program, now_ns, collect, common, NULL);
    *used = common->collected_used;
    return common->collected;
}

const uint8_t *p4r_run_due(struct p4r_program *program, uint64_t now_ns, uint64_t *next_ns,
                           uint64_t *used)
{
    struct p4r_common *common = p4r_program_object(program, P4R_COMMON);
    common->collected_used = 0;
    *next_ns = common->release(program, now_ns, collect, common, NULL);
    *used = common->collected_used;
    return common->collected;
}
