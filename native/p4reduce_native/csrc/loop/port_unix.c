/* SPDX-License-Identifier: Apache-2.0 */
/* One peer on a Unix socket of type SEQPACKET, one message per frame. */
#include <poll.h>
#include <sys/epoll.h>

#include "loop/port.h"

static int has_gone(struct p4r_port *port)
{
    /* It may have hung up since epoll was asked. */
    struct pollfd now = {.fd = port->fd, .events = POLLIN | POLLRDHUP};
    if (!port->gone && poll(&now, 1, 0) > 0)
        port->gone = (now.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
    return port->gone;
}

static int take_in(struct p4r_port *port, struct p4r_batch *batch, struct p4r_frame *frames,
                   int *at_end)
{
    int count = p4r_batch_receive(batch, port->fd, frames);
    /* An empty message and the end look the same, but for the hang-up. */
    int empty = count == 0;
    for (int i = 0; i < count; i++)
        empty |= frames[i].length == 0;
    if (count < 0 || !empty || !has_gone(port))
        return count;
    while (count > 0 && frames[count - 1].length == 0)
        count--;
    *at_end = 1;
    return count;
}

static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    return p4r_batch_send(port->fd, frames, count);
}

const struct p4r_port_kind p4r_unix_port = {
    .receive = take_in,
    .send = send_out,
    .events = EPOLLIN | EPOLLRDHUP,
    .ends_by_error = 1,
};
