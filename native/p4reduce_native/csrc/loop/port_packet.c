/* SPDX-License-Identifier: Apache-2.0 */
/* A network interface by a packet socket, which Python has bound to it. */
#include <errno.h>
#include <sys/epoll.h>

#include "loop/port.h"

static int take_in(struct p4r_port *port, struct p4r_messages *messages, struct p4r_frame *frames)
{
    return p4r_messages_receive(messages, port->fd, frames);
}

/* A queue of the device that is full shows as ENOBUFS, and no event shows that it has room. */
static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    if (p4r_backoff_holds(&port->backoff))
        return 0;
    const int sent = p4r_messages_send(port->fd, frames, count);
    if (sent == -ENOBUFS || sent == -ENOMEM)
        p4r_backoff_fail(&port->backoff);
    else
        port->backoff.pause_ns = 0;
    return sent;
}

static uint64_t retry_ns(const struct p4r_port *port) { return port->backoff.until_ns; }

static uint32_t events(const struct p4r_port *port, int frames_wait)
{
    return frames_wait && port->backoff.until_ns == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

const struct p4r_port_kind p4r_packet_port = {
    .receive = take_in,
    .send = send_out,
    .retry_ns = retry_ns,
    .events = events,
    .ends_by_error = 0,
    .is_interface = 1,
};
