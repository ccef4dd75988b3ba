/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/packet_in.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 1 << 14 };

int p4r_packet_in_push(struct p4r_packet_ins *waiting, const uint8_t *frame, uint32_t length)
{
    const uint32_t needed = waiting->used + (uint32_t)sizeof length + length;
    if (waiting->count == P4R_MOST_PACKET_INS)
        return -1;
    if (needed > waiting->room) {
        uint32_t room = waiting->room > 0 ? waiting->room : FIRST_ROOM;
        while (room < needed)
            room *= 2;
        uint8_t *bytes = realloc(waiting->bytes, room);
        if (bytes == NULL)
            return -1;
        waiting->bytes = bytes;
        waiting->room = room;
    }
    memcpy(waiting->bytes + waiting->used, &length, sizeof length);
    memcpy(waiting->bytes + waiting->used + sizeof length, frame, length);
    waiting->used = needed;
    waiting->count++;
    return 0;
}

int64_t p4r_packet_in_next(struct p4r_packet_ins *waiting, const uint8_t **frame)
{
    uint32_t length;
    if (waiting->next == waiting->used) {
        waiting->next = waiting->used = waiting->count = 0;
        return -1;
    }
    memcpy(&length, waiting->bytes + waiting->next, sizeof length);
    *frame = waiting->bytes + waiting->next + sizeof length;
    waiting->next += (uint32_t)sizeof length + length;
    return length;
}

void p4r_packet_ins_free(struct p4r_packet_ins *waiting)
{
    free(waiting->bytes);
    memset(waiting, 0, sizeof *waiting);
}
