/* SPDX-License-Identifier: Apache-2.0 */
/* A network interface by a packet socket, which Python has bound to it. */
#include <sys/epoll.h>

#include "loop/port.h"

static int attach(struct p4r_port *port, int fd)
{
    port->fd = fd;
    return 0;
}

static void detach(struct p4r_port *port) { (void)port; /* Python closes the socket */ }

static int take_in(struct p4r_port *port, struct p4r_messages *messages, struct p4r_frame *frames)
{
    return p4r_messages_receive(messages, port->fd, frames);
}

static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    return p4r_messages_send(port->fd, frames, count);
}

static uint32_t events(const struct p4r_port *port, int frames_wait)
{
    (void)port;
    return frames_wait ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

const struct p4r_port_kind p4r_packet_port = {
    .attach = attach,
    .detach = detach,
    .receive = take_in,
    .send = send_out,
    .events = events,
    .ends_by_error = 0,
    .is_interface = 1,
};
