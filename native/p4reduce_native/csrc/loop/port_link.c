/* SPDX-License-Identifier: Apache-2.0 */
/* Ports on a link: one peer on a Unix socket of type SEQPACKET, by whatever link it agrees to; one
 * peer by UDP; or one end of a veth pair whose packets have many frames. */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "link/link.h"
#include "loop/port.h"

static int attach(struct p4r_port *port, int fd)
{
    port->link = p4r_link_accept(fd, P4R_LINK_CAN_BATCH | P4R_LINK_CAN_SHARED, 0);
    if (port->link == NULL)
        return -ENOMEM;
    port->fd = p4r_link_fd(port->link);
    return 0;
}

static int attach_interface(struct p4r_port *port, int fd)
{
    const int own = dup(fd);
    port->link = own < 0 ? NULL : p4r_link_over_interface(own, 0);
    if (port->link == NULL)
        return -EOPNOTSUPP;
    port->fd = own;
    return 0;
}

/* Its link is there already: p4r_port_attach_link. */
static int attach_peer(struct p4r_port *port, int fd)
{
    port->fd = fd;
    return 0;
}

static void detach(struct p4r_port *port)
{
    p4r_link_free(port->link);
    port->link = NULL;
}

static int take_in(struct p4r_port *port, struct p4r_messages *messages, struct p4r_frame *frames)
{
    (void)messages; /* a link has its own memory */
    const struct p4r_link_counts *counts = p4r_link_counts(port->link);
    const uint64_t too_short = counts->rx_too_short, too_long = counts->rx_too_long;
    const uint64_t strangers = p4r_link_strangers(port->link);
    const int count = p4r_link_receive(port->link, frames, P4R_BATCH);
    port->stats.rx_stranger += p4r_link_strangers(port->link) - strangers;
    port->stats.rx_too_short += counts->rx_too_short - too_short;
    port->stats.rx_too_long += counts->rx_too_long - too_long;
    return count;
}

static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    return p4r_link_send(port->link, frames, count);
}

static int put(struct p4r_port *port, const uint8_t *bytes, uint32_t length)
{
    return p4r_link_put(port->link, bytes, length);
}

static int tell(struct p4r_port *port) { return p4r_link_tell(port->link); }

static uint32_t events(const struct p4r_port *port, int frames_wait)
{
    return p4r_link_events(port->link, frames_wait);
}

const struct p4r_port_kind p4r_unix_port = {
    .attach = attach,
    .detach = detach,
    .receive = take_in,
    .send = send_out,
    .put = put,
    .tell = tell,
    .events = events,
    .ends_by_error = 1,
};

const struct p4r_port_kind p4r_udp_port = {
    .attach = attach_peer,
    .detach = detach,
    .receive = take_in,
    .send = send_out,
    .events = events,
    .ends_by_error = 1,
};

const struct p4r_port_kind p4r_offload_port = {
    .attach = attach_interface,
    .detach = detach,
    .receive = take_in,
    .send = send_out,
    .events = events,
    .ends_by_error = 0,
    .is_interface = 1,
};
