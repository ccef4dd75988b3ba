/* SPDX-License-Identifier: Apache-2.0 */
/* What is written down about a collective that is traced: tensors/trace.py. */
#include "worker/worker.h"

void p4r_trace_answered(struct p4r_trace *trace, int opening, double now)
{
    if (opening && trace->all_there == 0)
        trace->all_there = now;
    trace->last_answer = now;
}

void p4r_trace_status(struct p4r_trace *trace, uint64_t heard, double now)
{
    uint32_t count = trace->status_count;

    if (count && trace->statuses[count - 1].heard == heard)
        return;
    if (count == P4R_STATUSES_MOST)
        return;
    trace->statuses[count].at = now;
    trace->statuses[count].heard = heard;
    trace->status_count++;
}

void p4r_trace_repeated(struct p4r_trace *trace, double now)
{
    uint32_t count = trace->repeat_count;

    trace->repeated++;
    if (count && trace->repeats[count - 1].at == now) {
        trace->repeats[count - 1].frames++;
    } else if (count < P4R_REPEATS_MOST) {
        trace->repeats[count] = (struct p4r_repeat){now, 1};
        trace->repeat_count++;
    }
}
