/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/queue.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

enum { KEPT_FRAMES = 128 }; /* memory beyond these is given back after a jam */

static const size_t all_bytes = (size_t)P4R_QUEUE_FRAMES * P4R_ROW_BYTES;

int p4r_queue_init(struct p4r_queue *queue)
{
    memset(queue, 0, sizeof *queue);
    void *rows = mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rows == MAP_FAILED)
        return -1;
    queue->rows = rows;
    return 0;
}

void p4r_queue_free(struct p4r_queue *queue)
{
    if (queue->rows != NULL)
        munmap(queue->rows, all_bytes);
    queue->rows = NULL;
}

static uint32_t place(const struct p4r_queue *queue, uint32_t position)
{
    return (queue->head + position) % P4R_QUEUE_FRAMES;
}

int p4r_queue_push(struct p4r_queue *queue, const uint8_t *bytes, uint32_t length)
{
    if (queue->count == P4R_QUEUE_FRAMES)
        return -1;
    assert(length <= P4R_ROW_BYTES);
    const uint32_t row = place(queue, queue->count);
    memcpy(queue->rows + (size_t)row * P4R_ROW_BYTES, bytes, length);
    queue->lengths[row] = length;
    queue->bytes += length;
    queue->count++;
    if (row >= queue->touched)
        queue->touched = row + 1;
    return 0;
}

int p4r_queue_peek(const struct p4r_queue *queue, struct p4r_frame *frames, int most)
{
    const int count = queue->count < (uint32_t)most ? (int)queue->count : most;
    for (int i = 0; i < count; i++) {
        const uint32_t row = place(queue, (uint32_t)i);
        frames[i].bytes = queue->rows + (size_t)row * P4R_ROW_BYTES;
        frames[i].length = queue->lengths[row];
    }
    return count;
}

void p4r_queue_pop(struct p4r_queue *queue, uint32_t count)
{
    uint32_t bytes = 0;
    assert(count <= queue->count);
    for (uint32_t i = 0; i < count; i++)
        bytes += queue->lengths[place(queue, i)];
    queue->head = place(queue, count);
    queue->count -= count;
    queue->bytes -= bytes;
    if (queue->count == 0) {
        /* The next burst uses the rows that are still in the processor's cache. */
        queue->head = 0;
        if (queue->touched > KEPT_FRAMES) {
            const size_t kept = ((size_t)KEPT_FRAMES * P4R_ROW_BYTES + 4095) & ~(size_t)4095;
            madvise(queue->rows + kept, all_bytes - kept, MADV_DONTNEED);
            queue->touched = 0;
        }
    }
}
