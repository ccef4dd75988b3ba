/* SPDX-License-Identifier: Apache-2.0 */
/* One frame per message, many messages per system call. */
#include "link_impl.h"

#include <sys/epoll.h>

/* Messages of length 0 behind all others are the end, if the peer has hung up. */
static int without_end(int fd, const int64_t *lengths, int count)
{
    if (lengths[count - 1] == 0 && p4r_has_hung_up(fd))
        while (count > 0 && lengths[count - 1] == 0)
            count--;
    return count;
}

/* Rows are the same from call to call, as a rule. */
static void prepare(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room)
{
    if (rows == link->prepared_rows && stride == link->prepared_stride &&
        room == link->prepared_room)
        return;
    link->prepared_rows = rows;
    link->prepared_stride = stride;
    link->prepared_room = room;
    for (int i = 0; i < P4R_LINK_MOST; i++) {
        link->in_vectors[i] = (struct iovec){rows + (size_t)i * stride, room};
        link->in_messages[i].msg_hdr =
            (struct msghdr){.msg_iov = &link->in_vectors[i], .msg_iovlen = 1};
    }
}

static int receive_rows(struct p4r_link *link, uint8_t *rows, size_t stride, size_t room,
                        int64_t *lengths, int most)
{
    prepare(link, rows, stride, room);
    int count;
    do
        count = recvmmsg(link->fd, link->in_messages, (unsigned)most, MSG_DONTWAIT, NULL);
    while (count < 0 && p4r_reads_on(link, errno));
    if (count < 0 && !p4r_is_full(errno))
        return p4r_break(link, errno);
    if (count <= 0)
        return p4r_found_nothing(link);
    for (int i = 0; i < count; i++)
        lengths[i] = link->in_messages[i].msg_len;
    count = without_end(link->fd, lengths, count);
    if (count == 0)
        return p4r_break(link, EPIPE);
    /* Only the first message of all can be a hello. It is no frame: where it is not answered, or
     * more has come with it (an honest peer waits for the answer), it is counted as a short one. */
    const int is_first = !link->has_heard;
    link->has_heard = 1;
    if (is_first && p4r_is_hello(rows, (size_t)lengths[0])) {
        lengths[0] = 0;
        if (link->offers != 0) {
            p4r_answer_hello(link, rows, link->offers);
            return count == 1 ? 0 : count;
        }
    }
    return count;
}

int p4r_send_each(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    if (count > P4R_LINK_FRAMES)
        count = P4R_LINK_FRAMES;
    for (int i = 0; i < count; i++) {
        /* The kernel does not write to what it sends. */
        link->out_vectors[i] = (struct iovec){(void *)(uintptr_t)frames[i].bytes, frames[i].length};
        link->out_messages[i].msg_hdr =
            (struct msghdr){.msg_iov = &link->out_vectors[i], .msg_iovlen = 1};
    }
    const int sent =
        sendmmsg(link->fd, link->out_messages, (unsigned)count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}

static int send_frames(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    int done = 0;
    while (done < count) {
        const int sent = p4r_send_each(link, frames + done, count - done);
        if (sent == -EINTR)
            continue;
        if (sent < 0) {
            const int error = p4r_send_failed(link, -sent);
            if (done == 0)
                return error;
            break;
        }
        done += sent;
    }
    return done;
}

static uint32_t events(const struct p4r_link *link, int wait_for_room)
{
    return EPOLLIN | EPOLLRDHUP | (link->is_deaf || wait_for_room ? EPOLLOUT : 0);
}

const struct p4r_link_ops p4r_single = {
    .kind = P4R_LINK_SINGLE,
    .receive_rows = receive_rows,
    .send = send_frames,
    .events = events,
};
