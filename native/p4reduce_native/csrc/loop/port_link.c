/* SPDX-License-Identifier: Apache-2.0 */
/* Ports on a link: one peer on a Unix socket of type SEQPACKET, by whatever link it agrees to; one
 * peer by UDP; or one end of a veth pair whose packets have many frames. */
#include <errno.h>
#include <unistd.h>

#include "link/link.h"
#include "loop/port.h"

static int attach(struct p4r_port *port, int fd)
{
    int error;
    port->link = p4r_link_accept(fd, P4R_LINK_CAN_SHARED, 0, &error);
    return -error;
}

/* A link owns its socket, and this one stays the caller's. */
static int attach_interface(struct p4r_port *port, int fd)
{
    const int own = dup(fd);
    int error;
    if (own < 0)
        return -errno;
    port->link = p4r_link_over_interface(own, 0, &error);
    if (port->link == NULL)
        close(own);
    return -error;
}

/* Notes what a link has counted since. */
static void count_lengths(struct p4r_port *port, struct p4r_link_counts before)
{
    const struct p4r_link_counts *now = p4r_link_counts(port->link);
    port->stats.rx_too_short += now->rx_too_short - before.rx_too_short;
    port->stats.rx_too_long += now->rx_too_long - before.rx_too_long;
}

static int take_in(struct p4r_port *port, struct p4r_messages *messages, struct p4r_frame *frames)
{
    (void)messages; /* a link has its own memory */
    const struct p4r_link_counts before = *p4r_link_counts(port->link);
    const int count = p4r_link_receive(port->link, frames, P4R_BATCH);
    count_lengths(port, before);
    return count;
}

static int peek(struct p4r_port *port, struct p4r_frame *frames)
{
    const struct p4r_link_counts before = *p4r_link_counts(port->link);
    const int count = p4r_link_peek(port->link, frames, P4R_BATCH);
    count_lengths(port, before);
    return count;
}

static void done(struct p4r_port *port) { p4r_link_done(port->link); }

static int send_out(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    return p4r_link_send(port->link, frames, count);
}

static uint64_t retry_ns(const struct p4r_port *port) { return p4r_link_retry_ns(port->link); }

/* Of a UDP port: adds what its link has counted since. */
static void count_datagrams(struct p4r_port *port)
{
    const struct p4r_datagram_counts *now = p4r_link_datagram_counts(port->link);
    struct p4r_datagram_counts *seen = &port->seen;
    port->stats.rx_stranger += now->strangers - seen->strangers;
    port->stats.path_narrowed += now->path_narrowed - seen->path_narrowed;
    port->stats.path_too_narrow += now->path_too_narrow - seen->path_too_narrow;
    port->stats.tx_runs_refused += now->tx_runs_refused - seen->tx_runs_refused;
    if (now->control_messages != seen->control_messages)
        p4r_port_tell(port, P4R_EVENT_CONTROL_MESSAGE, 0);
    *seen = *now;
}

static int take_datagrams(struct p4r_port *port, struct p4r_messages *messages,
                          struct p4r_frame *frames)
{
    const int count = take_in(port, messages, frames);
    count_datagrams(port);
    return count;
}

static int send_datagrams(struct p4r_port *port, const struct p4r_frame *frames, int count)
{
    const uint64_t too_long = port->seen.tx_too_long;
    const int sent = p4r_link_send(port->link, frames, count);
    count_datagrams(port);
    return port->seen.tx_too_long == too_long ? sent : -EMSGSIZE; /* it has given up one frame */
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
    .receive = take_in,
    .peek = peek,
    .done = done,
    .send = send_out,
    .retry_ns = retry_ns,
    .put = put,
    .tell = tell,
    .events = events,
    .ends_by_error = 1,
    .is_neighbour = 1,
};

const struct p4r_port_kind p4r_udp_port = {
    .receive = take_datagrams,
    .send = send_datagrams,
    .retry_ns = retry_ns,
    .events = events,
    .ends_by_error = 1,
    .run_bytes = P4R_LINK_RUN_BYTES,
    .extra_bytes = P4R_LINK_RUN_EXTRA,
};

const struct p4r_port_kind p4r_offload_port = {
    .attach = attach_interface,
    .receive = take_in,
    .send = send_out,
    .retry_ns = retry_ns,
    .events = events,
    .ends_by_error = 0,
    .is_interface = 1,
};
