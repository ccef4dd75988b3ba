/* SPDX-License-Identifier: Apache-2.0 */
/* Many frames per message: records of a length and a frame, see link_impl.h. */
#include "link_impl.h"

#include <string.h>

static size_t filled_up(size_t bytes) { return (bytes + 3) & ~(size_t)3; }

/* Finds the frames of a message from `*at` on, and moves it behind them; what is left where a record
 * does not fit is one frame of bad length. */
int p4r_find_frames(const uint8_t *message, size_t bytes, size_t *at, struct p4r_frame *frames,
                    int most)
{
    static const uint8_t nothing[1];
    int count = 0;
    while (*at < bytes && count < most) {
        size_t length = 0, room = bytes - *at;
        if (room >= P4R_RECORD_HEAD)
            length = (size_t)message[*at] | (size_t)message[*at + 1] << 8;
        if (room < P4R_RECORD_HEAD || length > room - P4R_RECORD_HEAD) {
            frames[count++] = (struct p4r_frame){nothing, 0};
            *at = bytes;
            break;
        }
        frames[count++] = (struct p4r_frame){message + *at + P4R_RECORD_HEAD, (uint32_t)length};
        *at += filled_up(P4R_RECORD_HEAD + length);
    }
    return count;
}

int p4r_batch_receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    (void)most; /* is P4R_LINK_FRAMES at least: a message never has more */
    ssize_t bytes;
    do
        bytes = recv(link->fd, link->rows, P4R_BATCH_BYTES, MSG_DONTWAIT);
    while (bytes < 0 && p4r_reads_on(link, errno));
    if (bytes < 0)
        return p4r_is_full(errno) ? p4r_found_nothing(link) : p4r_break(link, errno);
    if (bytes == 0) /* the end; nobody sends a message without a record */
        return p4r_break(link, EPIPE);
    size_t at = 0;
    return p4r_find_frames(link->rows, (size_t)bytes, &at, frames, P4R_LINK_FRAMES);
}

/* Sends one message of up to `most` frames; returns how many it had, 0: there is no room. */
static int send_message(struct p4r_link *link, const struct p4r_frame *frames, int most)
{
    uint8_t heads[P4R_LINK_FRAMES][3 + P4R_RECORD_HEAD];
    size_t bytes = 0;
    int count = 0;
    while (count < most) {
        const struct p4r_frame *frame = &frames[count];
        size_t gap = filled_up(bytes) - bytes; /* behind the record before */
        if (bytes + gap + P4R_RECORD_HEAD + frame->length > P4R_BATCH_BYTES)
            break;
        uint8_t *head = heads[count];
        memset(head, 0, gap);
        head[gap] = (uint8_t)(frame->length & 0xFF);
        head[gap + 1] = (uint8_t)(frame->length >> 8);
        link->out_vectors[2 * count] = (struct iovec){head, gap + P4R_RECORD_HEAD};
        link->out_vectors[2 * count + 1] =
            (struct iovec){(void *)(uintptr_t)frame->bytes, frame->length};
        bytes += gap + P4R_RECORD_HEAD + frame->length;
        count++;
    }
    struct msghdr message = {.msg_iov = link->out_vectors, .msg_iovlen = 2 * (size_t)count};
    ssize_t sent;
    do
        sent = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0)
        return count;
    if (errno == EMSGSIZE && count > 1) { /* the socket's buffer is smaller than the message */
        link->most_per_message = count / 2;
        return send_message(link, frames, count / 2);
    }
    return p4r_send_failed(link, errno);
}

int p4r_batch_send(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        int most = count - done;
        if (most > link->most_per_message)
            most = link->most_per_message;
        int sent = send_message(link, frames + done, most);
        if (sent <= 0)
            return done != 0 ? done : sent;
        done += sent;
    }
    return done;
}
