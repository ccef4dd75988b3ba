/* SPDX-License-Identifier: Apache-2.0 */
/* One frame per packet of a bound packet socket, many packets per system call. There is no hang-up:
 * an error ends nothing, and the next call tries again. */
#include "link_impl.h"
#include "vlan.h"

#include <stdlib.h>

enum { HEADROOM = 16 }; /* in front of each row's frame, for a VLAN tag; keeps frames aligned */

_Static_assert(HEADROOM + P4R_ROW_ROOM <= P4R_ROW_STRIDE, "a row holds a frame and its tag");

struct p4r_link *p4r_link_over_packets(int fd, int *error)
{
    struct p4r_link *link = p4r_link_accept(fd, 0, 0, error);
    if (link == NULL)
        return NULL;
    link->ops = &p4r_packet;
    link->auxdata = calloc(P4R_LINK_MOST, sizeof *link->auxdata);
    if (link->auxdata == NULL) {
        *error = ENOMEM;
        return p4r_unmake(link);
    }
    for (int i = 0; i < P4R_LINK_MOST; i++) {
        link->in_vectors[i] =
            (struct iovec){link->rows + (size_t)i * P4R_ROW_STRIDE + HEADROOM, P4R_ROW_ROOM};
        link->in_messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &link->in_vectors[i], .msg_iovlen = 1, .msg_control = &link->auxdata[i]};
    }
    return link;
}

static void free_auxdata(struct p4r_link *link) { free(link->auxdata); }

static int receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    for (int i = 0; i < most; i++)
        link->in_messages[i].msg_hdr.msg_controllen = sizeof *link->auxdata;
    const int count = recvmmsg(link->fd, link->in_messages, (unsigned)most, MSG_DONTWAIT, NULL);
    if (count < 0)
        return p4r_is_full(errno) || errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++) {
        struct mmsghdr *message = &link->in_messages[i];
        uint8_t *bytes = link->in_vectors[i].iov_base;
        const size_t tag = p4r_vlan_put_back(bytes, message->msg_len, &message->msg_hdr);
        frames[i] = (struct p4r_frame){bytes - tag, message->msg_len + (uint32_t)tag};
    }
    return count;
}

/* A queue of the device that is full shows as ENOBUFS, and no event shows that it has room. */
static int send_frames(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    const int sent = p4r_send_each(link, frames, count);
    if (sent >= 0)
        return sent;
    return p4r_is_full(-sent) ? p4r_send_failed(link, -sent) : sent == -EINTR ? 0 : sent;
}

const struct p4r_link_ops p4r_packet = {
    .kind = P4R_LINK_PACKET,
    .receive = receive,
    .send = send_frames,
    .events = p4r_events_without_end,
    .free = free_auxdata,
};
