/* SPDX-License-Identifier: Apache-2.0 */
/* A network interface by a packet socket, which Python has bound to it. */
#include <sys/epoll.h>

#include "loop/port.h"

static int take_in(struct p4r_port *port, struct p4r_batch *batch, struct p4r_frame *frames,
                   int *at_end)
{
    (void)at_end;
    return p4r_batch_receive_packets(batch, port->fd, frames);
}

static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    return p4r_batch_send(port->fd, frames, count);
}

const struct p4r_port_kind p4r_packet_port = {
    .receive = take_in,
    .send = send_out,
    .events = EPOLLIN,
    .ends_by_error = 0,
};
