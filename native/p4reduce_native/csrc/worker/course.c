/* SPDX-License-Identifier: Apache-2.0 */
/* What is written down about a collective that is traced: tensors/course.py. */
#include "worker/worker.h"

void p4r_course_answered(struct p4r_course *course, int opening, double now)
{
    if (opening && course->all_there == 0)
        course->all_there = now;
    course->last_answer = now;
}

void p4r_course_told(struct p4r_course *course, uint64_t heard, double now)
{
    uint32_t count = course->told_count;

    if (count && course->told[count - 1].heard == heard)
        return;
    if (count == P4R_TOLD_MOST)
        return;
    course->told[count].at = now;
    course->told[count].heard = heard;
    course->told_count++;
}

void p4r_course_repeated(struct p4r_course *course, double now)
{
    uint32_t count = course->repeat_count;

    course->repeated++;
    if (count && course->repeats[count - 1].at == now) {
        course->repeats[count - 1].frames++;
    } else if (count < P4R_REPEATS_MOST) {
        course->repeats[count] = (struct p4r_repeat){now, 1};
        course->repeat_count++;
    }
}
